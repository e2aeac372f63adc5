// Products with thin matrices in vectors of eight and of sixteen, of one row and of several: the same bits.
#include "kernels/cpu/low_rank_kernels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/isa.h"

namespace computron::test {
namespace {

using kernels::kLowRankOutputs;
using kernels::kLowRankSums;
using kernels::LowRankKernels;

// Of bf16, so that they are numbers of either type: upper halves of small numbers.
std::vector<std::uint16_t> elements(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint16_t> all;
  while (all.size() < count) all.push_back(static_cast<std::uint16_t>(0x3c00 + random() % 0x400 + (random() & 0x8000)));
  return all;
}

std::vector<float> floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> any(-2, 2);
  std::vector<float> all;
  while (all.size() < count) all.push_back(any(random));
  return all;
}

class LowRankKernelsTest : public testing::Test {
 protected:
  static constexpr int kRows = 15, kIn = 79, kOut = 150, kStride = 160;

  // Sums and outputs of rows [row, row + rows) of all.
  std::vector<float> run(const LowRankKernels& kernels, DType dtype, int rank, int row, int rows) const {
    const auto width = static_cast<std::size_t>(kLowRankSums) * rank;
    std::vector<float> sums = first(floats(kRows * width, 1), row * width, rows * width);
    const auto* const a = reinterpret_cast<const std::byte*>(a_.data());
    const auto* const b = reinterpret_cast<const std::byte*>(b_.data());
    kernels.add_in(x_.data() + row * kIn, kIn, rows, kIn, a, dtype, rank, sums.data());
    std::vector<float> out = first(floats(kRows * kStride, 2), row * kStride, rows * kStride);
    kernels.add_out(sums.data(), rows, rank, b, dtype, kOut, out.data(), kStride);
    sums.insert(sums.end(), out.begin(), out.end());
    return sums;
  }

  static std::vector<float> first(const std::vector<float>& of, std::size_t begin, std::size_t count) {
    return {of.begin() + static_cast<std::ptrdiff_t>(begin), of.begin() + static_cast<std::ptrdiff_t>(begin + count)};
  }

  static constexpr int kMostRank = 64;
  std::vector<float> x_ = floats(kRows * kIn, 3);
  // Twice as many, for elements of float32.
  std::vector<std::uint16_t> a_ = elements(2 * kIn * kMostRank, 4), b_ = elements(2 * kStride * kMostRank, 5);
};

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};
constexpr int kRanks[] = {1, 7, 8, 15, 16, 17, 33, 48, 64};

TEST_F(LowRankKernelsTest, HaveTheSameBitsAtBothWidths) {
  if (kernels::usable_isa() < kernels::Isa::kAvx512) GTEST_SKIP() << "a processor without AVX-512";
  for (const DType dtype : kTypes) {
    for (const int rank : kRanks) {
      const std::vector<float> narrow = run(kernels::low_rank_avx2(), dtype, rank, 0, kRows);
      const std::vector<float> wide = run(kernels::low_rank_avx512(), dtype, rank, 0, kRows);
      EXPECT_EQ(std::memcmp(narrow.data(), wide.data(), narrow.size() * sizeof(float)), 0) << "rank " << rank;
    }
  }
}

// Rows are taken by eight, by four, by two or one by one.
TEST_F(LowRankKernelsTest, ARowHasTheSameBitsAmongAnyNumberOfRows) {
  std::vector<LowRankKernels> widths = {kernels::low_rank_avx2()};
  if (kernels::usable_isa() >= kernels::Isa::kAvx512) widths.push_back(kernels::low_rank_avx512());
  for (const LowRankKernels& width : widths) {
    for (const DType dtype : kTypes) {
      for (const int rank : kRanks) {
        const auto sums = static_cast<std::size_t>(kLowRankSums) * rank;
        const std::vector<float> all = run(width, dtype, rank, 0, kRows);
        for (int row = 0; row < kRows; ++row) {
          std::vector<float> expected = first(all, row * sums, sums);
          const std::vector<float> out = first(all, kRows * sums + static_cast<std::size_t>(row) * kStride, kStride);
          expected.insert(expected.end(), out.begin(), out.end());
          const std::vector<float> alone = run(width, dtype, rank, row, 1);
          EXPECT_EQ(std::memcmp(alone.data(), expected.data(), alone.size() * sizeof(float)), 0)
              << fmt::format("rank {}, row {}", rank, row);
        }
      }
    }
  }
}

}  // namespace
}  // namespace computron::test
