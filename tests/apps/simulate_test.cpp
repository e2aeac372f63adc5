// computron simulate, as a person runs it.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "computron/base/error.h"
#include "tests/apps/program.h"

namespace computron::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class SimulateTest : public ProgramTest {
 protected:
  // An encoder of one pass a request, and a decoder whose passes take 10 ms and .1 ms a row, on one rank or in two
  // stages.
  std::string profiles() const {
    const std::string machine =
        R"({"device_memory": "3GB", "host_memory": "64GB", "link_gbps": 10, "page_size": "16MiB"})";
    std::string passes, halves;
    for (int rows = 1; rows <= 2048; rows *= 2) {
      const double pass_s = 0.01 + 1e-4 * rows;
      const auto entry = [&](const std::string& times) {
        return std::string(rows > 1 ? ", " : "") + R"({"rows": )" + std::to_string(rows) + R"(, "stage_s": [)" + times +
               "]}";
      };
      passes += entry(std::to_string(pass_s));
      halves += entry(std::to_string(pass_s / 2) + ", " + std::to_string(pass_s / 2));
    }
    return write("profiles.json", R"({"machine": )" + machine + R"(, "models": [
      {"id": "encoder", "shapes": [{"stage_s": [0.1], "stage_bytes": ["1GB"]},
        {"pp": 2, "stage_s": [0.05, 0.05], "stage_bytes": ["500MB", "500MB"], "layers": [6, 6]}]},
      {"id": "decoder", "shapes": [
        {"stage_s": [0.2], "stage_bytes": ["2GB"], "cache_token_bytes": [100000], "passes": [)" +
                                      passes + R"(]},
        {"pp": 2, "stage_s": [0.1, 0.1], "stage_bytes": ["1GB", "1GB"], "cache_token_bytes": [50000, 50000],
         "passes": [)" + halves + R"(]}]}]})");
  }

  Outcome simulate(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "simulate");
    return run(arguments);
  }
  Outcome plan(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "plan");
    return run(arguments);
  }
};

TEST_F(SimulateTest, PlaysAPlacement) {
  const std::string placement = write("placement.json", R"({"groups": [{"models": ["encoder"]},
      {"pp": 2, "models": ["decoder", "encoder"]}]})");
  const Outcome outcome = simulate({profiles(), "--placement", placement, "--rate", "4", "--duration", "60", "--slo",
                                    "1", "--max-tokens", "16", "--json", file("played.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("0          0    1 x 1"));
  EXPECT_THAT(outcome.output, HasSubstr("1        1-2    1 x 2"));
  EXPECT_THAT(outcome.output, HasSubstr("of: Gamma arrivals, cv 1, 4 requests/s, 60 s, seeds 2 to 3\n"));
  EXPECT_THAT(outcome.output, HasSubstr("to decide"));
  const json played = json::parse(read_file(file("played.json")));
  EXPECT_EQ(played["groups"].size(), 2u);
  EXPECT_GT(played["predicted"]["attainment"], 0.9);
  EXPECT_GT(played["predicted"]["requests"], 150);
  EXPECT_EQ(played["predicted"]["groups"].size(), 2u);
  EXPECT_GT(played["predicted"]["models"]["decoder"]["mean_latency_s"], 0.15);
}

TEST_F(SimulateTest, PlaysTheRequestsOfAFile) {
  const std::string requests = write(
      "requests.jsonl",
      R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "arrival": 7, "body": {"model": "decoder", "prompt": [5, 6], "max_tokens": 3}})"
      "\n\n"
      R"({"custom_id": "b", "method": "POST", "url": "/v1/embeddings", "body": {"model": "encoder", "input": [5, 6, 7]}})"
      "\n");
  const auto played = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {profiles(), "--requests", requests, "--json", file("played.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = simulate(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    return json::parse(read_file(file("played.json")))["predicted"];
  };
  const json at_once = played({});
  EXPECT_EQ(at_once["requests"], 2);
  EXPECT_EQ(at_once["models"]["decoder"]["requests"], 1);
  EXPECT_EQ(at_once["models"]["encoder"]["requests"], 1);
  EXPECT_LT(at_once["makespan_s"], 2);
  const json replayed = played({"--replay"});
  EXPECT_GT(replayed["makespan_s"], 7);
  EXPECT_LT(replayed["models"]["decoder"]["mean_latency_s"], 1);
}

// What was played is what is written: played again, it comes out the same.
TEST_F(SimulateTest, WritesTheRequestsThatItPlays) {
  const std::vector<std::string> rule = {profiles(),
                                         "--rate",
                                         "6",
                                         "--cv",
                                         "2",
                                         "--duration",
                                         "30",
                                         "--slo",
                                         "1",
                                         "--json",
                                         file("rule.json"),
                                         "--prompt-tokens",
                                         "7",
                                         "--max-tokens",
                                         "5",
                                         "--vocab",
                                         "50",
                                         "--write-requests",
                                         file("requests.jsonl")};
  const Outcome made = simulate(rule);
  ASSERT_EQ(made.code, 0) << made.errors;
  const Outcome again = simulate(
      {profiles(), "--requests", file("requests.jsonl"), "--replay", "--slo", "1", "--json", file("again.json")});
  ASSERT_EQ(again.code, 0) << again.errors;
  const json rule_s = json::parse(read_file(file("rule.json")))["predicted"];
  const json again_s = json::parse(read_file(file("again.json")))["predicted"];
  for (const char* key : {"requests", "attainment", "mean_latency_s", "makespan_s"}) {
    EXPECT_EQ(rule_s[key], again_s[key]) << key;
  }
  std::istringstream lines(read_file(file("requests.jsonl")));
  std::size_t completions = 0, embeddings = 0;
  for (std::string line; std::getline(lines, line);) {
    const json request = json::parse(line);
    const bool completes = request["url"] == "/v1/completions";
    ++(completes ? completions : embeddings);
    const json& tokens = request["body"][completes ? "prompt" : "input"];
    EXPECT_EQ(tokens.size(), 7u);
    for (const int token : tokens) EXPECT_TRUE(token >= 4 && token < 50) << token;
    EXPECT_EQ(request["body"].value("max_tokens", 0), completes ? 5 : 0);
  }
  EXPECT_GT(completions, 30u);
  EXPECT_GT(embeddings, 30u);
  EXPECT_EQ(completions + embeddings, rule_s["requests"]);
  EXPECT_THAT(simulate({profiles(), "--rate", "1", "--vocab", "50"}).errors, HasSubstr("--write-requests"));
  EXPECT_THAT(simulate({profiles(), "--rate", "1", "--vocab", "4", "--write-requests", file("none")}).errors,
              HasSubstr("--vocab"));
}

TEST_F(SimulateTest, NamesALineThatIsNoRequest) {
  const auto errors = [this](const std::string& line) {
    const Outcome outcome = simulate({profiles(), "--requests", write("requests.jsonl", "\n" + line + "\n")});
    EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kUsage));
    return outcome.errors;
  };
  EXPECT_THAT(errors("{"), HasSubstr("requests.jsonl', line 2: "));
  EXPECT_THAT(
      errors(
          R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "decoder", "prompt": "text"}})"),
      HasSubstr("line 2: "));
  EXPECT_THAT(
      errors(
          R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "other", "prompt": [5]}})"),
      HasSubstr("other"));
  EXPECT_EQ(simulate({profiles(), "--requests", file("none.jsonl")}).code, static_cast<int>(ExitCode::kNoInput));
  EXPECT_THAT(simulate({profiles(), "--requests", file("none.jsonl"), "--rate", "1"}).errors, HasSubstr("--rate"));
}

TEST_F(SimulateTest, ARecordSaysItselfWhatElseThereIs) {
  const auto errors = [this](std::vector<std::string> arguments) {
    const Outcome outcome = simulate(std::move(arguments));
    EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kUsage));
    return outcome.errors;
  };
  EXPECT_THAT(errors({}), HasSubstr("neither profiles nor --steps"));
  EXPECT_THAT(errors({"--steps", "record", "--rate", "1"}), HasSubstr("--steps has no use for --rate"));
  EXPECT_THAT(errors({"profiles.json", "--steps", "record"}), HasSubstr("--steps has no use for profiles"));
  EXPECT_THAT(errors({"profiles.json", "--rate", "1", "--compute-scale", "2"}), HasSubstr("--steps"));
}

// 20 of 40 requests are for the decoder, and there from the start: their prompts in one pass, then 15 passes of a token
// each. A step takes 20 us to the rank, and its report as long.
TEST_F(SimulateTest, PassesTakeWhatTheProfilesSay) {
  const std::string one = write("one.json", R"({"groups": [{"models": ["decoder"]}]})");
  const Outcome known = simulate({profiles(), "--placement", one, "--known", "40", "--skew", "0", "--prompt-tokens",
                                  "64", "--max-tokens", "16", "--link-gbps", "1e6", "--json", file("played.json")});
  ASSERT_EQ(known.code, 0) << known.errors;
  EXPECT_THAT(known.output, HasSubstr("in no group, so that their requests come to nothing: encoder\n"));
  EXPECT_THAT(known.output, HasSubstr("20 of 40 requests served"));
  const json predicted = json::parse(read_file(file("played.json")))["predicted"];
  const double prompts_s = 0.01 + 1e-4 * 20 * 64, token_s = 0.01 + 1e-4 * 20;
  EXPECT_NEAR(predicted["makespan_s"], prompts_s + 15 * token_s + 16 * 4e-5, 1e-5);
  EXPECT_EQ(predicted["models"]["encoder"]["attainment"], 0);
}

TEST_F(SimulateTest, EveryModelIsEverywhereWithoutAPlacement) {
  const Outcome outcome = simulate({profiles(), "--groups", "2", "--pp", "2", "--rate", "2", "--duration", "20"});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("0        0-1    1 x 2"));
  EXPECT_THAT(outcome.output, HasSubstr("1        2-3    1 x 2"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("in no group")));
}

TEST_F(SimulateTest, IsTheSameEveryTime) {
  const std::vector<std::string> arguments = {profiles(),   "--groups", "3",    "--rate", "9",
                                              "--duration", "30",       "--cv", "3",      "--json"};
  const auto played = [&](const std::string& name) {
    auto own = arguments;
    own.push_back(file(name));
    EXPECT_EQ(simulate(own).code, 0);
    return read_file(file(name));
  };
  const std::string first = played("first.json");
  EXPECT_GT(first.size(), 100u);
  EXPECT_EQ(first, played("second.json"));
}

TEST_F(SimulateTest, ASlowerLinkAndALaterDeadlineShow) {
  const auto attained = [this](std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        profiles(),        "--rate", "3",      "--duration",       "60", "--max-tokens", "16", "--prompt-tokens", "64",
        "--device-memory", "2.2GB",  "--json", file("played.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = simulate(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    return json::parse(read_file(file("played.json")))["predicted"]["attainment"].get<double>();
  };
  const double fast = attained({"--slo", "0.3", "--link-gbps", "20"});
  EXPECT_GT(fast, attained({"--slo", "0.3", "--link-gbps", "2"}) + 0.1);
  EXPECT_GT(attained({"--slo", "10", "--link-gbps", "20"}), fast);
  EXPECT_EQ(attained({}), 1);
}

// What plan predicts of the placement that it writes is what simulate says of it.
TEST_F(SimulateTest, SaysWhatPlanPredicts) {
  const std::vector<std::string> requests = {profiles(), "--rate",   "6",    "--duration", "60", "--cv",
                                             "2",        "--policy", "fifo", "--max-seqs", "1",  "--max-batch-tokens",
                                             "300"};
  auto arguments = requests;
  arguments.insert(arguments.end(), {"--ranks", "2", "--slo", "1", "--output", file("planned.json"), "--quiet"});
  const Outcome planned = plan(arguments);
  ASSERT_EQ(planned.code, 0) << planned.errors;
  EXPECT_THAT(planned.output, HasSubstr("played: "));
  arguments = requests;
  arguments.insert(arguments.end(), {"--placement", file("planned.json"), "--slo", "1", "--on-late", "reject", "--json",
                                     file("played.json")});
  const Outcome played = simulate(arguments);
  ASSERT_EQ(played.code, 0) << played.errors;
  json expected = json::parse(read_file(file("planned.json"))), found = json::parse(read_file(file("played.json")));
  EXPECT_THAT(expected["predicted"]["basis"], HasSubstr("played pass by pass"));
  expected["predicted"].erase("basis");
  found["predicted"].erase("basis");
  EXPECT_EQ(expected, found);
}

TEST_F(SimulateTest, WhatIsWrongIsNamed) {
  const auto refused = [this](std::vector<std::string> arguments, const std::string& part, int code = 64) {
    const Outcome outcome = simulate(std::move(arguments));
    EXPECT_EQ(outcome.code, code) << part;
    EXPECT_THAT(outcome.errors, HasSubstr(part));
  };
  const std::string known = profiles();
  const auto placement = [this](const std::string& group) {
    return write("wrong.json", R"({"groups": [)" + group + "]}");
  };
  refused({"/nowhere.json", "--rate", "1"}, "cannot read the profiles '/nowhere.json'", 66);
  refused({known}, "simulate: no requests: give --rate");
  refused({known, "--rate", "1", "--placement", "/nowhere.json"}, "/nowhere.json", 66);
  refused({known, "--rate", "1", "--placement", placement(R"({"models": ["z"]})")}, "no model 'z' of the placement");
  refused({known, "--rate", "1", "--placement", placement(R"({"tp": 2, "models": ["encoder"]})")},
          "encoder have no shape tp 2 x pp 1");
  refused({known, "--rate", "1", "--placement",
           placement(R"({"pp": 2, "models": ["encoder"], "layers": {"encoder": [5, 7]}})")},
          "cuts encoder otherwise than its profile");
  refused({known, "--rate", "1", "--placement", placement(R"({"models": ["encoder"]})"), "--tp", "2"}, "--tp");
  refused({known, "--rate", "1", "--tp", "2"}, "no shape tp 2 x pp 1");
  refused({known, "--rate", "1", "--model", "z=1"}, "--model");
  refused({known, "--rate", "1", "--policy", "best"}, "--policy");
  refused({known, "--rate", "1", "--on-late", "drop"}, "--on-late drop: without --slo");
  refused({known, "--rate", "1", "--slo", "1", "--slo-scale", "2"}, "--slo");
  refused({known, "--rate", "1", "--device-memory", "20MB"}, "encoder", 78);
  refused({known, "--rate", "1", "--json", "/nowhere/p.json"}, "/nowhere", 73);
  const std::string poor = write("poor.json", R"({"models": [{"id": "a", "shapes": [
        {"stage_s": [0.1], "stage_bytes": ["2GB"]}]}]})");
  refused({poor, "--rate", "1"}, "neither --device-memory nor the profiles' machine.device_memory");
  refused({poor, "--rate", "1", "--device-memory", "4GB"}, "neither --link-gbps");
}

}  // namespace
}  // namespace computron::test
