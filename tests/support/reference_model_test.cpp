// The reference itself is held against numbers that transformers' OPTForCausalLM (5.x, float32) gave for the same
// weights (verify_reference.py), so that a change of reference or checkpoints does not go unnoticed.
#include "tests/support/reference_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "tests/support/job.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron::test {
namespace {

const TinyModel kModel{.layers = 3, .heads = 5, .head_dim = 8, .ffn = 77, .vocab = 131, .max_positions = 40, .seed = 7};
const std::vector<int> kPrompt = {3, 1, 4, 1, 5, 92, 65, 35};
constexpr int kPositions[] = {0, 3, 7};
constexpr int kTokens[] = {0, 1, 64, 130};

class Reference : public ::testing::Test {
 protected:
  ReferenceModel model(DType dtype) const {
    TinyModel described = kModel;
    described.dtype = dtype;
    write_tiny_checkpoint(folder_ / "model.h5", described);
    return ReferenceModel(folder_ / "model.h5");
  }
  TemporaryFolder folder_;
};

void expect_logits(const ReferenceModel& model, const double (&expected)[3][4]) {
  const auto rows = model.logits(kPrompt);
  ASSERT_EQ(rows.size(), kPrompt.size());
  for (int p = 0; p < 3; ++p) {
    for (int t = 0; t < 4; ++t) {
      EXPECT_NEAR(rows[kPositions[p]][kTokens[t]], expected[p][t], 3e-5) << kPositions[p] << ", " << kTokens[t];
    }
  }
}

TEST_F(Reference, LogitsAreThoseOfTransformers) {
  expect_logits(model(DType::kF32), {{0.3954, -5.5023, 0.64342, 0.84042},
                                     {0.11984, -2.63855, 1.59728, 1.57228},
                                     {4.85259, -6.831, 1.60746, 1.20795}});
  expect_logits(model(DType::kBF16), {{0.39819, -5.53099, 0.64451, 0.86327},
                                      {0.11283, -2.65433, 1.58169, 1.56673},
                                      {4.79487, -6.80955, 1.58087, 1.22347}});
}

TEST_F(Reference, GenerationIsThatOfTransformers) {
  const ReferenceModel reference = model(DType::kF32);
  const auto generated = reference.generate({3, 1, 4, 1, 5}, 8);
  EXPECT_EQ(generated.tokens, (std::vector<int>{94, 7, 7, 7, 7, 7, 7, 58}));
  const auto first = reference.logits({3, 1, 4, 1, 5}).back();
  std::vector<double> sorted = first;
  std::sort(sorted.rbegin(), sorted.rend());
  EXPECT_DOUBLE_EQ(generated.margins[0], sorted[0] - sorted[1]);
  EXPECT_DOUBLE_EQ(generated.logprobs[0], log_softmax(first)[94]);
}

TEST_F(Reference, RefusesWhatItCannotCompute) {
  const ReferenceModel reference = model(DType::kF32);
  EXPECT_THROW(reference.logits({131}), std::runtime_error);
  EXPECT_THROW(reference.logits(std::vector<int>(41, 1)), std::runtime_error);
  write_tiny_checkpoint(folder_ / "less.h5", kModel, "layers.2.mlp.up.bias");
  EXPECT_THROW(ReferenceModel(folder_ / "less.h5"), std::runtime_error);
}

}  // namespace
}  // namespace computron::test
