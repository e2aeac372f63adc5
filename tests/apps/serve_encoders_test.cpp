// Encoders beside a decoder, from a mixed request file to results: every mesh gives the same up to rounding, and on one
// mesh neither the batch nor swapping changes a bit. That the numbers are the families' is tested with the fixtures.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

using nlohmann::json;

const std::filesystem::path kVit = std::filesystem::path(COMPUTRON_FIXTURES) / "vit";
const TinyModel kOpt{.layers = 2, .heads = 4, .head_dim = 16, .ffn = 96, .vocab = 128, .seed = 11};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

ModelConfig bert_config() {
  return ModelConfig::from_hf_json(R"({"model_type": "bert", "architectures": ["BertForSequenceClassification"],
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 100, "vocab_size": 131,
    "max_position_embeddings": 64, "type_vocab_size": 2, "id2label": {"0": "bad", "1": "good", "2": "odd"}})");
}

ModelConfig vit_config() {
  return ModelConfig::from_hf_json(text_of(kVit / "config.json"), std::nullopt,
                                   text_of(kVit / "preprocessor_config.json"));
}

class ServeEncoders : public ::testing::Test {
 protected:
  ServeEncoders() {
    write_tiny_checkpoint(folder_ / "opt.h5", kOpt);
    write_random_checkpoint(folder_ / "bert.h5", bert_config(), DType::kF32, 21);
    write_random_checkpoint(folder_ / "vit.h5", vit_config(), DType::kF32, 22);
    for (const char* name : {"image.png", "image.jpg", "tall.png"}) {
      std::filesystem::copy_file(kVit / name, folder_ / name);
    }
  }

  void add(const std::string& id, const std::string& url, const json& body) {
    lines_.push_back(json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}.dump());
  }
  void embed(const std::string& id, const json& input, json more = json::object()) {
    more.update({{"model", "bert"}, {"input", input}});
    add(id, "/v1/embeddings", more);
  }

  // Images lie beside the request file.
  Served run(ServeJob job) {
    for (const char* id : {"opt", "bert", "vit"}) job.models.push_back({id, folder_ / (std::string(id) + ".h5")});
    job.lines = lines_;
    job.requests = folder_ / "requests.jsonl";
    write_lines(job.requests, lines_);
    return serve_ok(job, folder_);
  }

  std::vector<std::string> lines_;
  TemporaryFolder folder_;
};

json body_of(const Served& served, const std::string& id) {
  EXPECT_EQ(served.results.error_code(id), "") << served.results.line(id);
  return served.results.line(id).at("response").at("body");
}

std::vector<float> vector_of(const Served& served, const std::string& id, int index = 0) {
  return body_of(served, id).at("data").at(index).at("embedding").get<std::vector<float>>();
}

std::vector<double> probabilities(const Served& served, const std::string& id, int index = 0) {
  return body_of(served, id).at("data").at(index).at("probs").get<std::vector<double>>();
}

// The numbers of two results alike, everything else the same.
void expect_alike(const json& a, const json& b, double tolerance) {
  ASSERT_EQ(a.type(), b.type());
  if (a.is_number_float()) {
    EXPECT_NEAR(a.get<double>(), b.get<double>(), tolerance);
  } else if (a.is_structured()) {
    ASSERT_EQ(a.size(), b.size());
    for (auto x = a.begin(), y = b.begin(); x != a.end(); ++x, ++y) expect_alike(*x, *y, tolerance);
  } else {
    EXPECT_EQ(a, b);
  }
}

void expect_distribution(const Served& served, const std::string& id, int index,
                         const std::vector<std::string>& names) {
  const std::vector<double> probs = probabilities(served, id, index);
  ASSERT_EQ(probs.size(), names.size());
  double sum = 0;
  for (const double p : probs) sum += p;
  EXPECT_NEAR(sum, 1, 1e-6);
  const auto best = std::max_element(probs.begin(), probs.end()) - probs.begin();
  const json item = body_of(served, id).at("data").at(index);
  EXPECT_EQ(item.at("label"), names[static_cast<std::size_t>(best)]);
  EXPECT_EQ(item.at("index"), index);
}

TEST_F(ServeEncoders, ServeBesideADecoderOnEveryMesh) {
  const std::vector<std::vector<int>> inputs = {random_prompt(kOpt, 9, 1), random_prompt(kOpt, 64, 2), {5}};
  std::vector<std::vector<int>> segments;
  for (const auto& input : inputs) segments.emplace_back(input.size(), 1);
  for (int i = 0; i < 3; ++i) {
    embed(fmt::format("one{}", i), inputs[static_cast<std::size_t>(i)]);
    lines_.push_back(completion_line(fmt::format("opt{}", i), "opt", inputs[0], 5 + i));
  }
  embed("all", inputs);
  embed("base64", inputs[0], {{"encoding_format", "base64"}});
  embed("segments", inputs, {{"token_type_ids", segments}});
  add("class", "/classify", {{"model", "bert"}, {"input", inputs}});
  for (const std::string name : {"image.png", "image.jpg", "tall.png"}) {
    add(name, "/classify", {{"model", "vit"}, {"image", name}});
  }
  const std::string zeros(4 * 3 * 32 * 32 / 3 * 4, 'A');  // in base64
  add("tensor", "/classify", {{"model", "vit"}, {"image", {{"shape", {3, 32, 32}}, {"data", zeros}}}});
  add("vector", "/v1/embeddings", {{"model", "vit"}, {"image", "image.png"}});
  add("no image", "/classify", {{"model", "vit"}, {"image", "none.png"}});
  add("no decoder", "/v1/completions", {{"model", "bert"}, {"prompt", inputs[0]}});
  add("no encoder", "/v1/embeddings", {{"model", "opt"}, {"input", inputs[0]}});

  const Served served = run({});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(vector_of(served, "all", i), vector_of(served, fmt::format("one{}", i))) << "alone and in a batch, " << i;
    expect_distribution(served, "class", i, {"bad", "good", "odd"});
  }
  EXPECT_EQ(vector_of(served, "one0").size(), 48u);
  EXPECT_NE(vector_of(served, "one0"), vector_of(served, "one1"));
  EXPECT_NE(vector_of(served, "segments"), vector_of(served, "all"));
  EXPECT_EQ(body_of(served, "all").at("usage").at("prompt_tokens"), 74);
  EXPECT_EQ(body_of(served, "base64").at("data").at(0).at("embedding").get<std::string>().size(), 48u * 4 / 3 * 4);
  for (const std::string name : {"image.png", "image.jpg", "tall.png", "tensor"}) {
    expect_distribution(served, name, 0, {"cat", "dog", "fish", "horse", "owl"});
  }
  EXPECT_NE(probabilities(served, "image.png"), probabilities(served, "tall.png"));
  EXPECT_EQ(vector_of(served, "vector").size(), 40u);
  for (const std::string id : {"no image", "no decoder", "no encoder"}) {
    EXPECT_EQ(served.results.error_code(id), "invalid_request");
  }
  EXPECT_EQ(served.metrics.at("models").at("bert").at("tokens").at("prompt"), 4 * 74 + 9);
  EXPECT_EQ(served.metrics.at("models").at("bert").at("tokens").at("generated"), 0);
  EXPECT_EQ(served.metrics.at("models").at("bert").at("ttft_s"),
            served.metrics.at("models").at("bert").at("latency_s"));

  // Steps of one sequence, as long as the longest input whatever is asked for, and models that swap.
  const Served narrow = run({.device_memory = "576KiB", .more = {"--max-batch-tokens", "8", "--max-seqs", "1"}});
  EXPECT_GT(narrow.metrics.at("swaps").at("count").get<int>(), 2);
  for (const json& line : served.results.lines()) {
    EXPECT_EQ(narrow.results.line(line.at("custom_id")), line) << "not a bit may differ";
  }
  for (const auto& [tp, pp] : {std::pair(2, 1), std::pair(1, 2)}) {
    SCOPED_TRACE(fmt::format("tp {} pp {}", tp, pp));
    const Served other = run({.tp = tp, .pp = pp});
    for (const json& line : served.results.lines()) {
      if (line.at("custom_id") == "base64") continue;
      expect_alike(other.results.line(line.at("custom_id")), line, 1e-5);
    }
  }
}

}  // namespace
}  // namespace computron::test
