// The template behind low_rank_avx2 and low_rank_avx512 (low_rank_kernels.h). Everything is local to the including
// file: code compiled for AVX-512 must not be linked with anything else.
//
// One row reads its matrices from memory once and for nobody else, so memory is asked kAheadBytes before: a processor's
// own prefetching begins anew in every page of 4 KiB. Several rows share what is read and expanded, as many as there
// are registers for their sums.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cpu/low_rank_kernels.h"

namespace computron::kernels {
namespace {

// L: V, Bf16, kCount, kWide; load, load_first, store, store_first; splat, add, fma.
template <class L>
struct WideLowRank {
  using V = typename L::V;
  static constexpr std::ptrdiff_t kAheadBytes = 2048;
  static constexpr int kMostRows = 2 * L::kWide, kSomeRows = L::kWide;

  // A vector, or its first `count` values.
  template <bool kWhole, class T>
  static V load(const T* p, int count) {
    if constexpr (kWhole) return L::load(p);
    return L::load_first(p, count);
  }
  template <bool kWhole>
  static void store(float* p, V x, int count) {
    if constexpr (kWhole) return L::store(p, x);
    L::store_first(p, x, count);
  }
  static void ask_ahead(const void* p) {
    __builtin_prefetch(static_cast<const std::byte*>(p) + kAheadBytes, /*write=*/0, /*locality=*/3);
  }

  // kVectors of columns of A, or one of the first `count`, with kRows rows: kChains chains at once, which hides the
  // latency of a sum.
  template <int kRows, int kChains, int kVectors, bool kWhole, class T>
  static void add_columns(const float* x, int x_stride, int n, const T* a, int rank, int count, float* sums) {
    const auto of_row = [&](int r, int c, int v) {
      return sums + (static_cast<std::ptrdiff_t>(r) * kLowRankSums + c) * rank + v * L::kCount;
    };
    for (int first = 0; first < kLowRankSums; first += kChains) {
      V sum[kRows][kChains][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kChains; ++c) {
          for (int v = 0; v < kVectors; ++v) sum[r][c][v] = load<kWhole>(of_row(r, first + c, v), count);
        }
      }
      const auto add = [&](int i, int c) {
        const T* const row = a + static_cast<std::ptrdiff_t>(i) * rank;
        for (int v = 0; v < kVectors; ++v) {
          if constexpr (kRows == 1) ask_ahead(row + v * L::kCount);
          const V values = load<kWhole>(row + v * L::kCount, count);
          for (int r = 0; r < kRows; ++r) {
            sum[r][c][v] = L::fma(L::splat(x[static_cast<std::ptrdiff_t>(r) * x_stride + i]), values, sum[r][c][v]);
          }
        }
      };
      int i = first;
      for (; i + kChains <= n; i += kLowRankSums) {
        for (int c = 0; c < kChains; ++c) add(i + c, c);
      }
      for (int c = 0; i + c < n; ++c) add(i + c, c);
      for (int r = 0; r < kRows; ++r) {
        for (int c = 0; c < kChains; ++c) {
          for (int v = 0; v < kVectors; ++v) store<kWhole>(of_row(r, first + c, v), sum[r][c][v], count);
        }
      }
    }
  }

  template <int kRows, class T>
  static void add_in_of(const float* x, int x_stride, int n, const T* a, int rank, float* sums) {
    constexpr int kChains = kRows == 1 ? kLowRankSums : kRows == kSomeRows ? L::kWide : L::kWide / 2;
    int k = 0;
    for (; rank - k >= 2 * L::kCount; k += 2 * L::kCount) {
      add_columns<kRows, kChains, 2, true>(x, x_stride, n, a + k, rank, 0, sums + k);
    }
    for (; rank - k >= L::kCount; k += L::kCount) {
      add_columns<kRows, kChains, 1, true>(x, x_stride, n, a + k, rank, 0, sums + k);
    }
    if (k < rank) add_columns<kRows, kChains, 1, false>(x, x_stride, n, a + k, rank, rank - k, sums + k);
  }

  // kBlocks of B, of which `n` outputs are wanted, with kRows rows.
  template <int kRows, int kBlocks, class T>
  static void add_blocks(const float* sums, int rank, const T* b, int n, float* out, int stride) {
    constexpr int kVectors = kBlocks * kLowRankOutputs / L::kCount;
    V sum[kRows][kVectors];
    for (auto& of_row : sum) {
      for (V& s : of_row) s = L::splat(0);
    }
    for (int k = 0; k < rank; ++k, b += kLowRankOutputs) {
      for (int v = 0; v < kVectors; ++v) {
        const int block = v * L::kCount / kLowRankOutputs, lane = v * L::kCount % kLowRankOutputs;
        const T* const of_block = b + static_cast<std::ptrdiff_t>(block) * rank * kLowRankOutputs + lane;
        if constexpr (kRows == 1) ask_ahead(of_block);
        const V values = L::load(of_block);
        for (int r = 0; r < kRows; ++r) {
          const float factor = sums[static_cast<std::ptrdiff_t>(r) * kLowRankSums * rank + k];
          sum[r][v] = L::fma(L::splat(factor), values, sum[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      float* const to = out + static_cast<std::ptrdiff_t>(r) * stride;
      for (int v = 0; v < kVectors && v * L::kCount < n; ++v) {
        const int count = n - v * L::kCount;
        float* const at = to + v * L::kCount;
        if (count >= L::kCount) {
          L::store(at, L::add(L::load(at), sum[r][v]));
        } else {
          L::store_first(at, L::add(L::load_first(at, count), sum[r][v]), count);
        }
      }
    }
  }

  template <int kRows, class T>
  static void add_out_of(const float* sums, int rank, const T* b, int n, float* out, int stride) {
    constexpr int kBlocks = kRows == 1 ? 4 : 1, kOutputs = kBlocks * kLowRankOutputs;
    int o = 0;
    for (; o + kOutputs <= n; o += kOutputs, b += kOutputs * rank) {
      add_blocks<kRows, kBlocks>(sums, rank, b, kOutputs, out + o, stride);
    }
    for (; o < n; o += kLowRankOutputs, b += kLowRankOutputs * rank) {
      add_blocks<kRows, 1>(sums, rank, b, n - o < kLowRankOutputs ? n - o : kLowRankOutputs, out + o, stride);
    }
  }

  // Calls body(number of rows as a type, first row), as many rows at a time as there are.
  template <int kRows>
  using Rows = std::integral_constant<int, kRows>;
  template <class Body>
  static void by_rows(int rows, const Body& body) {
    int r = 0;
    for (; r + kMostRows <= rows; r += kMostRows) body(Rows<kMostRows>(), static_cast<std::ptrdiff_t>(r));
    for (; r + kSomeRows <= rows; r += kSomeRows) body(Rows<kSomeRows>(), static_cast<std::ptrdiff_t>(r));
    for (; r < rows; ++r) body(Rows<1>(), static_cast<std::ptrdiff_t>(r));
  }

  // Calls body(the elements of a matrix).
  template <class Body>
  static void with_elements(const std::byte* matrix, DType dtype, const Body& body) {
    if (dtype == DType::kF32) return body(reinterpret_cast<const float*>(matrix));
    body(reinterpret_cast<const typename L::Bf16*>(matrix));
  }

  static void add_in(const float* x, int x_stride, int rows, int n, const std::byte* a, DType dtype, int rank,
                     float* sums) {
    with_elements(a, dtype, [&](const auto* of_a) {
      by_rows(rows, [&]<class R>(R, std::ptrdiff_t r) {
        add_in_of<R::value>(x + r * x_stride, x_stride, n, of_a, rank, sums + r * kLowRankSums * rank);
      });
    });
  }

  static void add_out(const float* sums, int rows, int rank, const std::byte* b, DType dtype, int n, float* out,
                      int stride) {
    with_elements(b, dtype, [&](const auto* of_b) {
      by_rows(rows, [&]<class R>(R, std::ptrdiff_t r) {
        add_out_of<R::value>(sums + r * kLowRankSums * rank, rank, of_b, n, out + r * stride, stride);
      });
    });
  }

  static constexpr LowRankKernels kernels() { return {add_in, add_out}; }
};

}  // namespace
}  // namespace computron::kernels
