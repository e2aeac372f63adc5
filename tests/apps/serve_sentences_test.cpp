// Folders of sentence-transformers as `computron convert` reads them, served side by side: the embeddings are those
// that sentence-transformers computed (tests/fixtures/make_sentence.py), and those of decoders have the same bits
// whatever passes their inputs are cut into.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "tests/apps/serve_job.h"
#include "tests/runtime/family_measures.h"
#include "tests/support/beside.h"
#include "tests/support/family_fixture.h"
#include "tests/support/test_device.h"

namespace computron::test {
namespace {

using nlohmann::json;

const std::vector<std::string> kEncoders = {"bert-last",      "bge",    "distil-dense",    "e5-multilingual",
                                            "gte-modernbert", "minilm", "modernbert-mean", "roberta-mean"};
const std::vector<std::string> kEmbedders = {"llama-mean", "qwen3-embedding"};  // decoders

ServedFile served(const std::string& name) { return {name, beside_test("sentence") / (name + ".h5")}; }

std::string embedding_line(const std::string& id, const std::string& model, const json& input) {
  return json{
      {"custom_id", id}, {"method", "POST"}, {"url", "/v1/embeddings"}, {"body", {{"model", model}, {"input", input}}}}
      .dump();
}

// Each input of each folder, then all of a folder's in one line, the folders taking turns.
std::vector<std::string> lines_of(const std::vector<std::string>& names) {
  std::vector<std::string> lines;
  for (int i = 0; i < 4; ++i) {
    for (const std::string& name : names) {
      const auto tokens = FamilyFixture::of_sentences(name).tokens(fmt::format("prompt.{}", i));
      lines.push_back(embedding_line(fmt::format("{}.{}", name, i), name, tokens));
    }
  }
  for (const std::string& name : names) {
    json all = json::array();
    for (int i = 0; i < 4; ++i) all.push_back(FamilyFixture::of_sentences(name).tokens(fmt::format("prompt.{}", i)));
    lines.push_back(embedding_line(name, name, all));
  }
  return lines;
}

std::vector<float> embedding_in(const Results& results, const std::string& id, int index = 0) {
  EXPECT_EQ(results.error_code(id), "") << results.line(id);
  return results.line(id).at("response").at("body").at("data").at(index).at("embedding").get<std::vector<float>>();
}

double length_of(const std::vector<float>& vector) {
  double squares = 0;
  for (const float value : vector) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

void expect_embeddings(const Results& results, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const FamilyFixture fixture = FamilyFixture::of_sentences(name);
    for (int i = 0; i < 4; ++i) {
      const auto expected = fixture.read<float>(fmt::format("pooled.{}", i));
      const std::vector<float> actual = embedding_in(results, fmt::format("{}.{}", name, i));
      ASSERT_EQ(actual.size(), expected.size());
      EXPECT_GE(cosine(actual, expected), 1 - 1e-6) << name << ", input " << i;
      EXPECT_NEAR(length_of(actual) / length_of(expected), 1, 1e-5) << name << ", input " << i;
      EXPECT_EQ(embedding_in(results, name, i), actual) << "alone and in a batch: " << name << ", input " << i;
    }
  }
}

class ServeSentences : public ::testing::Test {
 protected:
  Served run(ServeJob job, const std::vector<std::string>& names) {
    job.lines = lines_of(names);
    for (const std::string& name : names) job.models.push_back(served(name));
    return serve_ok(job, folder_);
  }

  TemporaryFolder folder_;
};

TEST_F(ServeSentences, GiveTheEmbeddingsOfSentenceTransformers) {
  std::vector<std::string> names = kEncoders;
  names.insert(names.end(), kEmbedders.begin(), kEmbedders.end());
  for (const auto& [tp, pp] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
    SCOPED_TRACE(fmt::format("tp {} pp {}", tp, pp));
    const Served served = run({.tp = tp, .pp = pp, .device_memory = "1536KiB"}, names);
    expect_embeddings(served.results, names);
    EXPECT_GE(served.metrics.at("swaps").at("count").get<int>(), static_cast<int>(names.size()));
  }
}

// Of the last token's row, behind a prefix that another input has computed, and of the mean, which has no prefix. Where
// nobody waits models take turns with inputs half computed, whose caches are offloaded, or forgotten.
TEST_F(ServeSentences, ADecodersInputGivesTheSameBitsInAnyChunks) {
  if (!on_cpu()) GTEST_SKIP() << "on a GPU rows of few tokens are attended by another kernel";
  for (const auto& [tp, pp] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
    SCOPED_TRACE(fmt::format("tp {} pp {}", tp, pp));
    const Served whole = run({.tp = tp, .pp = pp}, kEmbedders);
    expect_embeddings(whole.results, kEmbedders);
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{"--max-batch-tokens", "16"},
          {"--max-batch-tokens", "7", "--share-prefixes"},
          {"--max-batch-tokens", "7", "--max-wait", "0.001"},
          {"--max-batch-tokens", "7", "--max-wait", "0.001", "--host-cache", "0"}}) {
      const Served cut =
          run({.tp = tp, .pp = pp, .device_memory = "448KiB", .page_size = "32KiB", .more = more}, kEmbedders);
      for (const json& line : whole.results.lines()) {
        EXPECT_EQ(cut.results.line(line.at("custom_id")), line) << "not a bit may differ";
      }
      EXPECT_GT(cut.metrics.at("steps").at("passes").get<int>(), whole.metrics.at("steps").at("passes").get<int>());
      const json& models = cut.metrics.at("models");
      EXPECT_EQ(models.at("qwen3-embedding").at("cache").at("shared_tokens") > 0, more.back() == "--share-prefixes");
      EXPECT_EQ(models.at("llama-mean").at("cache").at("shared_tokens"), 0) << "a mean needs every row";
    }
  }
}

TEST_F(ServeSentences, AnEmbedderCompletesNothing) {
  ServeJob job{.models = {served("qwen3-embedding"), served("minilm")},
               .lines = {completion_line("a", "qwen3-embedding", std::vector<int>{5, 6}, 3),
                         embedding_line("b", "qwen3-embedding", std::vector<int>{5, 6})}};
  const Served served = serve_ok(job, folder_);
  EXPECT_EQ(served.results.error_code("a"), "invalid_request");
  EXPECT_EQ(embedding_in(served.results, "b").size(), 48u);
}

}  // namespace
}  // namespace computron::test
