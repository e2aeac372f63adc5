#include "computron/base/convert.h"

#include <cstring>

#include "computron/base/vectors.h"

namespace computron {
namespace {

constexpr std::size_t kLanes = 8;

// A float32, a binary16 or a bfloat16 in memory: loads and stores eight of them as float32.
struct F32 {
  static constexpr std::size_t kBytes = 4;
  static __m256 load(const std::byte* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static void store(std::byte* p, __m256 x) { _mm256_storeu_ps(reinterpret_cast<float*>(p), x); }
};

__m128i load_halves(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
void store_halves(std::byte* p, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x); }

__m256 magnitude(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

// x held to [-largest, largest], infinities and NaN left alone.
__m256 saturated(__m256 x, float largest) {
  const __m256 size = magnitude(x);
  const __m256 too_large = _mm256_and_ps(_mm256_cmp_ps(size, _mm256_set1_ps(largest), _CMP_GT_OQ),
                                         _mm256_cmp_ps(size, _mm256_set1_ps(__builtin_inff()), _CMP_LT_OQ));
  const __m256 limit = _mm256_or_ps(_mm256_and_ps(x, _mm256_set1_ps(-0.0f)), _mm256_set1_ps(largest));
  return _mm256_blendv_ps(x, limit, too_large);
}

struct F16 {
  static constexpr std::size_t kBytes = 2;
  static constexpr float kLargest = 65504.0f;
  static __m256 load(const std::byte* p) { return _mm256_cvtph_ps(load_halves(p)); }
  static void store(std::byte* p, __m256 x) {
    store_halves(p, _mm256_cvtps_ph(saturated(x, kLargest), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

struct BF16 {
  static constexpr std::size_t kBytes = 2;
  static constexpr float kLargest = 0x1.fep127f;  // 0x7f7f
  static __m256 load(const std::byte* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(p)), 16));
  }
  // The upper half, and one more where the lower half is beyond its middle, or at it and the upper half odd.
  static void store(std::byte* p, __m256 x) {
    const __m256i bits = _mm256_castps_si256(saturated(x, kLargest));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0b1000);
    store_halves(p, _mm256_castsi256_si128(packed));
  }
};

template <class From, class To>
void convert(const std::byte* in, std::byte* out, std::size_t n) {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) To::store(out + i * To::kBytes, From::load(in + i * From::kBytes));
  if (i == n) return;
  std::byte last_in[kLanes * From::kBytes] = {}, last_out[kLanes * To::kBytes];
  std::memcpy(last_in, in + i * From::kBytes, (n - i) * From::kBytes);
  To::store(last_out, From::load(last_in));
  std::memcpy(out + i * To::kBytes, last_out, (n - i) * To::kBytes);
}

template <class From>
void convert_from(const std::byte* in, std::byte* out, DType to, std::size_t n) {
  if (to == DType::kF32) return convert<From, F32>(in, out, n);
  if (to == DType::kF16) return convert<From, F16>(in, out, n);
  convert<From, BF16>(in, out, n);
}

// Of n integers `Bits`, those whose bits under `exponent` are all set.
template <class Bits>
std::size_t count_set(const std::byte* elements, Bits exponent, std::size_t n) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, elements + i * sizeof bits, sizeof bits);
    count += (bits & exponent) == exponent ? 1 : 0;
  }
  return count;
}

// Of n numbers whose bits are `Bits`, those with the sign that are not zero.
template <class Bits>
std::size_t count_below_zero(const std::byte* elements, std::size_t n) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; ++i) {
    Bits bits;
    std::memcpy(&bits, elements + i * sizeof bits, sizeof bits);
    count += bits > kSign ? 1 : 0;
  }
  return count;
}

}  // namespace

std::size_t count_not_finite(const std::byte* elements, DType type, std::size_t n) {
  if (type == DType::kInt8 || two_in_a_byte(type)) return 0;
  if (type == DType::kFp8 || type == DType::kE4M3) return count_set<std::uint8_t>(elements, 0x7f, n);
  if (type == DType::kE8M0) return count_set<std::uint8_t>(elements, 0xff, n);
  if (type == DType::kF32) return count_set<std::uint32_t>(elements, 0x7f800000, n);
  return count_set<std::uint16_t>(elements, type == DType::kF16 ? 0x7c00 : 0x7f80, n);
}

std::size_t count_negative(const std::byte* elements, DType type, std::size_t n) {
  if (type == DType::kE8M0) return 0;
  if (type == DType::kE4M3) return count_below_zero<std::uint8_t>(elements, n);
  return type == DType::kF32 ? count_below_zero<std::uint32_t>(elements, n)
                             : count_below_zero<std::uint16_t>(elements, n);
}

void convert_elements(const std::byte* in, DType from, std::byte* out, DType to, std::size_t n) {
  if (from == to) {
    if (n > 0) std::memcpy(out, in, n * size_of(from));
  } else if (from == DType::kF32) {
    convert_from<F32>(in, out, to, n);
  } else if (from == DType::kF16) {
    convert_from<F16>(in, out, to, n);
  } else {
    convert_from<BF16>(in, out, to, n);
  }
}

}  // namespace computron
