// What merging makes of single values: one rounding, whatever the type, and the same for any part of a tensor.
#include "computron/model/adapter_merge.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "computron/checkpoint/writer.h"

namespace computron::test {
namespace {

using testing::HasSubstr;

// An adapter's file with one module "m", of rank 2.
class AdapterMergeTest : public testing::Test {
 protected:
  AdapterMergeTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            (std::string("computron_") + info->name() + "_" + std::to_string(getpid()) + ".h5");
  }
  ~AdapterMergeTest() override { std::filesystem::remove(path_); }

  // a: [in, 2], b: [out, 2].
  void write(const std::vector<float>& a, const std::vector<float>& b, float scale) const {
    CheckpointWriter writer(path_, "llama", "{}",
                            {{"m.lora_a", DType::kF32, {a.size() / 2, 2}},
                             {"m.lora_b", DType::kF32, {b.size() / 2, 2}},
                             {"m.lora_scale", DType::kF32, {1}}});
    writer.write(0, 0, std::as_bytes(std::span(a)));
    writer.write(1, 0, std::as_bytes(std::span(b)));
    writer.write(2, 0, std::as_bytes(std::span(&scale, 1)));
    writer.finish();
  }

  // Elements of bf16 from number `first` on of a weight [out, in], or [in, out] where it is transposed.
  std::vector<std::uint16_t> merged(std::vector<std::uint16_t> values, const std::vector<std::size_t>& shape,
                                    bool transposed = false, std::size_t first = 0) const {
    const CheckpointIndex index = read_checkpoint_index(path_);
    const TensorReader reader(index);
    AdapterMatrices matrices(index, reader);
    TensorEntry weight;
    weight.name = "m.weight";
    weight.dtype = DType::kBF16;
    weight.shape = shape;
    weight.transposed = transposed;
    AdapterMerge(matrices).add_to(weight, first, std::as_writable_bytes(std::span(values)));
    return values;
  }

  std::filesystem::path path_;
};

constexpr std::uint16_t kOne = 0x3f80;

// 1 + 2^-8 lies in the middle between 1 and the next number of bf16, and becomes 1. A float32 cannot tell it from what
// lies 2^-35 above or below, which must become that number's side's.
TEST_F(AdapterMergeTest, RoundsOnceNotTwice) {
  write({0x1p-8f, 0, 0x1p-8f, 0x1p-35f, 0x1p-8f, -0x1p-35f, 0x1p-8f + 0x1p-7f, -0x1p-35f}, {1, 1}, 1);
  EXPECT_EQ(merged({kOne, kOne, kOne, kOne}, {1, 4}), (std::vector<std::uint16_t>{kOne, kOne + 1, kOne, kOne + 1}));
  EXPECT_EQ(merged({0xbf80}, {1, 4}), (std::vector<std::uint16_t>{0xbf7f})) << "-1 + 2^-8 is a number of bf16";
}

TEST_F(AdapterMergeTest, APieceIsWhatItIsOfTheWhole) {
  write({1, 2, 3, 4, 5, 6}, {7, 8, 9, 10}, 0.5f);
  const std::vector<std::uint16_t> zeros(6, 0);
  const auto whole = merged(zeros, {2, 3}), turned = merged(zeros, {3, 2}, /*transposed=*/true);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(merged({0}, {2, 3}, false, i).front(), whole[i]);
    EXPECT_EQ(turned[i % 3 * 2 + i / 3], whole[i]) << "stored transposed";
  }
  EXPECT_EQ(f32_from_bf16(whole[0]), 0.5f * (7 * 1 + 8 * 2));
  EXPECT_EQ(f32_from_bf16(whole[5]), 0.5f * (9 * 5 + 10 * 6));
}

// However many threads merge into a tensor; no longer than they do.
TEST_F(AdapterMergeTest, MatricesAreThereOnceWhileTheyAreUsed) {
  write({1, 2, 3, 4, 5, 6}, {7, 8, 9, 10}, 0.5f);
  const CheckpointIndex index = read_checkpoint_index(path_);
  const TensorReader reader(index);
  AdapterMatrices matrices(index, reader);
  TensorEntry weight;
  weight.name = "m.weight";
  weight.shape = {2, 3};
  auto mine = matrices.of(weight);
  EXPECT_EQ(matrices.of(weight), mine);
  const std::weak_ptr<const AdapterMatrices::OfTensor> watched = mine;
  mine.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(matrices.of(weight)->right, (std::vector<float>{1, 3, 5, 2, 4, 6}));
}

TEST_F(AdapterMergeTest, WhatIsTooLargeBecomesTheLargestNumber) {
  write({3e38f, 0}, {3e38f, 0}, 1);
  EXPECT_EQ(merged({kOne}, {1, 1}).front(), 0x7f7f);
}

TEST_F(AdapterMergeTest, RefusesAScaleThatIsNoNumber) {
  write({1, 2}, {3, 4}, std::numeric_limits<float>::infinity());
  try {
    merged({kOne}, {1, 1});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("m.lora_scale"));
  }
}

}  // namespace
}  // namespace computron::test
