#include "kernels/cpu/low_rank.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

// Columns of `a` that are summed up at once, in as many registers as hide the latency of a sum.
constexpr int kRegisters = 4;

// `whole` vectors of columns, and `rest` < 8 columns behind them.
template <int kWhole>
void add_columns(const float* x, int n, const float* a, int rank, int rest, float* sums) {
  F8 sum[kWhole + 1];
  for (int v = 0; v < kWhole; ++v) sum[v] = load(sums + v * kLanes);
  sum[kWhole] = rest > 0 ? load_first(sums + kWhole * kLanes, rest) : splat(0);
  for (int i = 0; i < n; ++i, a += rank) {
    const F8 factor = splat(x[i]);
    for (int v = 0; v < kWhole; ++v) sum[v] = fma(factor, load(a + v * kLanes), sum[v]);
    if (rest > 0) sum[kWhole] = fma(factor, load_first(a + kWhole * kLanes, rest), sum[kWhole]);
  }
  for (int v = 0; v < kWhole; ++v) store(sums + v * kLanes, sum[v]);
  if (rest > 0) store_first(sums + kWhole * kLanes, sum[kWhole], rest);
}

}  // namespace

void add_low_rank_in(const float* x, int n, const float* a, int rank, float* sums) {
  int column = 0;
  for (; rank - column >= kRegisters * kLanes; column += kRegisters * kLanes) {
    add_columns<kRegisters>(x, n, a + column, rank, 0, sums + column);
  }
  for (; rank - column >= 2 * kLanes; column += 2 * kLanes) add_columns<2>(x, n, a + column, rank, 0, sums + column);
  if (rank - column >= kLanes) return add_columns<1>(x, n, a + column, rank, rank - column - kLanes, sums + column);
  if (rank > column) add_columns<0>(x, n, a + column, rank, rank - column, sums + column);
}

void add_low_rank_out(const float* sums, int rows, int rank, const float* b, int n, float* out, int stride) {
  float turned[kMaxLowRank * kLanes];  // [rank, 8 outputs]
  for (int first = 0; first < n; first += kLanes, b += kLanes * rank) {
    const int outputs = std::min(kLanes, n - first);
    for (int k = 0; k < rank; ++k) {
      for (int o = 0; o < kLanes; ++o) turned[k * kLanes + o] = o < outputs ? b[o * rank + k] : 0;
    }
    for (int row = 0; row < rows; ++row) {
      F8 sum = splat(0);
      for (int k = 0; k < rank; ++k) sum = fma(splat(sums[row * rank + k]), load(turned + k * kLanes), sum);
      float* const to = out + static_cast<std::ptrdiff_t>(row) * stride + first;
      if (outputs == kLanes) {
        store(to, add(load(to), sum));
      } else {
        store_first(to, add(load_first(to, outputs), sum), outputs);
      }
    }
  }
}

}  // namespace computron::kernels
