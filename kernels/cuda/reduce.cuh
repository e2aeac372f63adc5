// Sums and choices over the threads of a warp or a block, in an order that depends on nothing.
#pragma once

namespace computron::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarp = 32;

// The same value in every one of `kLanes` neighbouring lanes.
template <int kLanes = kWarp, class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}
template <int kLanes = kWarp>
__device__ float warp_max(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// The same value in every thread of a block of whole warps. `shared` has room for one T a warp; it must not be written
// again before the block's next barrier.
template <class T>
__device__ T block_sum(T value, T* shared) {
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  T sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) sum += shared[warp];
  return sum;
}
inline __device__ float block_max(float value, float* shared) {
  value = warp_max(value);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  float max = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) max = fmaxf(max, shared[warp]);
  return max;
}

}  // namespace computron::kernels::cuda
