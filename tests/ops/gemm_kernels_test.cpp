// Every CPU GEMM kernel that this processor can run, chosen or not. Runs with narrower vectors, too
// (CMakeLists.txt).
#include <fmt/format.h>

#include <limits>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"
#include "tests/ops/ops_fixture.h"

namespace computron::testing {
namespace {

using kernels::Gemm;
using kernels::GemmKernel;
using kernels::PanelBlocking;

std::vector<std::byte> pack(const Floats& w, int out, int in, DType dtype) {
  std::vector<std::byte> packed(kernels::packed_bytes(out, in, dtype));
  kernels::pack(packed.data(), in, dtype, 0, out, 0, in, bytes_of(w, dtype).data(), static_cast<std::size_t>(in), 1);
  return packed;
}

// [rows, out] of the first `rows` rows of x.
Floats multiply(GemmKernel kernel, DType dtype, const std::vector<std::byte>& x, int rows, int in,
                const std::vector<std::byte>& weight, int out, const PanelBlocking& blocking = {}) {
  Gemm gemm;
  Floats tile(static_cast<std::size_t>(rows) * out, std::numeric_limits<float>::quiet_NaN());
  gemm.run(kernel, dtype, x.data(), rows, in, weight.data(), out, tile.data(), blocking);
  return tile;
}

Floats column(const Floats& matrix, int k, int columns) {
  Floats result;
  for (std::size_t i = static_cast<std::size_t>(k); i < matrix.size(); i += columns) result.push_back(matrix[i]);
  return result;
}

// x [rows, in] · wᵀ of w [out, in], summed in double precision.
std::vector<double> double_loop(const Floats& x, const Floats& w, int rows, int out, int in) {
  std::vector<double> result;
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < out; ++n) {
      double sum = 0;
      for (int k = 0; k < in; ++k) sum += static_cast<double>(x[m * in + k]) * w[n * in + k];
      result.push_back(sum);
    }
  }
  return result;
}

// Whatever rows are beside it, whichever kernel of its type, and however this cuts the weight.
TEST(GemmKernels, MatchDoubleLoopWithTheSameBitsForAnyRowsKernelAndBlocking) {
  constexpr int kOut = 128, kMaxRows = 64;
  const PanelBlocking short_slices{.ahead_bytes = 0, .slice = 32, .slice_of_many = 16};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int in : {20, 64, 1000, 2304}) {
      const auto x = random_floats(static_cast<std::size_t>(kMaxRows) * in, 1, kernels::gemm_input_dtype(dtype));
      const auto w = random_floats(static_cast<std::size_t>(kOut) * in, 2, dtype);
      const auto x_bytes = bytes_of(x, kernels::gemm_input_dtype(dtype)), packed = pack(w, kOut, in, dtype);
      Floats all;
      for (const GemmKernel kernel : kernels::gemm_kernels(dtype)) {
        const auto what = fmt::format("{} kernel {} depth {}", name_of(dtype), static_cast<int>(kernel), in);
        if (all.empty()) {
          all = multiply(kernel, dtype, x_bytes, kMaxRows, in, packed, kOut);
          expect_close(all, double_loop(x, w, kMaxRows, kOut, in), 2e-6, what);
        }
        for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 33, 48, 64}) {
          const Floats expected(all.begin(), all.begin() + rows * kOut);
          expect_same(multiply(kernel, dtype, x_bytes, rows, in, packed, kOut), expected,
                      fmt::format("{}, {} rows", what, rows));
          expect_same(multiply(kernel, dtype, x_bytes, rows, in, packed, kOut, short_slices), expected,
                      fmt::format("{}, {} rows, short slices", what, rows));
        }
      }
    }
  }
}

// Every float16, subnormal or not, is multiplied with as it is.
TEST(GemmKernels, Float16WeightsAreExact) {
  constexpr int kIn = 32, kFinite = 0x7c00;
  for (const GemmKernel kernel : kernels::gemm_kernels(DType::kF16)) {
    Floats ones(kIn), halves(64 * kIn);
    for (int first = 0; first < kFinite; first += 64) {
      for (const int k : {6, 9}) {
        ones.assign(kIn, 0);
        ones[k] = 1;
        for (int n = 0; n < 64; ++n) halves[n * kIn + k] = f32_from_f16(static_cast<std::uint16_t>(first + n));
        const auto weight = pack(halves, 64, kIn, DType::kF16);
        expect_same(multiply(kernel, DType::kF16, bytes_of(ones, DType::kF32), 1, kIn, weight, 64),
                    column(halves, k, kIn), fmt::format("float16 from {}", first));
      }
    }
  }
}

}  // namespace
}  // namespace computron::testing
