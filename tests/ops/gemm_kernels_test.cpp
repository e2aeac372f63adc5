// Every CPU GEMM kernel that this processor can run, chosen or not.
#include <fmt/format.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"
#include "tests/ops/ops_fixture.h"

namespace computron::testing {
namespace {

using kernels::Gemm;
using kernels::GemmKernel;

std::vector<GemmKernel> kernels_for(DType dtype) {
  std::vector<GemmKernel> result = {kernels::best_gemm_kernel(dtype)};
  if (dtype == DType::kF32 && result[0] == GemmKernel::kOneDnn) result.push_back(GemmKernel::kAvx2);
  if (dtype == DType::kBF16 && result[0] == GemmKernel::kAmx) result.push_back(GemmKernel::kOneDnn);
  if (dtype == DType::kF16 && result[0] == GemmKernel::kAvx512) result.push_back(GemmKernel::kAvx2);
  if (result[0] == GemmKernel::kNone) result.clear();
  return result;
}

std::vector<std::byte> pack(const Floats& w, int out, int in, DType dtype) {
  std::vector<std::byte> packed(kernels::packed_bytes(out, in, dtype));
  kernels::pack(packed.data(), in, dtype, 0, out, 0, in, bytes_of(w, dtype).data(), static_cast<std::size_t>(in), 1);
  return packed;
}

// [rows, out] of the first `rows` rows of x.
Floats multiply(Gemm& gemm, DType dtype, const std::vector<std::byte>& x, int rows, int in,
                const std::vector<std::byte>& weight, int out) {
  Floats tile(static_cast<std::size_t>(kernels::row_class(rows)) * out);
  gemm.run(dtype, x.data(), rows, in, weight.data(), out, tile.data());
  tile.resize(static_cast<std::size_t>(rows) * out);
  return tile;
}

Floats column(const Floats& matrix, int k, int columns) {
  Floats result;
  for (std::size_t i = static_cast<std::size_t>(k); i < matrix.size(); i += columns) result.push_back(matrix[i]);
  return result;
}

TEST(GemmKernels, MatchDoubleLoopWithTheSameBitsForAnyRows) {
  constexpr int kOut = 128, kMaxRows = 64;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const GemmKernel kernel : kernels_for(dtype)) {
      Gemm gemm(kernel, kernel, kernel);
      for (const int in : {20, 64, 1000, 2304}) {
        const auto what = fmt::format("{} kernel {} depth {}", name_of(dtype), static_cast<int>(kernel), in);
        const auto x = random_floats(static_cast<std::size_t>(kMaxRows) * in, 1, kernels::gemm_input_dtype(dtype));
        const auto w = random_floats(static_cast<std::size_t>(kOut) * in, 2, dtype);
        const auto x_bytes = bytes_of(x, kernels::gemm_input_dtype(dtype)), packed = pack(w, kOut, in, dtype);
        const auto all = multiply(gemm, dtype, x_bytes, kMaxRows, in, packed, kOut);
        std::vector<double> expected;
        for (int m = 0; m < kMaxRows; ++m) {
          for (int n = 0; n < kOut; ++n) {
            double sum = 0;
            for (int k = 0; k < in; ++k) sum += static_cast<double>(x[m * in + k]) * w[n * in + k];
            expected.push_back(sum);
          }
        }
        expect_close(all, expected, 2e-6, what);
        for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 33}) {
          const auto some = multiply(gemm, dtype, x_bytes, rows, in, packed, kOut);
          expect_same(some, Floats(all.begin(), all.begin() + rows * kOut), fmt::format("{}, {} rows", what, rows));
        }
      }
    }
  }
}

// So that a scratchpad which grows does not leave earlier primitives behind.
TEST(GemmKernels, ShapesMayAlternate) {
  Gemm gemm;
  for (int round = 0; round < 2; ++round) {
    for (const int in : {64, 4096, 320}) {
      for (const int rows : {1, 256, 40}) {
        const auto x = bytes_of(Floats(static_cast<std::size_t>(kernels::row_class(rows)) * in, 1), DType::kF32);
        const auto weight = pack(Floats(static_cast<std::size_t>(64) * in, 0.5f), 64, in, DType::kF32);
        for (const float v : multiply(gemm, DType::kF32, x, rows, in, weight, 64)) EXPECT_EQ(v, 0.5f * in);
      }
    }
  }
}

// Every float16, subnormal or not, is multiplied with as it is.
TEST(GemmKernels, Float16WeightsAreExact) {
  constexpr int kIn = 32, kFinite = 0x7c00;
  for (const GemmKernel kernel : kernels_for(DType::kF16)) {
    Gemm gemm(GemmKernel::kNone, GemmKernel::kNone, kernel);
    Floats ones(kIn), halves(64 * kIn);
    for (int first = 0; first < kFinite; first += 64) {
      for (const int k : {6, 9}) {
        ones.assign(kIn, 0);
        ones[k] = 1;
        for (int n = 0; n < 64; ++n) halves[n * kIn + k] = f32_from_f16(static_cast<std::uint16_t>(first + n));
        const auto weight = pack(halves, 64, kIn, DType::kF16);
        expect_same(multiply(gemm, DType::kF16, bytes_of(ones, DType::kF32), 1, kIn, weight, 64),
                    column(halves, k, kIn), fmt::format("float16 from {}", first));
      }
    }
  }
}

}  // namespace
}  // namespace computron::testing
