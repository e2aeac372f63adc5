// What a model computes of a fixture's inputs, beside what is expected.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/runtime/family_model.h"
#include "tests/support/family_fixture.h"

namespace computron::test {

// Some rows that the model computed, and what transformers computed.
struct Result {
  std::string name;
  std::vector<float> actual, expected;
  std::size_t width;  // of a row
};

// All that is expected of the model; what `actual` holds means something where the model reports.
inline std::vector<Result> compute_decoder(Model& model, const FamilyFixture& expected) {
  std::vector<Result> results;
  for (int i = 0; expected.has(fmt::format("prompt.{}", i)); ++i) {
    const auto tokens = expected.tokens(fmt::format("prompt.{}", i));
    const int first_row = static_cast<int>(expected.read<std::int64_t>(fmt::format("first_row.{}", i)).front());
    const std::string logits = fmt::format("logits.{}", i);
    results.push_back({logits, model.logits(tokens, first_row), expected.read<float>(logits),
                       static_cast<std::size_t>(model.config().vocab)});
  }
  return results;
}

inline std::vector<Result> compute_encoder(Model& model, const FamilyFixture& expected) {
  std::vector<Result> results;
  const std::string input = model.config().takes_images() ? "pixels" : "prompt";
  for (int i = 0; expected.has(fmt::format("{}.{}", input, i)); ++i) {
    const auto [vector, scores] = model.encode(encoder_batch(model.config(), expected, i));
    const std::string pooled = fmt::format("pooled.{}", i), logits = fmt::format("logits.{}", i);
    if (expected.has(pooled)) results.push_back({pooled, vector, expected.read<float>(pooled), vector.size()});
    if (expected.has(logits)) results.push_back({logits, scores, expected.read<float>(logits), scores.size()});
  }
  return results;
}

inline std::vector<Result> compute(Model& model, const FamilyFixture& expected) {
  return model.config().causal ? compute_decoder(model, expected) : compute_encoder(model, expected);
}

}  // namespace computron::test
