#include "kernels/cuda/element.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/reduce.cuh"

namespace computron::kernels::cuda {
namespace {

constexpr int kMaxThreads = 512;

// How many threads share a row: a function of its length alone, so that its bits are too.
int threads_of(int columns) { return columns >= 4 * kMaxThreads ? kMaxThreads : 128; }

// A stored weight as what is multiplied with.
__device__ float meant(NormKind kind, float weight) {
  return kind == NormKind::kRmsNormPlusOne ? 1.0f + weight : weight;
}

// A thread's elements of a row, every `threads`-th; kHeld of them in registers, which saves reading them again.
template <int kHeld>
class HeldRow {
 public:
  __device__ HeldRow(int columns) : columns_(columns), thread_(static_cast<int>(threadIdx.x)) {}

  __device__ void load(const float* x) {
    for_each([&](int i, int c) { values_[i] = x[c]; });
  }
  __device__ float operator[](int i) const { return values_[i]; }
  __device__ void set(int i, float value) { values_[i] = value; }

  // body(i, column) for the elements that there are.
  template <class Body>
  __device__ void for_each(const Body& body) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int c = thread_ + i * static_cast<int>(blockDim.x);
      if (c < columns_) body(i, c);
    }
  }

 private:
  const int columns_, thread_;
  float values_[kHeld];
};

// The same of a row of any length, read each time.
template <>
class HeldRow<0> {
 public:
  __device__ HeldRow(int columns) : columns_(columns) {}

  __device__ void load(const float* x) { x_ = x; }
  __device__ float operator[](int i) const { return x_[threadIdx.x + i * blockDim.x]; }
  __device__ void set(int, float) {}  // who sets an element has written it where it is read

  template <class Body>
  __device__ void for_each(const Body& body) const {
    const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
#pragma unroll 4
    for (int i = 0, c = thread; c < columns_; ++i, c += threads) body(i, c);
  }

 private:
  const int columns_;
  const float* x_ = nullptr;
};

// The row becomes what it is with the addend, in memory, too. All that is added has been asked for before the first sum
// is written: a read cannot be moved in front of a write that might be to the same place.
template <class Row>
__device__ void add(const NormCall& p, std::size_t first, const Row& addend, const Row& bias, Row& x) {
  x.for_each([&](int i, int c) {
    const float sum = x[i] + (p.addend_bias == nullptr ? addend[i] : addend[i] + bias[i]);
    p.sum[first + c] = sum;
    x.set(i, sum);
  });
}

// A block a row. Every thread writes the elements that it alone has read, so out may be x. Weights are read before the
// row is there.
template <int kHeld>
__global__ void __launch_bounds__(kMaxThreads) norm_kernel(const __grid_constant__ NormCall p) {
  __shared__ float sums[2][kMaxThreads / kWarp];
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * p.columns;
  const auto count = static_cast<float>(p.columns);
  HeldRow<kHeld> x(p.columns), weight(p.columns), bias(p.columns), addend(p.columns), addend_bias(p.columns);
  if (p.weight != nullptr) weight.load(p.weight);
  if (p.bias != nullptr) bias.load(p.bias);
  if (p.addend_bias != nullptr) addend_bias.load(p.addend_bias);
  begin_overlapped();
  x.load(p.x + first);
  if (p.addend != nullptr) {
    addend.load(p.addend + first);
    add(p, first, addend, addend_bias, x);
  }

  float mean = 0;
  if (p.kind == NormKind::kLayerNorm) {
    float sum = 0;
    x.for_each([&](int i, int) { sum += x[i]; });
    mean = block_sum(sum, sums[0]) / count;
  }
  float squares = 0;
  x.for_each([&](int i, int) { squares = fmaf(x[i] - mean, x[i] - mean, squares); });
  const float scale = 1.0f / sqrtf(block_sum(squares, sums[1]) / count + p.epsilon);
  x.for_each([&](int i, int c) {
    const float z = (x[i] - mean) * scale, factor = p.weight == nullptr ? 1.0f : meant(p.kind, weight[i]);
    store(fmaf(z, factor, p.bias == nullptr ? 0.0f : bias[i]), p.out, p.dtype, first + c);
  });
}

template <int kHeld>
void launch_norm(CUstream_st* stream, const NormCall& call) {
  launch_overlapped(static_cast<unsigned>(call.rows), threads_of(call.columns), 0, stream, norm_kernel<kHeld>, call);
}

// The sum of a head's squares, by the lanes of a warp.
__device__ float squares_of(const float* x, int head_dim, int lane) {
  float sum = 0;
  for (int d = lane; d < head_dim; d += kWarp) sum = fmaf(x[d], x[d], sum);
  return warp_sum(sum);
}

constexpr int kHeadThreads = 128;  // a warp a head
constexpr int kHeadsOfBlock = kHeadThreads / kWarp;

// Grid: rows, blocks of heads.
__device__ int head_of_warp() {
  return static_cast<int>(blockIdx.y) * kHeadsOfBlock + static_cast<int>(threadIdx.x) / kWarp;
}
__device__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ float* head_in(const HeadRows& of, int head) {
  return of.qkv + static_cast<std::size_t>(blockIdx.x) * of.columns + static_cast<std::size_t>(head) * of.head_dim;
}
dim3 grid_of(int rows, int heads) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>((heads + kHeadsOfBlock - 1) / kHeadsOfBlock)};
}

__global__ void __launch_bounds__(kHeadThreads) norm_heads_kernel(const __grid_constant__ NormHeadsCall p) {
  begin_overlapped();
  const int head = head_of_warp(), lane = lane_of_warp(), n = p.of.head_dim;
  if (head >= p.of.heads) return;
  float* x = head_in(p.of, head);
  const float* weight = p.weight + (head < p.of.queries ? 0 : n);
  const float scale = 1.0f / sqrtf(squares_of(x, n, lane) / static_cast<float>(n) + p.epsilon);
  for (int d = lane; d < n; d += kWarp) x[d] = x[d] * scale * meant(p.kind, weight[d]);
}

__global__ void __launch_bounds__(kHeadThreads) square_heads_kernel(const __grid_constant__ SquareHeadsCall p) {
  begin_overlapped();
  const int column = head_of_warp(), lane = lane_of_warp();
  if (column >= p.count) return;
  const int head = p.heads[column];
  const float sum = head < 0 ? 0.0f : squares_of(head_in(p.of, head), p.of.head_dim, lane);
  if (lane == 0) p.out[static_cast<std::size_t>(blockIdx.x) * p.count + column] = sum;
}

__global__ void __launch_bounds__(kHeadThreads) norm_width_kernel(const __grid_constant__ NormWidthCall p) {
  begin_overlapped();
  const int head = head_of_warp(), lane = lane_of_warp(), n = p.of.head_dim;
  if (head >= p.of.heads) return;
  const bool is_query = head < p.of.queries;
  const int first = is_query ? 0 : p.query_count, end = is_query ? p.query_count : p.count;
  const float* squares = p.squares + static_cast<std::size_t>(blockIdx.x) * p.count;
  float sum = 0;
  for (int c = first; c < end; ++c) sum += squares[c];
  const float scale = 1.0f / sqrtf(sum / static_cast<float>((end - first) * n) + p.epsilon);
  float* x = head_in(p.of, head);
  const float* weight = p.weight + static_cast<std::size_t>(head) * n;
  for (int d = lane; d < n; d += kWarp) x[d] = x[d] * scale * meant(p.kind, weight[d]);
}

}  // namespace

void norm_heads(CUstream_st* stream, const NormHeadsCall& call) {
  if (call.of.rows == 0) return;
  launch_overlapped(grid_of(call.of.rows, call.of.heads), kHeadThreads, 0, stream, norm_heads_kernel, call);
}

void square_heads(CUstream_st* stream, const SquareHeadsCall& call) {
  if (call.of.rows == 0) return;
  launch_overlapped(grid_of(call.of.rows, call.count), kHeadThreads, 0, stream, square_heads_kernel, call);
}

void norm_width(CUstream_st* stream, const NormWidthCall& call) {
  if (call.of.rows == 0) return;
  launch_overlapped(grid_of(call.of.rows, call.of.heads), kHeadThreads, 0, stream, norm_width_kernel, call);
}

void norm(CUstream_st* stream, const NormCall& call) {
  if (call.rows == 0) return;
  const int held = (call.columns + threads_of(call.columns) - 1) / threads_of(call.columns);
  if (held <= 8) return launch_norm<8>(stream, call);
  if (held <= 16) return launch_norm<16>(stream, call);
  launch_norm<0>(stream, call);
}

}  // namespace computron::kernels::cuda
