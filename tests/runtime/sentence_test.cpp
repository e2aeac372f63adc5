// Folders of sentence-transformers: the checkpoints that `computron convert` made of tests/fixtures/sentence, computed
// on every mesh of as many ranks as there are, held against the embeddings and scores that sentence-transformers
// computed in float32 (tests/fixtures/make_sentence.py).

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/runtime/family_measures.h"
#include "tests/runtime/family_model.h"
#include "tests/support/beside.h"
#include "tests/support/family_fixture.h"

namespace computron::test {
namespace {

std::vector<std::string> folder_names() {
  const std::filesystem::path families = COMPUTRON_FAMILY_FIXTURES;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(families.parent_path() / "sentence")) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string checkpoint(const std::string& name) { return beside_test("sentence") / name; }

Batch batch_of(const FamilyFixture& fixture, int i) {
  Batch batch;
  batch.tokens = fixture.tokens(fmt::format("prompt.{}", i));
  for (std::size_t position = 0; position < batch.tokens.size(); ++position) {
    batch.positions.push_back(static_cast<std::int32_t>(position));
  }
  const std::string types = fmt::format("types.{}", i);
  if (fixture.has(types)) batch.token_type_ids = fixture.tokens(types);
  return batch;
}

// What the model gives for each input of the fixture: an embedding, which is not divided by its length, or scores.
struct Result {
  std::string name;
  Model::Encoded actual;
  std::vector<float> expected;
  bool scores;
};

std::vector<Result> compute(Model& model, const std::string& name, int chunk) {
  const FamilyFixture fixture = FamilyFixture::of_sentences(name);
  std::vector<Result> results;
  for (int i = 0; fixture.has(fmt::format("prompt.{}", i)); ++i) {
    const Batch batch = batch_of(fixture, i);
    const bool scores = model.config().classes > 0;
    const std::string expected = fmt::format("{}.{}", scores ? "logits" : "pooled", i);
    results.push_back({fmt::format("{} {}", name, expected),
                       model.config().causal ? model.embed(batch.tokens, chunk) : model.encode(batch),
                       fixture.read<float>(expected), scores});
  }
  return results;
}

// Scores are compared as numbers: of one class every direction is the same.
void expect_close(const Result& result, double most_off, double tolerance) {
  if (result.scores) {
    EXPECT_LE(distance(result.actual.scores, result.expected), tolerance) << result.name;
  } else {
    ASSERT_EQ(result.actual.vector.size(), result.expected.size()) << result.name;
    EXPECT_GE(cosine(result.actual.vector, result.expected), 1 - most_off) << result.name;
  }
}

constexpr int kWhole = kMaxRows;

TEST(Sentences, EmbedAsSentenceTransformersDoes) {
  const Communicator world = Communicator::world();
  ASSERT_GE(folder_names().size(), 12u);
  for (const MeshShape shape : meshes(world.size())) {
    for (const std::string& name : folder_names()) {
      SCOPED_TRACE(fmt::format("on {}x{}", shape.tp, shape.pp));
      Model model(shape, checkpoint(name + ".h5"), world);
      const std::vector<Result> results = compute(model, name, kWhole);
      EXPECT_GE(results.size(), 3u);
      for (const Result& result : results) {
        if (model.reports()) expect_close(result, 1e-6, model.tolerance());
      }
    }
  }
}

TEST(Sentences, ChunksOfAnInputGiveTheSame) {
  const Communicator world = Communicator::world();
  for (const std::string name : {"qwen3-embedding", "llama-mean"}) {
    Model model(meshes(world.size()).front(), checkpoint(name + ".h5"), world);
    const std::vector<Result> whole = compute(model, name, kWhole), cut = compute(model, name, 7);
    for (std::size_t i = 0; i < whole.size() && model.reports(); ++i) {
      expect_close(cut[i], 1e-6, model.tolerance());
      if (!on_cpu()) continue;  // rows of few tokens are attended by another kernel there
      EXPECT_EQ(distance(whole[i].actual.vector, cut[i].actual.vector), 0) << whole[i].name;
    }
  }
}

TEST(Sentences, Bf16StaysClose) {
  const Communicator world = Communicator::world();
  for (const std::string& name : folder_names()) {
    Model model(meshes(world.size()).back(), checkpoint(name + ".bf16.h5"), world);
    for (const Result& result : compute(model, name, kWhole)) {
      if (model.reports()) expect_close(result, 1e-3, /*tolerance=*/0.05);
    }
  }
}

}  // namespace
}  // namespace computron::test
