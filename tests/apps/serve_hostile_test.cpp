// Whatever is in the files: hostile request lines, models with NaN in them, and checkpoints that take their parser down
// cost what they must and nothing else.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tests/apps/hostile_lines.h"
#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

const TinyModel kSmall{.layers = 1, .heads = 2, .head_dim = 16, .ffn = 32, .vocab = 128, .seed = 41};

void write_text(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// What a result says apart from the line it belongs to: its custom_id and, in place of the numbers of the line, "".
std::string comparable(json line) {
  line["id"] = line["response"]["request_id"] = "";
  if (line["response"]["body"].is_object()) line["response"]["body"]["id"] = "";
  return line.dump();
}

class HostileLines : public ::testing::Test {
 protected:
  HostileLines() { write_tiny_checkpoint(folder_ / "small.h5", kSmall); }

  // The result lines of a job over a request file of this text.
  std::vector<json> results_of(const std::string& name, const std::string& text) {
    write_text(folder_ / name, text);
    const ServeJob job{.models = {{"small", folder_ / "small.h5"}},
                       .requests = folder_ / name,
                       .more = {"--max-line-bytes", std::to_string(kHostileLineBytes)},
                       .output = folder_ / (name + ".out")};
    const Served served = RunningServe(job, folder_).finish(1200);
    EXPECT_EQ(served.job.exit_code, 0) << served.job.errors;
    return served.results.lines();
  }

  // Exactly one result for each line, with its code; the healthy ones as in a run without the others.
  void expect_bad_lines_cost_only_themselves(int lines) {
    const HostileFile file = hostile_file(lines, "small", 1234);
    std::multiset<std::string> healthy;
    std::set<std::uint64_t> seen;
    for (const json& line : results_of("hostile.jsonl", file.text)) {
      const std::string id = line.at("id");
      const std::uint64_t number = std::stoull(id.substr(id.rfind('_') + 1));
      ASSERT_TRUE(file.codes.contains(number) && seen.insert(number).second) << line;
      const std::string code = line.at("error").is_null() ? "" : line.at("error").at("code");
      EXPECT_EQ(code, file.codes.at(number)) << line;
      if (code.empty()) healthy.insert(comparable(line));
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(lines));
    std::multiset<std::string> undisturbed;
    for (const json& line : results_of("healthy.jsonl", file.healthy)) undisturbed.insert(comparable(line));
    EXPECT_TRUE(healthy == undisturbed) << healthy.size() << " and " << undisturbed.size() << " results";
    fmt::print("{} lines, {} of them bad\n", lines, seen.size() - healthy.size());
  }

  TemporaryFolder folder_;
};

TEST_F(HostileLines, CostOnlyThemselves) { expect_bad_lines_cost_only_themselves(1500); }

// Not JSONL at all: an error for every line, as for any other, and the job is done.
TEST_F(HostileLines, AFileThatIsSomethingElse) {
  std::string text;
  for (int i = 0; i < 1200; ++i) text += fmt::format("{},{},{}\n", i, i * i, "a table");
  const std::vector<json> results = results_of("table.csv", text);
  EXPECT_EQ(results.size(), 1200u);
  for (const json& line : results) EXPECT_EQ(line.at("error").at("code"), "invalid_json");
}

TEST_F(HostileLines, DISABLED_HundredThousand) { expect_bad_lines_cost_only_themselves(100000); }

// Models with NaN in the embedding of one token, each beside a sound one of the same weights. What holds no such token
// comes out of both the same to the last bit: not even the cache that a NaN was in passes it on.
class Poisoned : public ::testing::Test {
 protected:
  static constexpr int kPoison = 77;
  static constexpr const char* kSound = "sound";
  static constexpr const char* kSick = "sick";

  void add_models(const ModelConfig& config, std::uint64_t seed) {
    write_random_checkpoint(folder_ / "sound.h5", config, DType::kF32, seed);
    write_poisoned_checkpoint(folder_ / "sick.h5", config, DType::kF32, seed, "embedding.tokens.weight", kPoison);
  }

  // A request to the sick model and, if it is healthy, the same to the sound one.
  void add(bool healthy, const std::string& url, json body) {
    const int number = count_++;
    for (const char* model : {kSick, kSound}) {
      if (!healthy && model == kSound) continue;
      body["model"] = model;
      const std::string id = fmt::format("{}{}", model, number);
      job_.lines.push_back(json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}.dump());
    }
    (healthy ? healthy_ : sick_).push_back(number);
  }

  static json content(const Served& served, const char* model, int number) {
    const json& line = served.results.line(fmt::format("{}{}", model, number));
    json body = line.at("response").at("body");
    if (body.is_null()) return line.at("error");
    body.erase("id");
    body.erase("model");
    return body;
  }

  void expect_only_the_sick_end(int tp, int pp) {
    SCOPED_TRACE(fmt::format("tp {} pp {}", tp, pp));
    job_.tp = tp;
    job_.pp = pp;
    job_.models = {{kSound, folder_ / "sound.h5"}, {kSick, folder_ / "sick.h5"}};
    const Served served = serve_ok(job_, folder_);
    for (const int number : sick_) {
      const json& line = served.results.line(fmt::format("{}{}", kSick, number));
      EXPECT_EQ(line.at("error").value("code", ""), "numerical_error") << line;
      EXPECT_EQ(line.at("response").at("status_code"), 500);
    }
    for (const int number : healthy_) {
      EXPECT_EQ(content(served, kSick, number), content(served, kSound, number)) << job_.lines.at(0);
    }
    EXPECT_EQ(served.metrics.at("requests").at("failed"), sick_.size());
  }

  TemporaryFolder folder_;
  ServeJob job_{.device_memory = "1MiB", .more = {"--max-seqs", "8"}};
  int count_ = 0;
  std::vector<int> healthy_, sick_;
};

TEST_F(Poisoned, CompletionsEndAloneHoweverTheyAreDrawn) {
  TinyModel model = kSmall;
  model.layers = 2;
  model.heads = 4;
  model.tied_head = false;  // a tied one would put the NaN into every row of logits
  add_models(opt_config(model), model.seed);
  const std::vector<json> ways = {json::object(),
                                  {{"temperature", 0.9}, {"seed", 5}},
                                  {{"temperature", 0.9}, {"seed", 6}, {"top_p", 0.8}, {"top_k", 40}},
                                  {{"logprobs", 5}},
                                  {{"logprobs", 2}, {"echo", true}},
                                  {{"repetition_penalty", 1.3}, {"temperature", 0.5}, {"seed", 1}},
                                  {{"n", 2}, {"temperature", 1.0}, {"seed", 9}}};
  for (int i = 0; i < 42; ++i) {
    json body = ways[i % ways.size()];
    std::vector<int> prompt = random_prompt(model, 3 + 7 * (i % 4), i);
    std::replace(prompt.begin(), prompt.end(), kPoison, 78);
    const bool healthy = i % 3 != 0;
    if (!healthy) prompt[prompt.size() / 2] = kPoison;
    body.update({{"prompt", prompt}, {"max_tokens", 3}, {"logit_bias", {{std::to_string(kPoison), -100}}}});
    if (i % 2 == 0 && body.value("temperature", 0.0) == 0) body.erase("logit_bias");  // the plain greedy path too
    add(healthy, "/v1/completions", body);
  }
  expect_only_the_sick_end(1, 1);
  job_.more.push_back("--share-prefixes");
  expect_only_the_sick_end(2, 2);
}

TEST_F(Poisoned, EncodersInputsToo) {
  add_models(ModelConfig::from_hf_json(
                 R"({"model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 48,
                     "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 100, "vocab_size": 131,
                     "max_position_embeddings": 64, "type_vocab_size": 2, "id2label": {"0": "bad", "1": "good"}})"),
             21);
  for (int i = 0; i < 12; ++i) {
    const bool healthy = i % 3 != 0;
    const std::vector<int> plain = {4, 5, 6 + i}, poisoned = {4, kPoison, 6};
    const char* url = i % 2 == 0 ? "/v1/embeddings" : "/classify";
    add(healthy, url, {{"input", healthy ? plain : poisoned}});
    add(healthy, url, {{"input", json::array({plain, healthy ? plain : poisoned})}});
  }
  expect_only_the_sick_end(1, 1);
  expect_only_the_sick_end(2, 1);
}

// A copy of the program beside a helper that does what a hostile checkpoint may make HDF5 do.
TEST(HostileCheckpoint, TakesItsParserDownAndNobodyElse) {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "small.h5", kSmall);
  fs::copy_file(served_program(), folder / "computron");
  write_text(folder / "computron-checkpoint-index", "#!/bin/sh\nkill -SEGV $$\n");
  fs::permissions(folder / "computron-checkpoint-index", fs::perms::owner_all);
  const ServeJob job{.tp = 2,
                     .models = {{"small", folder / "small.h5"}},
                     .lines = {completion_line("r", "small", {1, 2}, 4)},
                     .program = folder / "computron"};
  const Served served = RunningServe(job, folder).finish(failing_limit_s());
  EXPECT_EQ(served.job.exit_code, 65);
  ASSERT_EQ(served.job.own_lines().size(), 1u) << served.job.errors;
  EXPECT_THAT(served.job.own_lines()[0],
              HasSubstr((folder / "small.h5").string() + ": rejected by parser (signal 11)"));
}

}  // namespace
}  // namespace computron::test
