// computron plan, as a person runs it.
#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "computron/workload/arrival_sets.h"
#include "tests/apps/program.h"

namespace computron::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class PlanTest : public ProgramTest {
 protected:
  // Three models of 2 GB in equal stages, as of AlpaServe's unit tests.
  std::string profiles(const std::string& machine = R"("device_memory": "2.5GiB")") const {
    std::string models;
    for (const char* id : {"a", "b", "c"}) {
      models += (models.empty() ? "" : ", ") + std::string(R"({"id": ")") + id + R"(", "shapes": [
        {"stage_s": [0.1], "stage_bytes": ["2GB"]},
        {"pp": 2, "stage_s": [0.051, 0.051], "stage_bytes": ["1GB", "1GB"], "layers": [5, 7]},
        {"pp": 4, "stage_s": [0.026, 0.026, 0.026, 0.026], "stage_bytes": [5e8, 5e8, 5e8, 5e8]}]})";
    }
    return write("profiles.json", R"({"machine": {)" + machine + R"(}, "models": [)" + models + "]}");
  }

  Outcome plan(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "plan");
    return run(arguments);
  }
};

TEST_F(PlanTest, WritesThePlacementThatItPrints) {
  const Outcome outcome = plan({profiles(), "--ranks", "4", "--rate", "12", "--cv", "8", "--slo", "0.4", "--duration",
                                "500", "--swap", "off", "--output", file("placement.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("0        0-3    1 x 4"));
  EXPECT_THAT(outcome.output, HasSubstr("cv 8, 12 requests/s, 500 s, seeds 3 to 5"));
  EXPECT_THAT(outcome.errors, HasSubstr("in time"));
  const json placement = json::parse(read_file(file("placement.json")));
  EXPECT_EQ(placement["groups"].dump(), R"([{"models":["a","b","c"],"pp":4,"tp":1}])");
  const json& predicted = placement["predicted"];
  EXPECT_GT(predicted["attainment"], .2);
  EXPECT_LT(predicted["attainment"], 1);
  EXPECT_EQ(predicted["groups"].size(), 1u);
  EXPECT_EQ(predicted["models"].size(), 3u);
  EXPECT_GT(predicted["requests"], 3000);
}

TEST_F(PlanTest, CutsAreThoseOfTheProfiles) {
  const Outcome outcome = plan({"--ranks", "2", "--swap", "off", "--slo", "0.2", "--quiet", "--output",
                                file("placement.json"), "--model", "c=1", "--model", "a=2", profiles()});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(outcome.errors, "");
  const json placement = json::parse(read_file(file("placement.json")));
  EXPECT_EQ(placement["groups"].dump(), R"([{"layers":{"a":[5,7],"c":[5,7]},"models":["c","a"],"pp":2,"tp":1}])");
}

TEST_F(PlanTest, SwappingServesWhatDoesNotFitOtherwise) {
  const std::vector<std::string> same = {profiles(), "--ranks", "1", "--rate", "0.5", "--quiet"};
  auto arguments = same;
  arguments.insert(arguments.end(), {"--host-memory", "8GB", "--link-gbps", "20"});
  const Outcome swapping = plan(arguments);
  ASSERT_EQ(swapping.code, 0) << swapping.errors;
  EXPECT_THAT(swapping.output, HasSubstr("a, b, c\n"));
  EXPECT_THAT(swapping.output, Not(HasSubstr(" 0 swaps/s")));
  arguments = same;
  arguments.insert(arguments.end(), {"--swap", "off"});
  const Outcome resident = plan(arguments);
  ASSERT_EQ(resident.code, 0) << resident.errors;
  EXPECT_THAT(resident.output, HasSubstr("in no group, for want of room: "));
}

TEST_F(PlanTest, KnownRequestsHaveAMakespan) {
  const Outcome outcome = plan({profiles(), "--ranks", "4", "--known", "40", "--objective", "makespan", "--swap", "off",
                                "--device-memory", "8GiB"});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("makespan 1 s"));  // 40 times .1 s on four ranks
  EXPECT_THAT(outcome.output, HasSubstr("40 of 40 requests served"));
}

TEST_F(PlanTest, TheExactAnswerIsProven) {
  const std::vector<std::string> same = {profiles(), "--ranks", "4",   "--known",         "41",   "--objective",
                                         "makespan", "--swap",  "off", "--device-memory", "4GiB", "--exact"};
  auto arguments = same;
  arguments.insert(arguments.end(), {"--output", file("placement.json")});
  const Outcome outcome = plan(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("search: no placement has a shorter makespan: "));
  EXPECT_THAT(outcome.output, HasSubstr("of 616 possible placements simulated"));
  const json predicted = json::parse(read_file(file("placement.json")))["predicted"];
  EXPECT_NEAR(predicted["makespan_s"], 1.1, 1e-6);  // 41 times .1 s on four ranks
  arguments = same;
  arguments.insert(arguments.end(), {"--time-limit", "1e-9"});
  const Outcome stopped = plan(arguments);
  ASSERT_EQ(stopped.code, 0) << stopped.errors;
  EXPECT_THAT(stopped.output, HasSubstr("search: a shorter makespan may be possible: "));
  EXPECT_THAT(stopped.output, HasSubstr(", stopped after 1e-09 s"));
}

TEST_F(PlanTest, TracesAreServed) {
  std::string lines;
  for (int i = 0; i < 200; ++i) {
    lines += "{\"timestamp\": " + std::to_string(500 * i) + ", \"input_length\": 1, \"output_length\": 1}\n";
  }
  const std::string trace = write("mooncake.jsonl", lines);
  const Outcome outcome =
      plan({profiles(), "--ranks", "3", "--trace", trace, "--trace-format", "mooncake", "--swap", "off"});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("100 of 100 requests served"));
  EXPECT_THAT(outcome.output, HasSubstr("of: the second half of " + trace));
}

TEST_F(PlanTest, TheTimeLimitEndsTheSearchWithTheBestSoFar) {
  const Outcome outcome = plan({profiles(), "--ranks", "64", "--rate", "300", "--duration", "30", "--swap", "off",
                                "--time-limit", "1e-9", "--output", file("placement.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("stopped after 1e-09 s"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("in no group")));
  std::set<std::string> served;
  const json placement = json::parse(read_file(file("placement.json")));
  for (const json& group : placement["groups"]) {
    for (const json& model : group["models"]) served.insert(model);
  }
  EXPECT_EQ(served, (std::set<std::string>{"a", "b", "c"}));
}

TEST_F(PlanTest, SaysWhyAModelIsInNoGroup) {
  const std::string two = write("two.json", R"({"machine": {"device_memory": "2.5GiB"}, "models": [
      {"id": "a", "shapes": [{"stage_s": [0.1], "stage_bytes": ["2GB"]}]},
      {"id": "b", "shapes": [{"tp": 4, "stage_s": [0.1], "stage_bytes": ["1GB"]}]},
      {"id": "c", "shapes": [{"stage_s": [0.1], "stage_bytes": ["3GB"]}]}]})");
  const Outcome outcome = plan({two, "--ranks", "2", "--rate", "1", "--swap", "off"});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("in no group, as no profile is of 2 ranks or fewer: b\n"));
  EXPECT_THAT(outcome.output, HasSubstr("in no group, for want of room: c\n"));
  const Outcome stopped = plan({two, "--ranks", "2", "--rate", "1", "--swap", "off", "--time-limit", "1e-9"});
  ASSERT_EQ(stopped.code, 0) << stopped.errors;
  EXPECT_THAT(stopped.output, HasSubstr("in no group, the search was stopped before: c\n"));
}

TEST_F(PlanTest, SaysOfWhichRequestsThePredictionIs) {
  const auto basis = [this](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {profiles(), "--ranks", "2", "--swap", "off", "--quiet"});
    const Outcome outcome = plan(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    return outcome.output;
  };
  std::string lines;
  for (int i = 0; i < 200; ++i) {
    lines += "{\"timestamp\": " + std::to_string(500 * i) + ", \"input_length\": 1, \"output_length\": 1}\n";
  }
  const std::string trace = write("mooncake.jsonl", lines);
  EXPECT_THAT(basis({"--known", "4"}),
              HasSubstr("from the start (the same that were searched with), played pass by pass\n"));
  EXPECT_THAT(basis({"--known", "4", "--shares", "triangle"}), HasSubstr("of: 4 requests by triangle decay that are"));
  EXPECT_THAT(
      basis({"--trace", trace, "--trace-format", "mooncake", "--skew", "2", "--seed", "3"}),
      HasSubstr("the second half of " + trace + ", dealt to the models by power law 2, seed 3, played pass by pass\n"));
  EXPECT_THAT(basis({"--trace", trace, "--trace-format", "mooncake", "--seed", "3"}),
              HasSubstr("the second half of " + trace + ", dealt to the models, seed 3, played pass by pass\n"));
  EXPECT_THAT(
      basis({"--trace", trace, "--trace-format", "mooncake", "--trace-start", "10", "--duration", "40", "--rate-scale",
             "2"}),
      HasSubstr("the second half of " + trace + ", from 10 s on, 40 s of it, 2 times its rate, played pass by pass\n"));
  EXPECT_THAT(basis({"--trace", trace, "--trace-format", "mooncake", "--trace-window", "50", "--cv-scale", "3"}),
              HasSubstr("as in " + trace + ", windows of 50 s, 3 times its windows' cv, of other seeds"));
}

// Each process has the mean rate that is asked for, and is what the library makes of the same parameters.
TEST_F(PlanTest, ArrivalsAreOfTheProcessThatIsNamed) {
  const std::vector<double> even = {2, 2, 2};
  const MarkovModulated states{{{.mean_s = 1, .rate = 13}, {.mean_s = 3, .rate = 1}}};
  const auto predicted = [this](std::vector<std::string> arguments, const std::string& basis) {
    arguments.insert(arguments.begin(), {profiles(), "--ranks", "2", "--rate", "6", "--duration", "50", "--swap", "off",
                                         "--rescore", "0", "--quiet", "--output", file("placement.json")});
    const Outcome outcome = plan(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_THAT(outcome.output, HasSubstr("of: " + basis));
    return json::parse(read_file(file("placement.json")))["predicted"];
  };
  const auto requests = [&](const ArrivalProcess& process) { return sets_by_rule(process, even, 50, 0).test.size(); };
  EXPECT_EQ(predicted({"--arrivals", "pareto", "--shape", "3"},
                      "Pareto arrivals, shape 3, 6 requests/s, 50 s, seeds 3 to 5\n")["requests"],
            requests(ParetoGaps{3}));
  EXPECT_EQ(predicted({"--arrivals", "weibull", "--shape", "0.5"},
                      "Weibull arrivals, shape 0.5, 6 requests/s, 50 s, seeds 3 to 5\n")["requests"],
            requests(WeibullGaps{0.5}));
  EXPECT_EQ(predicted({"--arrivals", "mmpp", "--state", "1=13", "--state", "3=1"},
                      "MMPP arrivals, states 1=13 3=1, 6 requests/s, 50 s, seeds 3 to 5\n")["requests"],
            requests(states));
  EXPECT_EQ(predicted({"--arrivals", "even"},
                      "even arrivals, 6 requests/s, 50 s (the same that were searched with)\n")["requests"],
            requests(EvenGaps{}));
  std::set<std::size_t> counts;
  for (const ArrivalProcess& process :
       std::vector<ArrivalProcess>{GammaGaps{}, ParetoGaps{3}, WeibullGaps{.5}, states}) {
    counts.insert(requests(process));
  }
  EXPECT_EQ(counts.size(), 4u);  // so that one cannot be taken for another
}

TEST_F(PlanTest, RatesAreSharedByName) {
  const auto requests = [this](std::vector<std::string> arguments, const std::string& basis) {
    arguments.insert(arguments.begin(),
                     {profiles(), "--ranks", "3", "--rate", "7", "--duration", "99.9", "--arrivals", "even", "--swap",
                      "off", "--rescore", "0", "--quiet", "--output", file("placement.json")});
    const Outcome outcome = plan(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_THAT(outcome.output, HasSubstr("of: even arrivals, 7 requests/s" + basis + ", 99.9 s"));
    std::vector<int> counts;
    const json placement = json::parse(read_file(file("placement.json")));
    for (const json& model : placement["predicted"]["models"]) counts.push_back(model["requests"]);
    return counts;
  };
  using testing::ElementsAre;
  EXPECT_THAT(requests({}, ""), ElementsAre(233, 233, 233));
  EXPECT_THAT(requests({"--shares", "even"}, ""), ElementsAre(233, 233, 233));
  EXPECT_THAT(requests({"--shares", "triangle"}, " by triangle decay"), ElementsAre(349, 174, 174));
  EXPECT_THAT(requests({"--shares", "power-law"}, " by power law 0.5"), ElementsAre(306, 216, 176));
  EXPECT_THAT(requests({"--skew", "1"}, " by power law 1"), ElementsAre(381, 190, 127));
  EXPECT_THAT(requests({"--shares", "power-law", "--skew", "0"}, " by power law 0"), ElementsAre(233, 233, 233));
}

TEST_F(PlanTest, TheBestPlacementsArePlayed) {
  const auto planned = [this](const std::string& rescore) {
    const Outcome outcome = plan({profiles(), "--ranks", "4", "--rate", "12", "--slo", "0.4", "--duration", "100",
                                  "--swap", "off", "--device-memory", "8GiB", "--rescore", rescore});
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    return outcome.output;
  };
  EXPECT_THAT(planned("0"), Not(HasSubstr("played")));
  EXPECT_THAT(planned("1"), HasSubstr("played: 1 placements"));
  const std::string five = planned("5");
  EXPECT_THAT(five, HasSubstr("played: 5 placements, and the best of them again, in "));
  EXPECT_THAT(five, HasSubstr(", played pass by pass\n"));
  EXPECT_THAT(five, HasSubstr(", 0 swaps/s"));
}

// --- Siblings ---------------------------------------------------------------------------------------------------

using Ids = std::vector<std::string>;

// Models as files: a0 and a1 have the embedding and six of eight layers in common, the others have nothing. What they
// take and share is measured; how long their passes are is said here, far less than a copy of a model takes.
class PlanOfSiblings : public PlanTest {
 protected:
  PlanOfSiblings() {
    write("config.json", R"({"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 8, "ffn_dim": 96,
      "num_attention_heads": 4, "vocab_size": 128, "max_position_embeddings": 64, "word_embed_proj_dim": 64,
      "do_layer_norm_before": true})");
    init("a0", {"--seed", "1"});
    init("a1", {"--seed", "1", "--variant", "2", "--frozen-layers", "6"});
    init("b", {"--seed", "3"});
    init("c", {"--seed", "4"});
    init("d", {"--seed", "5"});
  }

  // A file of profiles of four of them.
  std::string measured(const Ids& ids) const {
    std::string written = file("profiles." + ids[1] + ".json");
    Ids arguments = {
        "profile",     "--shapes",        "1x1",     "--device",     "cpu",        "--threads", "1",
        "--page-size", "32KiB",           "--coded", "off",          "--max-seqs", "1",         "--max-batch-tokens",
        "4",           "--prompt-tokens", "4",       "--max-tokens", "1",          "--quiet",   "--output",
        written};
    for (const std::string& id : ids) arguments.insert(arguments.end(), {"--model", id + "=" + file(id + ".h5")});
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    json profiles = json::parse(read_file(written));
    for (json& model : profiles["models"]) {
      for (json& shape : model["shapes"]) {
        shape["stage_s"] = {1e-3};
        shape.erase("passes");
      }
    }
    std::ofstream(written) << profiles.dump();
    return written;
  }

  json planned(const std::string& profiles, const Ids& ids) const {
    return outcome_of({"plan", "--ranks", "2", "--objective", "latency", "--host-memory", "1GB", "--output"}, profiles,
                      ids);
  }
  // Bytes that links copy a second.
  double moved(const std::string& profiles, const Ids& ids, const std::vector<Ids>& groups) const {
    json placement = {{"groups", json::array()}};
    for (const Ids& group : groups) placement["groups"].push_back({{"models", group}});
    return outcome_of({"simulate", "--placement", write("given.json", placement.dump()), "--json"}, profiles,
                      ids)["predicted"]["link_bytes_per_s"];
  }

  static std::vector<Ids> groups_of(const json& placement) {
    std::vector<Ids> groups;
    for (const json& group : placement["groups"]) groups.push_back(group["models"]);
    return groups;
  }

 private:
  void init(const std::string& id, Ids more) const {
    more.insert(more.begin(), {"init", file(id + ".h5"), "--config", file("config.json")});
    const Outcome made = run(more);
    EXPECT_EQ(made.code, 0) << made.errors;
  }

  // Of two models that are asked for often and two that are so seldom, where a rank holds one and a half. `command`
  // ends with the option of the file that it writes.
  json outcome_of(Ids command, const std::string& profiles, const Ids& ids) const {
    const json shape = json::parse(read_file(profiles))["models"][0]["shapes"][0];
    const auto bytes = shape["frame_bytes"][0].get<std::int64_t>();
    const double copy_s = 0.05;
    const std::string written = file("out.json"), gbps = std::to_string(1e-9 * static_cast<double>(bytes) / copy_s);
    command.insert(command.end(), {written,           profiles,      "--device-memory", std::to_string(bytes * 3 / 2),
                                   "--link-gbps",     gbps,          "--model",         ids[0] + "=4",
                                   "--model",         ids[1] + "=4", "--model",         ids[2] + "=1",
                                   "--model",         ids[3] + "=1", "--duration",      "60",
                                   "--prompt-tokens", "4",           "--max-tokens",    "1",
                                   "--quiet"});
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    return json::parse(read_file(written));
  }
};

// The two that are asked for often take turns, so each has a rank, unless both fit one since they are siblings.
TEST_F(PlanOfSiblings, PutsThemTogetherWhereThatSavesBytes) {
  const Ids siblings = {"a0", "a1", "b", "c"}, strangers = {"a0", "d", "b", "c"};
  const std::string of_siblings = measured(siblings), of_strangers = measured(strangers);
  const json plan = planned(of_siblings, siblings);
  const std::vector<Ids> together = {{"a0", "a1"}, {"b", "c"}}, apart = groups_of(planned(of_strangers, strangers));
  EXPECT_EQ(groups_of(plan), together);
  const auto has_both = [](const Ids& group) {
    return std::ranges::count(group, "a0") + std::ranges::count(group, "d") == 2;
  };
  EXPECT_THAT(apart, Not(testing::Contains(testing::Truly(has_both))));

  const auto renamed = [](std::vector<Ids> groups, const std::string& from, const std::string& to) {
    for (Ids& group : groups) std::ranges::replace(group, from, to);
    return groups;
  };
  const double moves = moved(of_siblings, siblings, together);
  EXPECT_LT(moves, moved(of_siblings, siblings, renamed(apart, "d", "a1")) / 2);
  EXPECT_GT(moved(of_strangers, strangers, renamed(together, "a1", "d")), moved(of_strangers, strangers, apart));
  EXPECT_DOUBLE_EQ(plan["predicted"]["link_bytes_per_s"].get<double>(), moves) << "what was planned is what is played";
}

TEST_F(PlanTest, OptionsThatSayNothingAreRefused) {
  const auto refused = [this](std::vector<std::string> arguments, const std::string& part) {
    arguments.insert(arguments.begin(), {profiles(), "--ranks", "1"});
    const Outcome outcome = plan(std::move(arguments));
    EXPECT_EQ(outcome.code, 64) << part;
    EXPECT_THAT(outcome.errors, HasSubstr(part));
  };
  for (const char* option : {"--cv", "--duration", "--seed"}) refused({"--known", "3", option, "2"}, option);
  refused({"--trace", "t", "--trace-format", "mooncake", "--cv", "2"}, "--cv");
  refused({"--model", "a=1", "--skew", "1"}, "--skew");
  refused({"--model", "a=nan", "--swap", "off"}, "--model 'a': the rate is nan");
  refused({"--rate", "1", "--objective", "latency", "--slo", "1"}, "--slo: --objective latency has no use for it");
  refused({"--rate", "1", "--objective", "makespan", "--slo-scale", "1"}, "--slo-scale: --objective makespan");
  refused({"--rate", "1", "--swap", "off", "--host-memory", "1GB"}, "--host-memory: --swap off has no use for it");
  refused({"--rate", "1", "--swap", "off", "--link-gbps", "1"}, "--link-gbps: --swap off");
  refused({"--rate", "1", "--swap", "off", "--page-size", "1MB"}, "--page-size: --swap off");
  refused({"--rate", "1", "--swap", "off", "--ranks-per-node", "1"}, "--ranks-per-node: --swap off");
  refused({"--rate", "1", "--rescore", "0", "--max-seqs", "1"}, "--max-seqs: nothing is played");
  refused({"--rate", "1", "--objective", "makespan", "--exact"}, "--exact: is for --known requests and --objective");
  refused({"--known", "3", "--exact"}, "--exact: is for --known requests and --objective makespan");
  refused({"--rate", "1", "--cv", "1000"}, "--cv: 1000 is not a number of 0.01 to 100");
  refused({"--rate", "1", "--cv", "nan"}, "--cv: nan is not a number of 0.01 to 100");
  refused({"--rate", "1e6", "--swap", "off"}, "about 6e+08 requests, expected at most 5e+07");
  refused({"--trace", "t", "--trace-format", "mooncake", "--trace-window", "-1"}, "--trace-window: -1");
  refused({"--rate", "1", "--arrivals", "even", "--cv", "2"}, "--cv: --arrivals even has no use for it");
  refused({"--rate", "1", "--arrivals", "even", "--seed", "2"}, "--seed: --arrivals even has no use for it");
  refused({"--rate", "1", "--shape", "2"}, "--shape: --arrivals gamma has no use for it");
  refused({"--rate", "1", "--state", "1=2"}, "--state: --arrivals gamma has no use for it");
  refused({"--known", "1", "--arrivals", "even"}, "--arrivals");
  refused({"--rate", "1", "--shares", "triangle", "--skew", "1"}, "--skew: --shares triangle has no use for it");
  refused({"--model", "a=1", "--shares", "triangle"}, "--shares");
  const auto trace_refused = [&](const std::string& format, std::vector<std::string> more, const std::string& part) {
    more.insert(more.begin(), {"--trace", "t", "--trace-format", format});
    refused(more, part);
  };
  for (const std::string format : {"azure-2019", "azure-2021", "servegen"}) {
    trace_refused(format, {"--skew", "1"},
                  "--skew: --trace-format " + format + " has no use for it: its requests have");
    trace_refused(format, {"--shares", "triangle"}, "--shares: --trace-format " + format);
  }
  for (const std::string format : {"azure-llm", "mooncake"}) {
    trace_refused(format, {"--trace-mapping", "blocks"}, "--trace-mapping: --trace-format " + format);
  }
  trace_refused("azure-2021", {"--seed", "1"}, "--seed: --trace-format azure-2021 has no use for it: the search sees");
  trace_refused("azure-2019", {"--trace-window", "60"}, "--trace-window: --trace-format azure-2019");
}

// A search of minutes would end in an error.
TEST_F(PlanTest, TheOutputIsLookedAtFirst) {
  const Outcome outcome = plan({profiles(), "--ranks", "2", "--trace", "/nowhere/t", "--trace-format", "mooncake",
                                "--output", "/nowhere/placement.json"});
  EXPECT_EQ(outcome.code, 73);
  EXPECT_THAT(outcome.errors, HasSubstr("'/nowhere/placement.json'"));
}

TEST_F(PlanTest, ATraceMayHaveANameThatIsNotUtf8) {
  const std::string trace = write("m\xff.jsonl", R"({"timestamp": 0, "input_length": 1, "output_length": 1}
{"timestamp": 1000, "input_length": 1, "output_length": 1})");
  const Outcome outcome = plan({profiles(), "--ranks", "1", "--trace", trace, "--trace-format", "mooncake", "--swap",
                                "off", "--output", file("placement.json")});
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(json::parse(read_file(file("placement.json")))["predicted"]["basis"], HasSubstr("m\xef\xbf\xbd.jsonl"));
}

TEST_F(PlanTest, ASignalEndsTheSearchWithTheBestSoFar) {
  const Outcome outcome = run_until({"plan", profiles(), "--ranks", "64", "--rate", "300", "--duration", "600",
                                     "--swap", "off", "--output", file("placement.json")},
                                    "plan: ", SIGINT);
  ASSERT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_THAT(outcome.output, HasSubstr("stopped by SIGINT"));
  EXPECT_FALSE(json::parse(read_file(file("placement.json")))["groups"].empty());
}

TEST_F(PlanTest, WhatIsWrongIsNamed) {
  const auto refused = [this](std::vector<std::string> arguments, const std::string& part, int code = 64) {
    const Outcome outcome = plan(std::move(arguments));
    EXPECT_EQ(outcome.code, code) << part;
    EXPECT_THAT(outcome.errors, HasSubstr(part));
  };
  const std::string known = profiles(), poor = write("poor.json", R"({"models": [{"id": "a", "shapes": [
        {"stage_s": [0.1], "stage_bytes": ["2GB"]}]}]})");
  refused({"/nowhere.json", "--ranks", "1", "--rate", "1"}, "cannot read the profiles '/nowhere.json'", 66);
  refused({known, "--ranks", "1"}, "no requests: give --rate");
  refused({known, "--rate", "1"}, "--ranks");
  const auto arrivals_refused = [&](std::vector<std::string> more, const std::string& part) {
    more.insert(more.begin(), {known, "--ranks", "1", "--rate", "1", "--swap", "off", "--arrivals"});
    refused(more, part);
  };
  arrivals_refused({"sometimes"}, "--arrivals: sometimes");
  arrivals_refused({"pareto"}, "--arrivals pareto: --shape is not given");
  arrivals_refused({"pareto", "--shape", "1"}, "--shape: 1 of --arrivals pareto is not above 1");
  arrivals_refused({"weibull", "--shape", "nan"}, "--shape: nan is not a positive number");
  arrivals_refused({"mmpp", "--state", "1=1"}, "give --state SECONDS=RATE twice at least");
  for (const char* state : {"1", "=1", "1=", "0=1", "1=-1", "1=inf", "a=1", "1=1=1"}) {
    arrivals_refused({"mmpp", "--state", "1=1", "--state", state}, "--state '" + std::string(state) + "': must be");
  }
  arrivals_refused({"mmpp", "--state", "1=0", "--state", "1=0"}, "the sum of the states' rates");
  refused({known, "--ranks", "1", "--rate", "-1"}, "--rate: -1 is not a positive number");
  refused({known, "--ranks", "1", "--rate", "1", "--known", "3"}, "--known");
  refused({known, "--ranks", "1", "--trace", "t"}, "--trace-format");
  refused({known, "--ranks", "1", "--trace", "/nowhere", "--trace-format", "mooncake"}, "the trace '/nowhere'", 66);
  refused({known, "--ranks", "1", "--model", "z=1", "--swap", "off"}, "--model 'z': the profiles");
  refused({known, "--ranks", "1", "--model", "a=1", "--model", "a=2", "--swap", "off"}, "'a'");
  refused({known, "--ranks", "1", "--rate", "1"}, "neither --host-memory nor the profiles' machine.host_memory");
  refused({known, "--ranks", "1", "--rate", "1", "--host-memory", "1GB"}, "neither --link-gbps");
  refused({known, "--ranks", "1", "--rate", "1", "--host-memory", "lots"}, "--host-memory: ");
  refused({poor, "--ranks", "1", "--rate", "1", "--swap", "off"}, "neither --device-memory");
  refused({known, "--ranks", "64", "--known", "9", "--objective", "makespan", "--exact", "--swap", "off"},
          "placements of 9 requests are too many to look at");
  refused({known, "--ranks", "1", "--rate", "1", "--swap", "off", "--device-memory", "1GB"}, "no model fits", 78);
  refused({known, "--ranks", "1", "--rate", "1", "--swap", "off", "--output", "/nowhere/p.json"}, "/nowhere", 73);
}

}  // namespace
}  // namespace computron::test
