// What attention of few rows ends with.
#pragma once

#include "kernels/cuda/attention.h"

namespace computron::kernels::cuda {

// What a head's sink adds to a sum of exponentials with this largest score; where it is much larger, infinitely much.
inline __device__ float sink_of(const AttentionCall& p, int head, float max) {
  return p.sinks == nullptr ? 0.0f : expf(p.sinks[head] - max);
}

// Elements d.. of a head's output, where it has them: `sums` over `weights` and the sink.
inline __device__ void store_four(const AttentionCall& p, int row, int head, int d, const float4& sums, float max,
                                  float weights) {
  const float factor = 1.0f / (weights + sink_of(p, head, max));
  const std::size_t first = (static_cast<std::size_t>(row) * p.shape.heads + head) * p.shape.head_dim + d;
  const int left = p.shape.head_dim - d;
  store(sums.x * factor, p.out, p.out_dtype, first);
  if (left > 1) store(sums.y * factor, p.out, p.out_dtype, first + 1);
  if (left > 2) store(sums.z * factor, p.out, p.out_dtype, first + 2);
  if (left > 3) store(sums.w * factor, p.out, p.out_dtype, first + 3);
}

// sums += factor × value
inline __device__ void add_times(float4& sums, float factor, const float4& value) {
  sums.x = fmaf(value.x, factor, sums.x);
  sums.y = fmaf(value.y, factor, sums.y);
  sums.z = fmaf(value.z, factor, sums.z);
  sums.w = fmaf(value.w, factor, sums.w);
}

}  // namespace computron::kernels::cuda
