#include "kernels/cuda/element.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {
namespace {

constexpr int kMaxThreads = 512;

// How many threads share a row: a function of its length alone, so that its bits are too.
int threads_of(int columns) { return columns >= 4 * kMaxThreads ? kMaxThreads : 128; }

// A block a row. Every thread writes the elements that it alone has read, so out may be x.
__global__ void __launch_bounds__(kMaxThreads) norm_kernel(const __grid_constant__ NormCall p) {
  __shared__ float sums[2][kMaxThreads / kWarp];
  const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * p.columns;
  const float* x = p.x + first;
  const auto count = static_cast<float>(p.columns);

  float mean = 0;
  if (p.kind == NormKind::kLayerNorm) {
    float sum = 0;
#pragma unroll 4
    for (int c = thread; c < p.columns; c += threads) sum += x[c];
    mean = block_sum(sum, sums[0]) / count;
  }
  float squares = 0;
#pragma unroll 4
  for (int c = thread; c < p.columns; c += threads) squares = fmaf(x[c] - mean, x[c] - mean, squares);
  const float scale = 1.0f / sqrtf(block_sum(squares, sums[1]) / count + p.epsilon);
#pragma unroll 4
  for (int c = thread; c < p.columns; c += threads) {
    const float z = (x[c] - mean) * scale, weight = p.weight == nullptr ? 1.0f : p.weight[c];
    store(fmaf(z, weight, p.bias == nullptr ? 0.0f : p.bias[c]), p.out, p.dtype, first + c);
  }
}

}  // namespace

void norm(CUstream_st* stream, const NormCall& call) {
  if (call.rows == 0) return;
  norm_kernel<<<static_cast<unsigned>(call.rows), threads_of(call.columns), 0, stream>>>(call);
}

}  // namespace computron::kernels::cuda
