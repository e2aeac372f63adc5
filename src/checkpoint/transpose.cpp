#include "src/checkpoint/transpose.h"

#include <cstdint>

#include "computron/base/error.h"
#include "computron/base/vectors.h"

namespace computron {
namespace {

constexpr std::size_t kTile = 8;

// Eight rows of eight: pairs of rows are interleaved by elements, then by pairs, then by quadruples.
void transpose_tile(const std::uint16_t* in, std::size_t in_stride, std::uint16_t* out, std::size_t out_stride) {
  __m128i row[kTile], pairs[kTile], quads[kTile];
  for (std::size_t r = 0; r < kTile; ++r)
    row[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + r * in_stride));
  for (std::size_t i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm_unpacklo_epi16(row[2 * i], row[2 * i + 1]);
    pairs[2 * i + 1] = _mm_unpackhi_epi16(row[2 * i], row[2 * i + 1]);
  }
  for (std::size_t half = 0; half < kTile; half += 4) {
    for (std::size_t i = 0; i < 2; ++i) {
      quads[half + 2 * i] = _mm_unpacklo_epi32(pairs[half + i], pairs[half + i + 2]);
      quads[half + 2 * i + 1] = _mm_unpackhi_epi32(pairs[half + i], pairs[half + i + 2]);
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    auto* to = out + 2 * i * out_stride;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi64(quads[i], quads[i + 4]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + out_stride), _mm_unpackhi_epi64(quads[i], quads[i + 4]));
  }
}

void transpose_four(const float* in, std::size_t in_stride, float* out, std::size_t out_stride) {
  __m128 a = _mm_loadu_ps(in), b = _mm_loadu_ps(in + in_stride);
  __m128 c = _mm_loadu_ps(in + 2 * in_stride), d = _mm_loadu_ps(in + 3 * in_stride);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(out, a);
  _mm_storeu_ps(out + out_stride, b);
  _mm_storeu_ps(out + 2 * out_stride, c);
  _mm_storeu_ps(out + 3 * out_stride, d);
}

// Moves bits and computes nothing, so that any 4-byte element may pass as a float.
void transpose_tile(const float* in, std::size_t in_stride, float* out, std::size_t out_stride) {
  for (std::size_t r = 0; r < kTile; r += 4) {
    for (std::size_t c = 0; c < kTile; c += 4) {
      transpose_four(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
    }
  }
}

void transpose_tile(const std::uint8_t* in, std::size_t in_stride, std::uint8_t* out, std::size_t out_stride) {
  for (std::size_t c = 0; c < kTile; ++c) {
    for (std::size_t r = 0; r < kTile; ++r) out[c * out_stride + r] = in[r * in_stride + c];
  }
}

// A strip of eight columns, then the next: its lines of `in` stay in the cache while their other elements are used.
template <class T>
void transpose_all(const T* in, std::size_t in_stride, std::size_t rows, std::size_t columns, T* out,
                   std::size_t out_stride) {
  for (std::size_t c = 0; c < columns; c += kTile) {
    for (std::size_t r = 0; r < rows; r += kTile) {
      if (r + kTile <= rows && c + kTile <= columns) {
        transpose_tile(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
        continue;
      }
      for (std::size_t i = r; i < rows && i < r + kTile; ++i) {
        for (std::size_t j = c; j < columns && j < c + kTile; ++j) out[j * out_stride + i] = in[i * in_stride + j];
      }
    }
  }
}

}  // namespace

void transpose(const std::byte* in, std::size_t in_stride, std::size_t rows, std::size_t columns, std::byte* out,
               std::size_t out_stride, std::size_t element_bytes) {
  ensure(element_bytes == 1 || element_bytes == 2 || element_bytes == 4, "a transposition of elements of this size");
  const auto run = [&]<class T>(T) {
    transpose_all(reinterpret_cast<const T*>(in), in_stride, rows, columns, reinterpret_cast<T*>(out), out_stride);
  };
  element_bytes == 1 ? run(std::uint8_t{}) : element_bytes == 2 ? run(std::uint16_t{}) : run(float{});
}

}  // namespace computron
