// Every family with quantised weights against transformers, which had the values that codes and scales stand for
// (tests/fixtures/make_quantised.py): the fixtures of the families as int8 and fp8 by rows, and wider models of the
// same families in groups of 32. Where the processor multiplies bfloat16 the reference had those values rounded to it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/runtime/family_measures.h"
#include "tests/runtime/family_model.h"
#include "tests/support/beside.h"
#include "tests/support/family_fixture.h"

namespace computron::test {
namespace {

// A choice by less may fall either way: in float32, and where activations are rounded to bfloat16, which moves logits
// of these models by some hundredths (transformers' own bfloat16 chooses otherwise at margins of up to 0.07).
constexpr double kClearMargin = 1e-3, kClearBf16Margin = 0.1;

const std::vector<std::string> kSets = {"int8.row", "fp8.row", "int8", "fp8", "int4", "int4.head"};

std::filesystem::path expected_of(const std::string& family) {
  return std::filesystem::path(COMPUTRON_QUANTISED_FIXTURES) / family / "expected.safetensors";
}

std::vector<std::string> quantised_families() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(COMPUTRON_QUANTISED_FIXTURES)) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

// Which has no head.
bool is_encoder(const std::string& family) { return family.starts_with("bert") || family.starts_with("vit"); }

// How near one set of a family comes, or all of them.
struct Nearness {
  double distance = 0, least_cosine = 1, divergences = 0;
  int rows = 0, best_rows = 0, same_best = 0, clear = 0, wrong = 0;

  void add_row(std::span<const float> actual, std::span<const float> expected) {
    distance = std::max(distance, test::distance(actual, expected));
    least_cosine = std::min(least_cosine, cosine(actual, expected));
    divergences += divergence(actual, expected);
    ++rows;
  }
  // Of a row of logits; `best` is the token that transformers chose.
  void add_choice(std::span<const float> actual, TokenId chosen, bool is_clear) {
    const bool same = best(actual) == chosen;
    ++best_rows;
    same_best += same;
    clear += is_clear;
    wrong += is_clear && !same;
  }
};

// Of each greedy token over the second, or of the last expert that helped to choose it over the next, if that is less.
std::vector<float> margins_of(const FamilyFixture& expected, int i) {
  auto margins = expected.read<float>(fmt::format("margins.{}", i));
  if (!expected.has(fmt::format("router.{}", i))) return margins;
  const auto router = expected.read<float>(fmt::format("router.{}", i));
  for (std::size_t k = 0; k < margins.size(); ++k) margins[k] = std::min(margins[k], router.at(k));
  return margins;
}

// What is computed of a prompt and the tokens that transformers continued it with, which answers for each of these.
void add_decoder(Model& model, const FamilyFixture& inputs, const FamilyFixture& expected, double clear_margin, int i,
                 Nearness& nearness) {
  const auto greedy = expected.tokens(fmt::format("greedy.{}", i));
  const std::vector<float> margins = margins_of(expected, i);
  auto tokens = inputs.tokens(fmt::format("prompt.{}", i));
  const int first_row = static_cast<int>(tokens.size()) - 1;
  tokens.insert(tokens.end(), greedy.begin(), greedy.end() - 1);
  const std::vector<float> logits = model.logits(tokens, first_row);
  if (!model.reports()) return;
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  ASSERT_EQ(logits.size(), greedy.size() * vocab);
  const auto row = [&](std::size_t k) { return std::span(logits).subspan(k * vocab, vocab); };
  nearness.add_row(row(0), expected.read<float>(fmt::format("logits.{}", i)));
  for (std::size_t k = 0; k < greedy.size(); ++k) nearness.add_choice(row(k), greedy[k], margins[k] >= clear_margin);
}

void add_encoder(Model& model, const FamilyFixture& inputs, const FamilyFixture& expected, int i, Nearness& nearness) {
  const auto [vector, scores] = model.encode(encoder_batch(model.config(), inputs, i));
  const std::string pooled = fmt::format("pooled.{}", i), logits = fmt::format("logits.{}", i);
  if (!model.reports()) return;
  if (expected.has(pooled)) nearness.add_row(vector, expected.read<float>(pooled));
  if (expected.has(logits)) nearness.add_row(scores, expected.read<float>(logits));
}

Nearness measure(Model& model, const std::string& family, const std::string& set, bool in_bf16) {
  const FamilyFixture inputs(family),
      expected(expected_of(family), fmt::format("{}.{}.", set, in_bf16 ? "bf16" : "f32"));
  Nearness nearness;
  for (int i = 0; i < 3; ++i) {
    if (expected.has(fmt::format("greedy.{}", i))) {
      add_decoder(model, inputs, expected, in_bf16 ? kClearBf16Margin : kClearMargin, i, nearness);
    } else if (expected.has(fmt::format("logits.{}", i)) || expected.has(fmt::format("pooled.{}", i))) {
      add_encoder(model, inputs, expected, i, nearness);
    }
  }
  return nearness;
}

void expect_near(const Nearness& nearness, bool in_bf16, double tolerance) {
  EXPECT_GE(nearness.rows, 2);
  EXPECT_EQ(nearness.wrong, 0) << "of " << nearness.clear << " clear choices";
  if (in_bf16) {
    EXPECT_GT(nearness.least_cosine, 0.999);
    EXPECT_LT(nearness.divergences / nearness.rows, 1e-3);
  } else {
    EXPECT_LE(nearness.distance, tolerance);
  }
}

// All ranks go through all of them in the same order, whatever fails.
TEST(QuantisedFamilies, ComputeWhatTransformersComputesWithTheirValues) {
  const Communicator world = Communicator::world();
  ASSERT_GE(quantised_families().size(), 12u);
  int choices = 0, same_best = 0, clear = 0;
  bool reported = false;
  for (const MeshShape shape : meshes(world.size())) {
    for (const std::string& family : quantised_families()) {
      for (const std::string& set : kSets) {
        const auto path = beside_test("quantised") / fmt::format("{}.{}.h5", family, set);
        if (set == "int4.head" && is_encoder(family)) continue;
        ASSERT_TRUE(std::filesystem::exists(path)) << path;
        SCOPED_TRACE(fmt::format("{}.{} on {}x{}", family, set, shape.tp, shape.pp));
        Model model(shape, path, world);
        const bool in_bf16 = model.multiplied_as() == DType::kBF16;
        const Nearness nearness = measure(model, family, set, in_bf16);
        if (model.reports()) expect_near(nearness, in_bf16, model.tolerance());
        reported |= model.reports();
        choices += nearness.best_rows;
        same_best += nearness.same_best;
        clear += nearness.clear;
      }
    }
  }
  EXPECT_EQ(choices > 0, reported);
  EXPECT_GE(same_best, 0.97 * choices);
  EXPECT_GE(clear, 0.8 * choices);
}

}  // namespace
}  // namespace computron::test
