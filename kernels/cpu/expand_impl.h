// The expansion of expand.h, written once for the lanes and values of the file that includes it. Everything is local to
// that file: what is compiled for AVX-512 must not be linked with anything else.
//
// A pair of k of a block are 128 codes: four times 32, which become two vectors of 16 floats. Each is multiplied by the
// scales of its rows, which stay in registers while a group lasts.
#pragma once

#include <algorithm>

#include "computron/base/vectors.h"
#include "kernels/cpu/expand.h"

namespace computron::kernels {
namespace {

// Magnitudes of scales, besides zero, with which no product is subnormal or passes through what is not finite: bfloat16
// is not rounded rightly from subnormal floats.
inline constexpr float kSmallestSafe = 0x1p-117f, kLargestSafe = 0x1p119f;

// For kernels that take codes in registers.
struct CodesAhead {
  // Memory for the line that is so far ahead of `p`: into the second cache, and from 1 KiB ahead into the first.
  // GCC 12 removes calls of a function that only prefetches, unless it is inlined.
  static __attribute__((always_inline)) void ask(const std::byte* p, int ahead_bytes) {
    constexpr int kNearBytes = 1024;
    const char* line = reinterpret_cast<const char*>(p);
    _mm_prefetch(line + ahead_bytes, _MM_HINT_T1);
    _mm_prefetch(line + kNearBytes, _MM_HINT_T0);
  }
};

// Format: V, 16 floats; splat, multiply; load_scales(p, dtype, v): 16 of 64 scales; load_scales(p, factors, v): of
// e4m3, times the doubles that are their rows' factors; all_safe(V); spread(scales by row, scales by code of a pair of
// k); store(to, V, V) of 32 values; kPairBytes of 128 values; kAhead: the cache that memory is asked into. Int8, Int4,
// Fp4 and Fp8 hold the codes of a pair of k: kPairBytes; floats<j>(): those of codes 32 j on; fp8's are too small by
// kFactor. To float32 plain values of 16 bits go, too: widen_halves, widen_pairs(from, to) of 128 of float16, and of 64
// pairs of bfloat16, which part ways.
template <class Format>
class Expander {
  using V = typename Format::V;
  // One row on one core. Bfloat16 for AMX, Xeon of family 6, model 167, into the second cache: int8 11.5 GB/s, fp8 9.9,
  // int4 8.0; 1 KiB: 10.5, 8.4, 7.9; nothing: 7.5, 6.4, 6.5; 2 KiB into the first cache: 12, 10, but int4 6.5. Float32
  // by AVX2, Zen 4, into the first cache: 12.1, 10.5, 6.7; into the second: 8.8, 7.9, 5.6.
  static constexpr int kAheadBytes = 3072;
  static constexpr int kLine = 64;

 public:
  Expander(const Expansion& e, const std::byte* block) : e_(e), block_(block) {}

  void run(int first, int count, std::byte* to) const {
    if constexpr (requires { &Format::widen_halves; }) {
      if (!e_.type.quantised()) return widen(block_ + e_.layout.codes_at(first), count / 2, to);
    }
    for (int k = first, end = first + count, next; k < end; k = next) {
      next = std::min((k / e_.layout.group + 1) * e_.layout.group, end);
      part_of_group(k, next - k, to + (k - first) / 2 * Format::kPairBytes);
    }
  }

 private:
  void part_of_group(int k, int count, std::byte* to) const {
    V scales[8];
    if (!load_scales(block_ + e_.layout.scales_at(k / e_.layout.group), scales)) {
      return expand_plainly(block_, e_.layout, e_.type, k, count, to);
    }
    const std::byte* codes = block_ + e_.layout.codes_at(k);
    switch (e_.type.codes) {
      case DType::kInt8:
        return multiply<typename Format::Int8>(codes, count / 2, scales, to);
      case DType::kInt4:
        return multiply<typename Format::Int4>(codes, count / 2, scales, to);
      case DType::kFp4:
        return multiply<typename Format::Fp4>(codes, count / 2, scales, to);
      default:
        for (V& scale : scales) scale = Format::multiply(scale, Format::splat(Format::Fp8::kFactor));
        return multiply<typename Format::Fp8>(codes, count / 2, scales, to);
    }
  }

  // Plain values of 16 bits.
  void widen(const std::byte* values, int pairs, std::byte* to) const {
    constexpr int kPairBytes = 2 * kRowBlock * 2;
    const bool halves = e_.type.values == DType::kF16;
    for (int i = 0; i < pairs; ++i, values += kPairBytes, to += Format::kPairBytes) {
      for (int b = 0; b < kPairBytes; b += kLine) {
        _mm_prefetch(reinterpret_cast<const char*>(values + kAheadBytes + b), Format::kAhead);
      }
      halves ? Format::widen_halves(values, to) : Format::widen_pairs(values, to);
    }
  }

  // By code of a pair of k; whether all are what multiply() is exact for.
  bool load_scales(const std::byte* p, V (&scales)[8]) const {
    V rows[4];
    bool safe = true;
    for (int v = 0; v < 4; ++v) {
      rows[v] = e_.type.has_factors() ? Format::load_scales(p, block_, v) : Format::load_scales(p, e_.type.scales, v);
      safe &= Format::all_safe(rows[v]);
    }
    Format::spread(rows, scales);
    return safe;
  }

  template <class Code>
  static void multiply(const std::byte* codes, int pairs, const V (&scales)[8], std::byte* to) {
    for (int i = 0; i < pairs; ++i, codes += Code::kPairBytes, to += Format::kPairBytes) {
      for (int b = 0; b < Code::kPairBytes; b += kLine) {
        _mm_prefetch(reinterpret_cast<const char*>(codes + kAheadBytes + b), Format::kAhead);
      }
      const Code code(codes);
      multiply_part<0>(code, scales, to);
      multiply_part<1>(code, scales, to);
      multiply_part<2>(code, scales, to);
      multiply_part<3>(code, scales, to);
    }
  }

  template <int kPart, class Code>
  static void multiply_part(const Code& code, const V (&scales)[8], std::byte* to) {
    const auto [a, b] = code.template floats<kPart>();
    Format::store(to + kPart * (Format::kPairBytes / 4), Format::multiply(a, scales[2 * kPart]),
                  Format::multiply(b, scales[2 * kPart + 1]));
  }

  const Expansion& e_;
  const std::byte* block_;
};

}  // namespace
}  // namespace computron::kernels
