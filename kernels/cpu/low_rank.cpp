#include "kernels/cpu/low_rank.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

// Eight values, or the first `count` of them.
template <bool kWhole, class T>
F8 load_some(const T* p, int count) {
  if constexpr (kWhole) return load(p);
  return load_first(p, count);
}
template <bool kWhole>
void store_some(float* p, F8 x, int count) {
  if constexpr (kWhole) return store(p, x);
  store_first(p, x, count);
}

// kVectors of eight columns of A, or one of the first `count`, with one row: all chains at once, which hides the
// latency of a sum.
template <class T, int kVectors, bool kWhole>
void add_columns_of_row(const float* x, int n, const T* a, int rank, int count, float* sums) {
  F8 sum[kLowRankSums][kVectors];
  for (int c = 0; c < kLowRankSums; ++c) {
    for (int v = 0; v < kVectors; ++v) sum[c][v] = load_some<kWhole>(sums + c * rank + v * kLanes, count);
  }
  const auto add = [&](int i, int c) {
    const F8 factor = splat(x[i + c]);
    const T* row = a + static_cast<std::ptrdiff_t>(i + c) * rank;
    for (int v = 0; v < kVectors; ++v) {
      sum[c][v] = fma(factor, load_some<kWhole>(row + v * kLanes, count), sum[c][v]);
    }
  };
  int i = 0;
  for (; i + kLowRankSums <= n; i += kLowRankSums) {
    for (int c = 0; c < kLowRankSums; ++c) add(i, c);
  }
  for (int c = 0; i + c < n; ++c) add(i, c);
  for (int c = 0; c < kLowRankSums; ++c) {
    for (int v = 0; v < kVectors; ++v) store_some<kWhole>(sums + c * rank + v * kLanes, sum[c][v], count);
  }
}

// The same with kMostLowRankRows rows, chain by chain.
template <class T, int kVectors, bool kWhole>
void add_columns_of_rows(const float* x, int x_stride, int n, const T* a, int rank, int count, float* sums) {
  constexpr int kRows = kMostLowRankRows;
  const int stride = kLowRankSums * rank;
  for (int c = 0; c < kLowRankSums; ++c, sums += rank) {
    F8 sum[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sum[r][v] = load_some<kWhole>(sums + r * stride + v * kLanes, count);
    }
    for (int i = c; i < n; i += kLowRankSums) {
      const T* row = a + static_cast<std::ptrdiff_t>(i) * rank;
      F8 values[kVectors];
      for (int v = 0; v < kVectors; ++v) values[v] = load_some<kWhole>(row + v * kLanes, count);
      for (int r = 0; r < kRows; ++r) {
        const F8 factor = splat(x[static_cast<std::ptrdiff_t>(r) * x_stride + i]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(factor, values[v], sum[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) store_some<kWhole>(sums + r * stride + v * kLanes, sum[r][v], count);
    }
  }
}

template <class T, int kVectors, bool kWhole>
void add_columns(const float* x, int x_stride, int rows, int n, const T* a, int rank, int count, float* sums) {
  int r = 0;
  const auto row = [&](const float* of, int stride) { return of + static_cast<std::ptrdiff_t>(r) * stride; };
  const auto sums_of_row = [&] { return sums + static_cast<std::ptrdiff_t>(r) * kLowRankSums * rank; };
  for (; r + kMostLowRankRows <= rows; r += kMostLowRankRows) {
    add_columns_of_rows<T, kVectors, kWhole>(row(x, x_stride), x_stride, n, a, rank, count, sums_of_row());
  }
  for (; r < rows; ++r) add_columns_of_row<T, kVectors, kWhole>(row(x, x_stride), n, a, rank, count, sums_of_row());
}

template <class T>
void add_in(const float* x, int x_stride, int rows, int n, const T* a, int rank, float* sums) {
  int k = 0;
  for (; rank - k >= 2 * kLanes; k += 2 * kLanes) {
    add_columns<T, 2, true>(x, x_stride, rows, n, a + k, rank, 0, sums + k);
  }
  for (; rank - k >= kLanes; k += kLanes) add_columns<T, 1, true>(x, x_stride, rows, n, a + k, rank, 0, sums + k);
  if (k < rank) add_columns<T, 1, false>(x, x_stride, rows, n, a + k, rank, rank - k, sums + k);
}

// kBlocks of B, of which `n` outputs are wanted, with kRows rows.
template <class T, int kRows, int kBlocks>
void add_blocks(const float* sums, int rank, const T* b, int n, float* out, int stride) {
  constexpr int kVectors = kBlocks * kLowRankOutputs / kLanes;
  F8 sum[kRows][kVectors];
  for (auto& of_row : sum) std::fill_n(of_row, kVectors, splat(0));
  for (int k = 0; k < rank; ++k, b += kLowRankOutputs) {
    F8 values[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int block = v * kLanes / kLowRankOutputs, lane = v * kLanes % kLowRankOutputs;
      values[v] = load(b + static_cast<std::ptrdiff_t>(block) * rank * kLowRankOutputs + lane);
    }
    for (int r = 0; r < kRows; ++r) {
      const F8 factor = splat(sums[static_cast<std::ptrdiff_t>(r) * kLowRankSums * rank + k]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(factor, values[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* const to = out + static_cast<std::ptrdiff_t>(r) * stride;
    for (int v = 0; v < kVectors && v * kLanes < n; ++v) {
      const int count = n - v * kLanes;
      if (count >= kLanes) {
        store(to + v * kLanes, add(load(to + v * kLanes), sum[r][v]));
      } else {
        store_first(to + v * kLanes, add(load_first(to + v * kLanes, count), sum[r][v]), count);
      }
    }
  }
}

template <class T, int kRows, int kBlocks>
void add_outputs(const float* sums, int rank, const T* b, int n, float* out, int stride) {
  constexpr int kOutputs = kBlocks * kLowRankOutputs;
  int o = 0;
  for (; o + kOutputs <= n; o += kOutputs, b += kOutputs * rank) {
    add_blocks<T, kRows, kBlocks>(sums, rank, b, kOutputs, out + o, stride);
  }
  for (; o < n; o += kLowRankOutputs, b += kLowRankOutputs * rank) {
    add_blocks<T, kRows, 1>(sums, rank, b, std::min(n - o, kLowRankOutputs), out + o, stride);
  }
}

template <class T>
void add_out(const float* sums, int rows, int rank, const T* b, int n, float* out, int stride) {
  int r = 0;
  const auto sums_of_row = [&] { return sums + static_cast<std::ptrdiff_t>(r) * kLowRankSums * rank; };
  const auto out_of_row = [&] { return out + static_cast<std::ptrdiff_t>(r) * stride; };
  for (; r + kMostLowRankRows <= rows; r += kMostLowRankRows) {
    add_outputs<T, kMostLowRankRows, 1>(sums_of_row(), rank, b, n, out_of_row(), stride);
  }
  for (; r < rows; ++r) add_outputs<T, 1, 4>(sums_of_row(), rank, b, n, out_of_row(), stride);
}

}  // namespace

void add_low_rank_in(const float* x, int x_stride, int rows, int n, const std::byte* a, DType dtype, int rank,
                     float* sums) {
  with_element(dtype, [&]<class T>(T) { add_in(x, x_stride, rows, n, reinterpret_cast<const T*>(a), rank, sums); });
}

void join_low_rank(float factor, int rank, float* sums) {
  for (int k = 0; k < rank; ++k) {
    sums[k] = factor * ((sums[k] + sums[rank + k]) + (sums[2 * rank + k] + sums[3 * rank + k]));
  }
}

void add_low_rank_out(const float* sums, int rows, int rank, const std::byte* b, DType dtype, int n, float* out,
                      int stride) {
  with_element(dtype, [&]<class T>(T) { add_out(sums, rows, rank, reinterpret_cast<const T*>(b), n, out, stride); });
}

}  // namespace computron::kernels
