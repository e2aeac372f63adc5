#include <cstddef>

#include "kernels/cpu/expand256.h"

namespace computron::kernels {
namespace {

struct ExpandedF32 : Expand256 {
  struct Two {
    V first, second;
  };
  static constexpr int kPairBytes = 128 * 4;
  static constexpr auto kAhead = _MM_HINT_T0;

  struct Int8 {
    static constexpr int kPairBytes = 128;
    const std::byte* codes;
    explicit Int8(const std::byte* p) : codes(p) {}
    F8 eight(int first) const { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load64(codes + first))); }
    V sixteen(int first) const { return {eight(first), eight(first + 8)}; }
    template <int kPart>
    Two floats() const {
      return {sixteen(32 * kPart), sixteen(32 * kPart + 16)};
    }
  };

  struct Int4 {
    static constexpr int kPairBytes = 64;
    __m256i low, high;  // words
    explicit Int4(const std::byte* p) : low(load256(p)), high(load256(p + 32)) {}
    template <int kNibble>
    V sixteen() const {
      const auto value = [](__m256i words) {
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 28 - 4 * kNibble), 28));
      };
      return {value(low), value(high)};
    }
    template <int kPart>
    Two floats() const {
      return {sixteen<2 * kPart>(), sixteen<2 * kPart + 1>()};
    }
  };

  // A permutation reads three bits of each lane, and the fourth is the sign.
  struct Fp4 {
    static constexpr int kPairBytes = 64;
    __m256i low, high;  // words
    explicit Fp4(const std::byte* p) : low(load256(p)), high(load256(p + 32)) {}
    template <int kNibble>
    V sixteen() const {
      const auto value = [](__m256i words) {
        const __m256i codes = _mm256_srli_epi32(words, 4 * kNibble);
        const F8 size = _mm256_permutevar8x32_ps(_mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6), codes);
        return _mm256_or_ps(size,
                            _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)), _mm256_set1_ps(-0.0f)));
      };
      return {value(low), value(high)};
    }
    template <int kPart>
    Two floats() const {
      return {sixteen<2 * kPart>(), sixteen<2 * kPart + 1>()};
    }
  };

  struct Fp8 {
    static constexpr int kPairBytes = 128;
    static constexpr float kFactor = 256;
    const std::byte* codes;
    explicit Fp8(const std::byte* p) : codes(p) {}
    V sixteen(int first) const { return floats_of_e4m3(load128(codes + first)); }
    template <int kPart>
    Two floats() const {
      return {sixteen(32 * kPart), sixteen(32 * kPart + 16)};
    }
  };

  static void spread(const V (&rows)[4], V (&codes)[8]) {
    for (int j = 0; j < 8; ++j) codes[j] = rows[j % 4];
  }
  static void store(std::byte* to, V a, V b) {
    auto* floats = reinterpret_cast<float*>(to);
    kernels::store(floats, a.low);
    kernels::store(floats + 8, a.high);
    kernels::store(floats + 16, b.low);
    kernels::store(floats + 24, b.high);
  }
  static void widen_halves(const std::byte* from, std::byte* to) {
    for (int i = 0; i < 128; i += 8, from += 16, to += 32) {
      kernels::store(reinterpret_cast<float*>(to), _mm256_cvtph_ps(load128(from)));
    }
  }
  static void widen_pairs(const std::byte* from, std::byte* to) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    for (int i = 0; i < kRowBlock; i += 8, from += 32, to += 32) {
      const __m256i pairs = load256(from);
      kernels::store(reinterpret_cast<float*>(to), _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)));
      kernels::store(reinterpret_cast<float*>(to + kPairBytes / 2),
                     _mm256_castsi256_ps(_mm256_and_si256(pairs, upper)));
    }
  }

  static bool all_safe(V scales) { return eight_safe(scales.low) && eight_safe(scales.high); }
  static bool eight_safe(F8 scales) {
    const F8 size = _mm256_andnot_ps(kernels::splat(-0.0f), scales);
    const F8 large_enough = _mm256_cmp_ps(size, kernels::splat(kSmallestSafe), _CMP_GE_OQ);
    const F8 safe = _mm256_and_ps(large_enough, _mm256_cmp_ps(size, kernels::splat(kLargestSafe), _CMP_LT_OQ));
    const F8 zero = _mm256_cmp_ps(size, kernels::splat(0), _CMP_EQ_OQ);
    return _mm256_movemask_ps(_mm256_or_ps(safe, zero)) == 0xff;
  }
};

}  // namespace

void expand_f32_avx2(const Expansion& e, const std::byte* block, int first, int count, std::byte* to) {
  Expander<ExpandedF32>(e, block).run(first, count, to);
}

}  // namespace computron::kernels
