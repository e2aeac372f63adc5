// Guided answers of whole jobs: what they are, the same in any company and on every mesh, and after a kill.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <regex>
#include <thread>

#include "tests/apps/serve_job.h"
#include "tests/text/text_support.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::vector<CarriedFile> carried(const std::string& kind) {
  std::vector<CarriedFile> files;
  for (const auto& [name, content] : tokenizer_files(kind)) files.push_back({name, content});
  return files;
}

// What is asked for, and what says that an answer is that.
struct Asked {
  json fields;
  std::string answer;  // an expression
};
const std::string kName = R"("[^"\\]{1,4}")";
const std::map<std::string, Asked>& asked() {
  static const std::map<std::string, Asked> all = {
      {"object",
       {{{"guided_json", json::parse(R"({"type":"object","properties":{"a":{"type":"integer","minimum":10,"maximum":99},
            "b":{"type":"string","pattern":"^[^\"\\\\]{1,4}$"}},"required":["a","b"]})")}},
        R"(\{\s*"a":\s*[1-9][0-9],\s*"b":\s*"[^"\\]+"\s*\})"}},
      {"format",
       {{{"response_format",
          {{"type", "json_schema"},
           {"json_schema",
            {{"schema", {{"type", "array"}, {"items", {{"type", "boolean"}}}, {"minItems", 3}, {"maxItems", 4}}}}}}}},
        R"(\[\s*(true|false)(,\s*(true|false)){2,3}\s*\])"}},
      {"regex", {{{"guided_regex", "(foo|ba[rz]){2,4}-[0-9]{3}"}}, "(foo|ba[rz]){2,4}-[0-9]{3}"}},
      {"choice", {{{"guided_choice", {"positive", "negative", "new", "no"}}}, "positive|negative|new|no"}},
      {"outputs", {{{"structured_outputs", {{"choice", {"alpha", "beta"}}}}}, "alpha|beta"}}};
  return all;
}

class ServeGuided : public ::testing::Test {
 protected:
  ServeGuided() {
    write_random_checkpoint(folder_ / "text.h5", opt_config(kModel), DType::kF32, 5, "", carried("llama3"));
    write_random_checkpoint(folder_ / "plain.h5", opt_config(kModel), DType::kF32, 6);
  }

  // Each kind of request a few times, greedy and drawn.
  std::vector<std::string> lines(int seeds, const std::vector<std::string>& kinds = {"object", "format", "regex",
                                                                                     "choice", "outputs"}) {
    std::vector<std::string> all;
    for (const std::string& kind : kinds) {
      for (int seed = 0; seed < seeds; ++seed) {
        json body = asked().at(kind).fields;
        body.update({{"model", "text"}, {"prompt", {5 + seed, 6, 7}}, {"max_tokens", 60}, {"logprobs", 1}});
        if (seed > 0) body.update({{"temperature", 1.2}, {"seed", seed}, {"top_p", seed % 3 == 0 ? 0.9 : 1}, {"n", 2}});
        all.push_back(line(fmt::format("{} {}", kind, seed), body));
      }
    }
    return all;
  }
  static std::string line(const std::string& id, const json& body) {
    return json{{"custom_id", id}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}}.dump();
  }
  ServeJob job(int tp, int pp, std::vector<std::string> lines) const {
    return {.tp = tp,
            .pp = pp,
            .models = {{"text", folder_ / "text.h5"}, {"plain", folder_ / "plain.h5"}},
            .lines = std::move(lines)};
  }
  static json choices(const Served& served, const std::string& id) {
    return served.results.line(id).at("response").at("body").at("choices");
  }
  static void expect_as_asked(const Served& served, int seeds) {
    int ended = 0;
    for (const auto& [kind, what] : asked()) {
      for (int seed = 0; seed < seeds; ++seed) {
        for (const json& choice : choices(served, fmt::format("{} {}", kind, seed))) {
          if (choice.at("finish_reason") != "stop") continue;
          ++ended;
          const auto text = choice.at("text").get<std::string>();
          EXPECT_TRUE(std::regex_match(text, std::regex(what.answer))) << kind << ": " << text;
        }
      }
    }
    EXPECT_GE(ended, 4 * seeds);
  }

  static inline const TinyModel kModel{
      .layers = 2, .heads = 4, .head_dim = 8, .ffn = 64, .vocab = 1180, .max_positions = 128};
  TemporaryFolder folder_;
};

TEST_F(ServeGuided, AnswersAreWhatIsAskedForOnEveryMesh) {
  constexpr int kSeeds = 4;
  const Served one = serve_ok(job(1, 1, lines(kSeeds)), folder_);
  expect_as_asked(one, kSeeds);
  for (const auto& [tp, pp] : {std::pair{2, 1}, std::pair{1, 2}}) {
    SCOPED_TRACE(fmt::format("tp {} pp {}", tp, pp));
    const Served other = serve_ok(job(tp, pp, lines(kSeeds)), folder_);
    expect_as_asked(other, kSeeds);
    for (const auto& [kind, what] : asked()) {
      for (int seed = 0; seed < kSeeds; ++seed) {
        const std::string id = fmt::format("{} {}", kind, seed);
        const json mine = choices(one, id), theirs = choices(other, id);
        for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_EQ(mine[i].at("text"), theirs[i].at("text")) << id;
      }
    }
  }
}

// A batch of all of them, and one at a time.
TEST_F(ServeGuided, CompanyChangesNothing) {
  constexpr int kSeeds = 3;
  const Served together = serve_ok(job(1, 1, lines(kSeeds)), folder_);
  ServeJob alone = job(1, 1, lines(kSeeds));
  alone.more = {"--max-seqs", "1"};
  const Served apart = serve_ok(alone, folder_);
  for (const auto& [kind, what] : asked()) {
    for (int seed = 0; seed < kSeeds; ++seed) {
      const std::string id = fmt::format("{} {}", kind, seed);
      EXPECT_EQ(choices(together, id), choices(apart, id)) << id;
    }
  }
}

// Short answers teach that answers are short; then long ones come, for whose caches there is no room together.
TEST_F(ServeGuided, WhatIsSetAsideGoesOnWhereItWas) {
  std::vector<std::string> all;
  const json items = {{"type", "string"}, {"minLength", 4}, {"maxLength", 6}};
  const json list = {{"type", "array"}, {"items", items}, {"minItems", 8}, {"maxItems", 9}};
  for (int i = 0; i < 24; ++i) {
    json body = {{"model", "text"}, {"prompt", {5 + i, 6}}, {"max_tokens", 100}, {"temperature", 1}, {"seed", i}};
    body.update(i < 12 ? json{{"guided_choice", {"a", "b"}}} : json{{"guided_json", list}});
    all.push_back(line(fmt::format("r{}", i), body));
  }
  ServeJob tight = job(1, 1, all);
  tight.device_memory = "576KiB";
  const Served roomy = serve_ok(job(1, 1, all), folder_), squeezed = serve_ok(tight, folder_);
  EXPECT_EQ(roomy.metrics.at("cache").at("set_asides"), 0);
  EXPECT_GT(squeezed.metrics.at("cache").at("set_asides"), 0);
  for (int i = 0; i < 24; ++i)
    EXPECT_EQ(choices(roomy, fmt::format("r{}", i)), choices(squeezed, fmt::format("r{}", i)));
}

TEST_F(ServeGuided, LogProbabilitiesAreTheModelsOwn) {
  const json common = {{"model", "text"}, {"prompt", {5, 6, 7}}, {"logprobs", 2}, {"max_tokens", 1}};
  json guided = common, free = common;
  guided["guided_choice"] = {"alpha", "beta"};
  const Served served = serve_ok(job(1, 1, {line("guided", guided), line("free", free)}), folder_);
  EXPECT_EQ(choices(served, "guided")[0].at("logprobs").at("top_logprobs"),
            choices(served, "free")[0].at("logprobs").at("top_logprobs"));
  EXPECT_LT(choices(served, "guided")[0].at("logprobs").at("token_logprobs")[0].get<double>(),
            choices(served, "free")[0].at("logprobs").at("token_logprobs")[0].get<double>());
}

TEST_F(ServeGuided, BadOnesCostOnlyThemselves) {
  const auto with = [](json more) {
    more.update({{"model", more.value("model", "text")}, {"prompt", {5, 6}}, {"max_tokens", 20}});
    return more;
  };
  const std::vector<std::string> lines = {line("good", with({{"guided_choice", {"alpha"}}})),
                                          line("keyword", with({{"guided_json", {{"not", true}}}})),
                                          line("endless", with({{"guided_regex", "(a{1000}){1000}"}})),
                                          line("plain", with({{"guided_regex", "a"}, {"model", "plain"}})),
                                          line("eos", with({{"guided_regex", "a"}, {"ignore_eos", true}}))};
  const Served served = serve_ok(job(2, 1, lines), folder_);
  EXPECT_EQ(served.results.choice("good").at("text"), "alpha");
  EXPECT_EQ(served.results.choice("good").at("finish_reason"), "stop");
  for (const char* id : {"keyword", "endless", "eos"})
    EXPECT_EQ(served.results.error_code(id), "invalid_parameter") << id;
  EXPECT_EQ(served.results.error_code("plain"), "invalid_request");
}

// As the table of bytes says.
TEST_F(ServeGuided, AJobWithoutMemoryForThemRefusesThemByName) {
  const json common = {{"model", "text"}, {"prompt", {5, 6}}, {"max_tokens", 2}};
  json guided = common;
  guided.update({{"guided_choice", {"alpha"}}, {"max_tokens", 20}});
  const std::vector<std::string> both = {line("guided", guided), line("free", common)};
  ServeJob job_without = job(1, 2, both);
  job_without.more = {"--guide-memory", "0"};
  job_without.quiet = false;
  const Served without = serve_ok(job_without, folder_);
  EXPECT_EQ(without.results.error_code("guided"), "invalid_parameter");
  EXPECT_EQ(without.results.line("guided").at("error").at("message"),
            "body.guided_choice: this job serves no guided answers (--guide-memory 0)");
  EXPECT_THAT(without.job.errors, HasSubstr("\nguided requests are refused: --guide-memory 0"));
  EXPECT_EQ(without.metrics.at("configuration").at("guide-memory"), "0 B");
  ServeJob job_with = job(1, 2, both);
  job_with.more = {"--guide-memory", "192MiB"};
  job_with.quiet = false;
  const Served with = serve_ok(job_with, folder_);
  EXPECT_EQ(with.results.choice("guided").at("text"), "alpha");
  EXPECT_EQ(choices(with, "free"), choices(without, "free"));
  EXPECT_EQ(with.metrics.at("configuration").at("guide-memory"), "192.00 MiB");
  constexpr double kMiB = 1 << 20, kVocabulary = 128 * 1180 / kMiB;  // of one model that has a tokenizer
  EXPECT_THAT(with.job.errors, ContainsRegex(fmt::format("stage 0 .x 1. +[0-9.]+ .iB +0 B ")));
  EXPECT_THAT(with.job.errors, ContainsRegex(fmt::format("stage 1 .x 1. +[0-9.]+ .iB +{:.2f} MiB", 192 + kVocabulary)));
}

// What was asked for is counted from the start, whether or not a request is guided.
TEST_F(ServeGuided, MemoryThatIsAskedForIsCounted) {
  ServeJob large = job(1, 1, {line("free", {{"model", "text"}, {"prompt", {5, 6}}, {"max_tokens", 2}})});
  large.more = {"--guide-memory", "100000TiB"};
  const Served refused = serve(large, folder_);
  EXPECT_EQ(refused.job.exit_code, 71) << refused.job.errors;
  EXPECT_THAT(refused.job.errors, HasSubstr("guides 100000.00 TiB, pool"));
}

TEST_F(ServeGuided, AKilledJobGoesOnToTheSameAnswers) {
  std::vector<std::string> all;
  for (int i = 0; i < 8; ++i) {
    for (std::string text : lines(3))
      all.push_back(text.replace(text.find("\"custom_id\":\"") + 13, 0, std::to_string(i)));
  }
  write_lines((folder_ / "requests.jsonl").string(), all);
  ServeJob undisturbed = job(2, 1, {});
  undisturbed.requests = (folder_ / "requests.jsonl").string();
  ServeJob killed = undisturbed;
  killed.output = (folder_ / "out.jsonl").string();
  ServeJob slow = killed;
  slow.more = {"--max-seqs", "1", "--policy", "fifo"};
  slow.device_memory = "256KiB";
  killed.more = {"--guide-memory", "192MiB"};  // which the journal does not depend on
  const fs::path partial = killed.output + ".partial";
  {
    RunningServe running(slow, folder_);
    std::error_code absent;
    while (running.mpi().running() && (fs::file_size(partial, absent) == 0 || absent)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ASSERT_TRUE(running.mpi().running()) << "it has ended before it could be killed";
    ASSERT_EQ(kill(running.mpi().rank_process(1), SIGKILL), 0);
    EXPECT_EQ(running.finish(failing_limit_s()).job.exit_code, 128 + SIGKILL);
  }
  const Served expected = serve(undisturbed, folder_), resumed = serve(killed, folder_);
  ASSERT_EQ(expected.job.exit_code, 0) << expected.job.errors;
  ASSERT_EQ(resumed.job.exit_code, 0) << resumed.job.errors;
  for (const std::string& text : all) {
    const auto id = json::parse(text).at("custom_id").get<std::string>();
    EXPECT_EQ(choices(expected, id), choices(resumed, id)) << id;
  }
}

}  // namespace
}  // namespace computron::test
