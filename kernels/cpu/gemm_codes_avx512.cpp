// Compiled with AVX-512; nothing here runs unless usable_isa() says so.
#include <algorithm>

#include "kernels/cpu/expand512.h"
#include "kernels/cpu/gemm_codes.h"

namespace computron::kernels {
namespace {

using V = __m512;

// A pair of k of a block are four parts of 32 codes (expand_impl.h): columns 0 to 31 and 32 to 63 of the first k, then
// of the second.
template <class Code>
class CodesGemmF32 {
  static constexpr int kMostTogether = 6;  // rows of x that meet all columns of a block at once
  static constexpr int kMostInTurns = 12;  // that meet one half of them at once
  static constexpr int kSliceDepth = 64;   // of what is expanded

 public:
  CodesGemmF32(const PanelCall& call, float factor)
      : call_(call), e_(*call.expansion), factor_(factor), depth_(static_cast<std::size_t>(call.depth)) {}

  void run() const {
    const std::byte* block = call_.weight;
    const int groups = ceil_div(call_.rows, kMostInTurns), most = ceil_div(call_.rows, groups);
    for (int n = 0; n < call_.columns; n += kRowBlock, block += e_.layout.block_bytes()) {
      for (int m = 0; m < call_.rows; m += most) {
        const std::size_t first = static_cast<std::size_t>(m) * call_.columns + n;
        run_group(std::min(most, call_.rows - m), block, m, call_.tile + first);
      }
    }
  }

 private:
  // Rows of x from row m on; their part of the tile.
  template <int kRows = 1>
  void run_group(int rows, const std::byte* block, int m, float* tile) const {
    if constexpr (kRows < kMostInTurns) {
      if (rows > kRows) return run_group<kRows + 1>(rows, block, m, tile);
    }
    const float* x = reinterpret_cast<const float*>(call_.x) + m * depth_;
    if constexpr (kRows <= kMostTogether) {
      multiply<kRows, 0, 2>(block, x, tile);
    } else {
      multiply<kRows, 0, 1>(block, x, tile);
      multiply<kRows, 1, 1>(block, x, tile);
    }
  }

  // kHalves halves of a block's columns, from half kFirst on.
  template <int kRows, int kFirst, int kHalves>
  void multiply(const std::byte* block, const float* x, float* tile) const {
    V sums[kRows][2 * kHalves] = {};
    for (int k = 0, next; k < call_.depth; k = next) {
      next = std::min(k + e_.layout.group, call_.depth);
      V scales[2 * kHalves];
      if (load_scales<kFirst, kHalves>(block, k / e_.layout.group, scales)) {
        add_codes<kRows, kFirst, kHalves>(block + e_.layout.codes_at(k), x + k, x + next, scales, sums);
      } else {
        add_expanded<kRows, kFirst, kHalves>(block, k, next, x, sums);
      }
    }
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < 2 * kHalves; ++v) {
        _mm512_storeu_ps(tile + static_cast<std::size_t>(m) * call_.columns + 32 * kFirst + 16 * v, sums[m][v]);
      }
    }
  }

  // Whether they are what products with codes are exact for.
  template <int kFirst, int kHalves>
  bool load_scales(const std::byte* block, int group, V (&scales)[2 * kHalves]) const {
    const std::byte* p = block + e_.layout.scales_at(group);
    bool safe = true;
    for (int v = 0; v < 2 * kHalves; ++v) {
      const int from = 2 * kFirst + v;
      scales[v] = e_.type.has_factors() ? Expand512::load_scales(p, block, from)
                                        : Expand512::load_scales(p, e_.type.scales, from);
      safe &= Expand512::all_safe(scales[v]);
      scales[v] = _mm512_mul_ps(scales[v], _mm512_set1_ps(factor_));
    }
    return safe;
  }

  // Elements of the first row of x from `x` to `end`.
  template <int kRows, int kFirst, int kHalves>
  __attribute__((always_inline)) void add_codes(const std::byte* codes, const float* x, const float* end,
                                                const V (&scales)[2 * kHalves], V (&sums)[kRows][2 * kHalves]) const {
    const int ahead = call_.blocking.codes_ahead_bytes;
    for (; x < end; x += 2, codes += Code::kPairBytes) {
      for (int b = 0; b < Code::kPairBytes; b += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(codes + ahead + b), _MM_HINT_T0);
      }
      const Code code(codes);
      add_half<kRows, 0>(code.template floats<kFirst>(), x, scales, sums);
      if constexpr (kHalves == 2) add_half<kRows, 2>(code.template floats<1>(), x, scales, sums);
      add_half<kRows, 0>(code.template floats<kFirst + 2>(), x + 1, scales, sums);
      if constexpr (kHalves == 2) add_half<kRows, 2>(code.template floats<3>(), x + 1, scales, sums);
    }
  }

  template <int kRows, int kAt, int kVectors>
  __attribute__((always_inline)) void add_half(const Expand512::Two& two, const float* x, const V (&scales)[kVectors],
                                               V (&sums)[kRows][kVectors]) const {
    const V first = _mm512_mul_ps(two.first, scales[kAt]), second = _mm512_mul_ps(two.second, scales[kAt + 1]);
    for (int m = 0; m < kRows; ++m) {
      const V element = _mm512_set1_ps(x[m * depth_]);
      sums[m][kAt] = _mm512_fmadd_ps(element, first, sums[m][kAt]);
      sums[m][kAt + 1] = _mm512_fmadd_ps(element, second, sums[m][kAt + 1]);
    }
  }

  template <int kRows, int kFirst, int kHalves>
  void add_expanded(const std::byte* block, int k, int end, const float* x, V (&sums)[kRows][2 * kHalves]) const {
    for (int next; k < end; k = next) {
      next = std::min(k + kSliceDepth, end);
      const auto* values = reinterpret_cast<const float*>(call_.expanded(block, k, next - k)) + 32 * kFirst;
      for (int i = k; i < next; ++i, values += kRowBlock) {
        for (int m = 0; m < kRows; ++m) {
          for (int v = 0; v < 2 * kHalves; ++v) {
            sums[m][v] =
                _mm512_fmadd_ps(_mm512_set1_ps(x[m * depth_ + i]), _mm512_loadu_ps(values + 16 * v), sums[m][v]);
          }
        }
      }
    }
  }

  const PanelCall& call_;
  const Expansion& e_;
  float factor_;  // by which codes are too small
  std::size_t depth_;
};

}  // namespace

void gemm_codes_f32_avx512(const PanelCall& call) {
  switch (call.expansion->type.codes) {
    case DType::kInt8:
      return CodesGemmF32<Expand512::Int8>(call, 1).run();
    case DType::kInt4:
      return CodesGemmF32<Expand512::Int4>(call, 1).run();
    case DType::kFp4:
      return CodesGemmF32<Expand512::Fp4>(call, 1).run();
    default:
      return CodesGemmF32<Expand512::Fp8>(call, Expand512::Fp8::kFactor).run();
  }
}

}  // namespace computron::kernels
