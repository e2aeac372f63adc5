#include "computron/base/widen.h"

#include <immintrin.h>

#include <cstring>

namespace computron {
namespace {

__m256 widened(__m128i bits, DType dtype) {
  if (dtype == DType::kF16) return _mm256_cvtph_ps(bits);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

float widened(std::uint16_t bits, DType dtype) {
  return dtype == DType::kF16 ? f32_from_f16(bits) : f32_from_bf16(bits);
}

}  // namespace

void widen(const std::byte* in, DType dtype, float* out, std::size_t count) {
  ensure(dtype != DType::kF32, "float32 is as wide as it gets");
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i));
    _mm256_storeu_ps(out + i, widened(bits, dtype));
  }
  for (; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof bits);
    out[i] = widened(bits, dtype);
  }
}

}  // namespace computron
