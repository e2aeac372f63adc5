#include "kernels/cpu/low_rank.h"

#include "computron/base/error.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/low_rank_kernels.h"

namespace computron::kernels {
namespace {

const LowRankKernels& widest() {
  static const LowRankKernels kernels = usable_isa() >= Isa::kAvx512 ? low_rank_avx512() : low_rank_avx2();
  return kernels;
}

void check_read(DType dtype) { ensure(dtype != DType::kF16, "a CPU kernel was given float16"); }

}  // namespace

void add_low_rank_in(const float* x, int x_stride, int rows, int n, const std::byte* a, DType dtype, int rank,
                     float* sums) {
  check_read(dtype);
  widest().add_in(x, x_stride, rows, n, a, dtype, rank, sums);
}

void join_low_rank(float factor, int rank, float* sums) {
  for (int k = 0; k < rank; ++k) {
    sums[k] = factor * ((sums[k] + sums[rank + k]) + (sums[2 * rank + k] + sums[3 * rank + k]));
  }
}

void add_low_rank_out(const float* sums, int rows, int rank, const std::byte* b, DType dtype, int n, float* out,
                      int stride) {
  check_read(dtype);
  widest().add_out(sums, rows, rank, b, dtype, n, out, stride);
}

}  // namespace computron::kernels
