// Folders of sentence-transformers as `computron convert` reads them, served side by side: the embeddings are those
// that sentence-transformers computed (tests/fixtures/make_sentence.py), and those of decoders have the same bits
// whatever passes their inputs are cut into.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

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

// `same_bits`: whether an input has to have those alone that it has in a batch.
void expect_embeddings(const Results& results, const std::vector<std::string>& names, bool same_bits = true) {
  for (const std::string& name : names) {
    const FamilyFixture fixture = FamilyFixture::of_sentences(name);
    for (int i = 0; i < 4; ++i) {
      const auto expected = fixture.read<float>(fmt::format("pooled.{}", i));
      const std::vector<float> actual = embedding_in(results, fmt::format("{}.{}", name, i));
      ASSERT_EQ(actual.size(), expected.size());
      EXPECT_GE(cosine(actual, expected), 1 - 1e-6) << name << ", input " << i;
      EXPECT_NEAR(length_of(actual) / length_of(expected), 1, 1e-5) << name << ", input " << i;
      const std::vector<float> batched = embedding_in(results, name, i);
      EXPECT_GE(cosine(batched, expected), 1 - 1e-6) << name << ", input " << i << " of a batch";
      if (same_bits) {
        EXPECT_EQ(batched, actual) << "alone and in a batch: " << name << ", input " << i;
      }
    }
  }
}

class ServeSentences : public ::testing::Test {
 protected:
  ServeSentences() { write_tiny_checkpoint(folder_ / "opt.h5", {.seed = 11}); }

  Served run(ServeJob job, const std::vector<std::string>& names) {
    const std::vector<std::string> lines = lines_of(names);
    job.lines.insert(job.lines.end(), lines.begin(), lines.end());
    for (const std::string& name : names) job.models.push_back(served(name));
    return serve_ok(job, folder_);
  }

  TemporaryFolder folder_;
};

// A model that completes, between those that do not, and its answers to `names.size()` prompts.
void add_completions(ServeJob& job, const std::vector<std::string>& names, const TemporaryFolder& folder) {
  job.models.push_back({"opt", folder / "opt.h5"});
  for (std::size_t i = 0; i < names.size(); ++i) {
    job.lines.push_back(completion_line(fmt::format("opt.{}", i), "opt", {5, 6, static_cast<int>(i)}, 8));
  }
}

// Swapped in and out, beside a model that completes, and with everything resident: the same lines.
TEST_F(ServeSentences, GiveTheEmbeddingsOfSentenceTransformers) {
  std::vector<std::string> names = kEncoders;
  names.insert(names.end(), kEmbedders.begin(), kEmbedders.end());
  for (const auto& [tp, pp] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
    SCOPED_TRACE(fmt::format("tp {} pp {}", tp, pp));
    ServeJob job{.tp = tp, .pp = pp, .device_memory = tp * pp == 1 ? "1536KiB" : "896KiB"};
    add_completions(job, names, folder_);
    job.more = {"--max-seqs", "1", "--policy", "fifo"};
    const Served swapped = run(job, names);
    expect_embeddings(swapped.results, names, /*same_bits=*/on_cpu());
    const int models = static_cast<int>(names.size()) + 1;
    EXPECT_GT(swapped.metrics.at("swaps").at("count").get<int>(), 2 * models) << "each comes again and again";
    job.device_memory = "64MiB";
    job.more.clear();
    const Served resident = run(job, names);
    expect_embeddings(resident.results, names, /*same_bits=*/on_cpu());
    EXPECT_EQ(resident.metrics.at("swaps").at("count").get<int>(), models) << "each comes once";
    if (!on_cpu()) continue;  // on a GPU rows of few tokens are attended by another kernel
    for (const json& line : resident.results.lines()) {
      EXPECT_EQ(swapped.results.line(line.at("custom_id")), line) << "not a bit may differ";
    }
  }
}

// Of the last token's row, behind a prefix that another input has computed, and of the mean, which has no prefix. Where
// nobody waits models take turns with inputs half computed, whose caches are offloaded, or forgotten.
TEST_F(ServeSentences, ADecodersInputGivesTheSameBitsInAnyChunks) {
  for (const auto& [tp, pp] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
    SCOPED_TRACE(fmt::format("tp {} pp {}", tp, pp));
    const Served whole = run({.tp = tp, .pp = pp}, kEmbedders);
    expect_embeddings(whole.results, kEmbedders, /*same_bits=*/on_cpu());
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{"--max-batch-tokens", "16"},
          {"--max-batch-tokens", "7", "--share-prefixes"},
          {"--max-batch-tokens", "7", "--max-wait", "0.001"},
          {"--max-batch-tokens", "7", "--max-wait", "0.001", "--host-cache", "0"}}) {
      const Served cut =
          run({.tp = tp, .pp = pp, .device_memory = "448KiB", .page_size = "32KiB", .more = more}, kEmbedders);
      expect_embeddings(cut.results, kEmbedders, /*same_bits=*/on_cpu());
      for (const json& line : whole.results.lines()) {
        if (!on_cpu()) break;  // on a GPU rows of few tokens are attended by another kernel
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

// --- Texts, as they are published to be used
// --------------------------------------------------------------------------

json said(const std::string& name) {
  const std::filesystem::path families = COMPUTRON_FAMILY_FIXTURES;
  std::ifstream file(families.parent_path() / "sentence" / name / "said.json");
  return json::parse(file);
}

std::string line_of(const std::string& id, const std::string& url, const json& body) {
  return json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}.dump();
}

json body_in(const Results& results, const std::string& id) {
  EXPECT_EQ(results.error_code(id), "") << results.line(id);
  return results.line(id).at("response").at("body");
}

void expect_close(const std::vector<float>& actual, const std::vector<float>& expected, const std::string& where) {
  ASSERT_EQ(actual.size(), expected.size()) << where;
  EXPECT_GE(cosine(actual, expected), 1 - 1e-6) << where;
  EXPECT_NEAR(length_of(actual) / length_of(expected), 1, 1e-5) << where;
}

// Named like the tensors of the fixtures, ".query" behind a folder that was asked with that prompt.
void add_texts(const std::string& name, std::vector<std::string>& lines) {
  const json sentences = said(name);
  json body{{"model", name}, {"input", sentences.at("texts")}};
  lines.push_back(line_of(name, "/v1/embeddings", body));
  for (const auto& [prompt, text] : sentences.at("prompts").items()) {
    body["input_type"] = prompt;
    lines.push_back(line_of(fmt::format("{}.{}", name, prompt), "/v1/embeddings", body));
  }
}

void expect_texts(const Results& results, const std::string& name) {
  const FamilyFixture fixture = FamilyFixture::of_sentences(name);
  std::vector<std::string> kinds = {""};
  const json sentences = said(name);
  for (const auto& [prompt, text] : sentences.at("prompts").items()) kinds.push_back("." + prompt);
  for (const std::string& kind : kinds) {
    for (int i = 0; i < 4; ++i) {
      const std::string where = fmt::format("{}{}, text {}", name, kind, i);
      expect_close(embedding_in(results, name + kind, i), fixture.read<float>(fmt::format("pooled{}.{}", kind, i)),
                   where);
    }
  }
  std::size_t tokens = 0;
  for (int i = 0; i < 4; ++i) tokens += fixture.tokens(fmt::format("prompt.{}", i)).size();
  EXPECT_EQ(body_in(results, name).at("usage").at("prompt_tokens"), tokens) << name;
}

TEST_F(ServeSentences, TextsWithPromptsCutAsSentenceTransformersDoes) {
  std::vector<std::string> names = kEncoders;
  names.insert(names.end(), kEmbedders.begin(), kEmbedders.end());
  ServeJob job{.tp = 2};
  for (const std::string& name : names) {
    job.models.push_back(served(name));
    add_texts(name, job.lines);
  }
  const Served result = serve_ok(job, folder_);
  for (const std::string& name : names) expect_texts(result.results, name);
}

// The score of a pair of the fixture, or its logit.
double expected_score(const std::string& name, const std::string& what, int i) {
  return FamilyFixture::of_sentences(name).read<float>(fmt::format("{}.{}", what, i)).at(0);
}

TEST_F(ServeSentences, CrossEncodersScorePairs) {
  for (const int tp : {1, 2}) {
    ServeJob job{.tp = tp};
    const std::vector<std::string> names = {"cross-minilm", "cross-xlm-roberta"};
    for (const std::string& name : names) {
      job.models.push_back(served(name));
      json body{{"model", name}, {"text_1", json::array()}, {"text_2", json::array()}};
      const json sentences = said(name);
      for (const json& pair : sentences.at("pairs")) {
        body["text_1"].push_back(pair.at(0));
        body["text_2"].push_back(pair.at(1));
      }
      job.lines.push_back(line_of(name, "/v1/score", body));
      body["use_activation"] = false;
      job.lines.push_back(line_of(name + ".raw", "/score", body));
      job.lines.push_back(line_of(name + ".ranking", "/rerank",
                                  {{"model", name}, {"query", body["text_1"][0]}, {"documents", body["text_2"]}}));
    }
    const Served result = serve_ok(job, folder_);
    for (const std::string& name : names) {
      const json scores = body_in(result.results, name).at("data"),
                 raw = body_in(result.results, name + ".raw")["data"];
      for (int i = 0; i < 3; ++i) {
        EXPECT_NEAR(scores.at(i).at("score").get<double>(), expected_score(name, "score", i), 1e-5)
            << name << ", " << i;
        EXPECT_NEAR(raw.at(i).at("score").get<double>(), expected_score(name, "logits", i), 1e-5) << name << ", " << i;
      }
      const json ranking = body_in(result.results, name + ".ranking").at("results");
      ASSERT_EQ(ranking.size(), 3u);
      for (int i = 0; i < 3; ++i) {
        const json& entry = ranking.at(i);
        if (i > 0) {
          EXPECT_GE(ranking.at(i - 1).at("relevance_score"), entry.at("relevance_score"));
        }
        EXPECT_EQ(entry.at("document").at("text"),
                  said(name).at("pairs").at(entry.at("index").get<std::size_t>()).at(1));
        if (entry.at("index") == 0) {
          EXPECT_EQ(entry.at("relevance_score"), scores.at(0).at("score"));
        }
      }
    }
  }
}

TEST_F(ServeSentences, EmbeddersScoreByCosine) {
  const std::string name = "e5-multilingual";
  const json texts = said(name).at("texts");
  const FamilyFixture fixture = FamilyFixture::of_sentences(name);
  ServeJob job{.models = {served(name)}};
  job.lines = {line_of("score", "/score", {{"model", name}, {"text_1", texts[0]}, {"text_2", {texts[1], texts[2]}}}),
               line_of("rank", "/rerank", {{"model", name}, {"query", texts[0]}, {"documents", texts}, {"top_n", 2}}),
               line_of("short", "/v1/embeddings", {{"model", name}, {"input", texts}, {"dimensions", 16}})};
  const Served result = serve_ok(job, folder_);
  const auto pooled = [&](const std::string& kind, int i) {
    return fixture.read<float>(fmt::format("pooled{}.{}", kind, i));
  };
  for (int i = 1; i < 3; ++i) {  // its own prompt is that of queries
    EXPECT_NEAR(body_in(result.results, "score").at("data").at(i - 1).at("score").get<double>(),
                cosine(pooled("", 0), pooled("", i)), 1e-6);
  }
  std::vector<double> cosines;
  for (int i = 0; i < 4; ++i) cosines.push_back(cosine(pooled(".query", 0), pooled(".document", i)));
  const json ranking = body_in(result.results, "rank").at("results");
  ASSERT_EQ(ranking.size(), 2u);
  EXPECT_NEAR(ranking.at(0).at("relevance_score").get<double>(), *std::max_element(cosines.begin(), cosines.end()),
              1e-6);
  for (const json& entry : ranking) {
    EXPECT_NEAR(entry.at("relevance_score").get<double>(), cosines.at(entry.at("index").get<std::size_t>()), 1e-6);
  }
  for (int i = 0; i < 4; ++i) {
    std::vector<float> expected = pooled("", i);
    expected.resize(16);
    const double length = length_of(expected);
    for (float& value : expected) value = static_cast<float>(value / length);
    expect_close(embedding_in(result.results, "short", i), expected, fmt::format("text {}", i));
  }
}

// The instruction of queries is computed once, where the last token is what is pooled.
TEST_F(ServeSentences, AnEmbeddersInstructionIsSharedAndChangesNoBit) {
  if (!on_cpu()) GTEST_SKIP() << "on a GPU rows of few tokens are attended by another kernel";
  const std::string name = "qwen3-embedding";
  ServeJob job{.models = {served(name)}};
  for (int i = 0; i < 4; ++i) {
    const json body{{"model", name}, {"input", said(name).at("texts").at(i)}, {"input_type", "query"}};
    job.lines.push_back(line_of(fmt::format("q{}", i), "/v1/embeddings", body));
  }
  job.more = {"--max-seqs", "1"};  // one after the other, so that there is something to be found
  const Served alone = serve_ok(job, folder_);
  job.more.emplace_back("--share-prefixes");
  const Served shared = serve_ok(job, folder_);
  EXPECT_EQ(alone.metrics.at("cache").at("shared_tokens"), 0);
  EXPECT_GE(shared.metrics.at("cache").at("shared_tokens").get<int>(), 3 * 16);
  for (const json& line : alone.results.lines()) EXPECT_EQ(shared.results.line(line.at("custom_id")), line);
}

}  // namespace
}  // namespace computron::test
