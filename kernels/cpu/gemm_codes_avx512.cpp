// Compiled with AVX-512; nothing here runs unless usable_isa() says so.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cpu/expand512.h"
#include "kernels/cpu/gemm_codes.h"

namespace computron::kernels {
namespace {

using V = __m512;

// How codes of a pair of k become values, vectors of 16 at a time. Scale is what they need of 16 scales, and takes()
// says whether the values are exact with those. values<k, half>() has the columns [32 half, 32 half + 32) of a k in two
// vectors; with kInQuarters instead the vectors 2 half and 2 half + 1 of those that exchange_quarters() makes.
//
// Converted: codes as Expand512 makes floats of them, times scales.
template <class Codes>
class Converted {
 public:
  static constexpr int kPairBytes = Codes::kPairBytes;
  static constexpr bool kInQuarters = false;
  using Scale = V;
  static Scale scale_of(V scales) {
    if constexpr (requires { Codes::kFactor; }) return _mm512_mul_ps(scales, _mm512_set1_ps(Codes::kFactor));
    return scales;
  }

  static bool takes(V scales) { return Expand512::all_safe(scales); }

  explicit Converted(const std::byte* p) : codes_(p) {}
  template <int kK, int kHalf, std::size_t kCount>
  __attribute__((always_inline)) Expand512::Two values(const Scale (&scales)[kCount], int at) const {
    const Expand512::Two two = codes_.template floats<2 * kK + kHalf>();
    return {_mm512_mul_ps(two.first, scales[at]), _mm512_mul_ps(two.second, scales[at + 1])};
  }

 private:
  Codes codes_;
};

// Codes of int8 without a conversion, for scales of at most 15 bits, which all of 16 bits and powers of two are. The
// byte code + 128 among the bits of 2^15 makes that 2^15 + 128 + code, and one multiply-add makes code × scale of it,
// which is exact: 8 bits by 15, and the 9 bits of 2^15 + 128 by 15, are no more than 24. Bytes move within a quarter of
// a vector only, so number v of the four vectors of a k has columns 4 v to 4 v + 3 of each 16.
class Placed {
 public:
  static constexpr int kPairBytes = Expand512::Int8::kPairBytes;
  static constexpr bool kInQuarters = true;
  struct Scale {
    V times, plus;
  };
  static Scale scale_of(V scales) { return {scales, _mm512_mul_ps(scales, _mm512_set1_ps(-(kMagic + 128)))}; }

  // Of zero and of negative scales zeros would lose their signs.
  static bool takes(V scales) {
    const __m512i bits = _mm512_castps_si512(scales);
    const __mmask16 enough = _mm512_cmpge_epi32_mask(bits, _mm512_set1_epi32(std::bit_cast<int>(kSmallestSafe)));
    return _mm512_mask_cmplt_epi32_mask(enough, bits, _mm512_set1_epi32(std::bit_cast<int>(kLargest))) == 0xffff;
  }

  explicit Placed(const std::byte* p) : bytes_{load(p), load(p + kRowBlock)} {}
  template <int kK, int kHalf, std::size_t kCount>
  __attribute__((always_inline)) Expand512::Two values(const Scale (&scales)[kCount], int at) const {
    return {value<2 * kHalf>(bytes_[kK], scales[at]), value<2 * kHalf + 1>(bytes_[kK], scales[at + 1])};
  }

 private:
  static constexpr float kMagic = 0x1p15f;
  static constexpr float kLargest = 0x1p112f;  // below it (2^15 + 128) × scale is finite

  static __m512i load(const std::byte* p) { return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128)); }
  template <int kVector>
  __attribute__((always_inline)) static V value(__m512i bytes, const Scale& scale) {
    constexpr int kFirst = 4 * kVector;  // of the bytes of a quarter
    const __m512i from =
        _mm512_broadcast_i32x4(_mm_setr_epi32(kFirst << 8, (kFirst + 1) << 8, (kFirst + 2) << 8, (kFirst + 3) << 8));
    const __m512i magic = _mm512_castps_si512(_mm512_set1_ps(kMagic));
    const __m512i placed = _mm512_mask_shuffle_epi8(magic, 0x2222222222222222, bytes, from);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(placed), scale.times, scale.plus);
  }

  __m512i bytes_[2];
};

// Quarter j of vector i becomes quarter i of vector j.
void exchange_quarters(V (&x)[4]) {
  const V low_01 = _mm512_shuffle_f32x4(x[0], x[1], 0x44), high_01 = _mm512_shuffle_f32x4(x[0], x[1], 0xee);
  const V low_23 = _mm512_shuffle_f32x4(x[2], x[3], 0x44), high_23 = _mm512_shuffle_f32x4(x[2], x[3], 0xee);
  x[0] = _mm512_shuffle_f32x4(low_01, low_23, 0x88);
  x[1] = _mm512_shuffle_f32x4(low_01, low_23, 0xdd);
  x[2] = _mm512_shuffle_f32x4(high_01, high_23, 0x88);
  x[3] = _mm512_shuffle_f32x4(high_01, high_23, 0xdd);
}

template <class Codes>
class CodesGemmF32 {
  static constexpr int kMostPlaced = 4;    // rows of x that gain by it
  static constexpr int kMostTogether = 6;  // rows of x that meet all columns of a block at once
  static constexpr int kMostInTurns = 12;  // that meet one half of them at once
  static constexpr int kSliceDepth = 64;   // of what is expanded
  static constexpr std::size_t kLine = 64;

 public:
  explicit CodesGemmF32(const PanelCall& call)
      : call_(call), e_(*call.expansion), depth_(static_cast<std::size_t>(call.depth)) {}

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
    if constexpr (std::is_same_v<Codes, Expand512::Int8> && kRows <= kMostPlaced) {
      if (has_short_scales(e_.type)) return multiply<Placed, kRows, 0, 2>(block, x, tile);
    }
    if constexpr (kRows <= kMostTogether) {
      multiply<Converted<Codes>, kRows, 0, 2>(block, x, tile);
    } else {
      multiply<Converted<Codes>, kRows, 0, 1>(block, x, tile);
      multiply<Converted<Codes>, kRows, 1, 1>(block, x, tile);
    }
  }

  // kHalves halves of a block's columns, from half kFirst on.
  template <class Code, int kRows, int kFirst, int kHalves>
  void multiply(const std::byte* block, const float* x, float* tile) const {
    V sums[kRows][2 * kHalves] = {};
    for (int k = 0, next; k < call_.depth; k = next) {
      next = std::min(k + e_.layout.group, call_.depth);
      typename Code::Scale scales[2 * kHalves];
      if (load_scales<Code, kFirst>(block, k / e_.layout.group, scales)) {
        add_codes<Code, kRows, kFirst, kHalves>(block + e_.layout.codes_at(k), x + k, x + next, scales, sums);
      } else {
        add_expanded<Code, kRows, kFirst, kHalves>(block, k, next, x, sums);
      }
    }
    for (int m = 0; m < kRows; ++m) {
      if constexpr (Code::kInQuarters) exchange_quarters(sums[m]);
      for (int v = 0; v < 2 * kHalves; ++v) {
        _mm512_storeu_ps(tile + static_cast<std::size_t>(m) * call_.columns + 32 * kFirst + 16 * v, sums[m][v]);
      }
    }
  }

  // Whether Code takes them.
  template <class Code, int kFirst, std::size_t kVectors>
  bool load_scales(const std::byte* block, int group, typename Code::Scale (&scales)[kVectors]) const {
    const std::byte* p = block + e_.layout.scales_at(group);
    for (std::size_t b = 0; b < kRowBlock * e_.layout.scale_bytes; b += kLine) ask(p + b);
    V plain[kVectors];
    bool safe = true;
    for (std::size_t v = 0; v < kVectors; ++v) {
      const int from = 2 * kFirst + static_cast<int>(v);
      plain[v] = e_.type.has_factors() ? Expand512::load_scales(p, block, from)
                                       : Expand512::load_scales(p, e_.type.scales, from);
      safe &= Code::takes(plain[v]);
    }
    if constexpr (Code::kInQuarters) exchange_quarters(plain);
    for (std::size_t v = 0; v < kVectors; ++v) scales[v] = Code::scale_of(plain[v]);
    return safe;
  }

  // Elements of the first row of x from `x` to `end`.
  template <class Code, int kRows, int kFirst, int kHalves>
  __attribute__((always_inline)) void add_codes(const std::byte* codes, const float* x, const float* end,
                                                const typename Code::Scale (&scales)[2 * kHalves],
                                                V (&sums)[kRows][2 * kHalves]) const {
    for (; x < end; x += 2, codes += Code::kPairBytes) {
      for (int b = 0; b < Code::kPairBytes; b += kLine) ask(codes + b);
      const Code code(codes);
      add_half<0>(code.template values<0, kFirst>(scales, 0), x, sums);
      if constexpr (kHalves == 2) add_half<2>(code.template values<0, 1>(scales, 2), x, sums);
      add_half<0>(code.template values<1, kFirst>(scales, 0), x + 1, sums);
      if constexpr (kHalves == 2) add_half<2>(code.template values<1, 1>(scales, 2), x + 1, sums);
    }
  }

  template <int kAt, int kRows, int kVectors>
  __attribute__((always_inline)) void add_half(const Expand512::Two& values, const float* x,
                                               V (&sums)[kRows][kVectors]) const {
    for (int m = 0; m < kRows; ++m) {
      const V element = _mm512_set1_ps(x[m * depth_]);
      sums[m][kAt] = _mm512_fmadd_ps(element, values.first, sums[m][kAt]);
      sums[m][kAt + 1] = _mm512_fmadd_ps(element, values.second, sums[m][kAt + 1]);
    }
  }

  template <class Code, int kRows, int kFirst, int kHalves>
  void add_expanded(const std::byte* block, int k, int end, const float* x, V (&sums)[kRows][2 * kHalves]) const {
    for (int next; k < end; k = next) {
      next = std::min(k + kSliceDepth, end);
      const auto* values = reinterpret_cast<const float*>(call_.expanded(block, k, next - k)) + 32 * kFirst;
      for (int i = k; i < next; ++i, values += kRowBlock) {
        V weights[2 * kHalves];
        for (int v = 0; v < 2 * kHalves; ++v) weights[v] = _mm512_loadu_ps(values + 16 * v);
        if constexpr (Code::kInQuarters) exchange_quarters(weights);
        for (int m = 0; m < kRows; ++m) {
          for (int v = 0; v < 2 * kHalves; ++v) {
            sums[m][v] = _mm512_fmadd_ps(_mm512_set1_ps(x[m * depth_ + i]), weights[v], sums[m][v]);
          }
        }
      }
    }
  }

  __attribute__((always_inline)) void ask(const std::byte* p) const {
    Expand512::ask(p, call_.blocking.codes_ahead_bytes);
  }

  const PanelCall& call_;
  const Expansion& e_;
  std::size_t depth_;
};

}  // namespace

void gemm_codes_f32_avx512(const PanelCall& call) {
  switch (call.expansion->type.codes) {
    case DType::kInt8:
      return CodesGemmF32<Expand512::Int8>(call).run();
    case DType::kInt4:
      return CodesGemmF32<Expand512::Int4>(call).run();
    case DType::kFp4:
      return CodesGemmF32<Expand512::Fp4>(call).run();
    default:
      return CodesGemmF32<Expand512::Fp8>(call).run();
  }
}

}  // namespace computron::kernels
