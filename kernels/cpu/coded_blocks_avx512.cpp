// Compiled with AVX-512 and VBMI2; nothing here runs unless best_coded_isa() says so.
#include <immintrin.h>

#include "kernels/cpu/coded_decode_impl.h"
#include "kernels/cpu/coded_encode_impl.h"

namespace computron::kernels {
namespace {

struct CodedLanes512 {
  using Bytes = __m512i;
  using Table = __m512i;
  static constexpr int kCountersTogether = 8;
  static constexpr bool kEscapesOneByOne = false;

  static Bytes load(const std::uint8_t* at) { return _mm512_loadu_si512(at); }
  static void store(std::uint8_t* at, Bytes v) { _mm512_storeu_si512(at, v); }
  static void stream(std::uint8_t* at, Bytes v) { _mm512_stream_si512(reinterpret_cast<__m512i*>(at), v); }
  static Bytes all(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }

  static Table table8(const std::uint8_t* at) {
    return _mm512_broadcast_i32x4(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
  }
  static Table table16(const std::uint8_t* at) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  static Bytes look_up(Table table, Bytes index) { return _mm512_shuffle_epi8(table, index); }

  static Bytes either(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  static Bytes either(Bytes a, Bytes b, Bytes c) { return _mm512_ternarylogic_epi64(a, b, c, 0xFE); }
  template <int kRight, int kMask>
  static Bytes bits(Bytes v) {
    return _mm512_and_si512(_mm512_srli_epi16(v, kRight), all(kMask));
  }
  template <int kLeft, int kMask>
  static Bytes left(Bytes v) {
    return _mm512_and_si512(_mm512_slli_epi16(v, kLeft), all(kMask));
  }
  static Bytes where_zero(Bytes v, Bytes then, Bytes otherwise) {
    return _mm512_mask_mov_epi8(otherwise, _mm512_testn_epi8_mask(v, v), then);
  }
  static Bytes where_equal(Bytes a, Bytes b, Bytes then, Bytes otherwise) {
    return _mm512_mask_mov_epi8(otherwise, _mm512_cmpeq_epi8_mask(a, b), then);
  }

  static Bytes plus(Bytes a, Bytes b) { return _mm512_add_epi8(a, b); }
  static Bytes minus(Bytes a, Bytes b) { return _mm512_sub_epi8(a, b); }
  static Bytes plus_saturated(Bytes a, Bytes b) { return _mm512_adds_epu8(a, b); }
  static Bytes larger(Bytes a, Bytes b) { return _mm512_max_epu8(a, b); }
  static std::uint8_t largest_of(Bytes v) {
    const __m256i half = _mm256_max_epu8(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    return largest_of_16(_mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
  }
  static Bytes counting_zeros(Bytes sum, Bytes v) {
    return _mm512_mask_add_epi8(sum, _mm512_testn_epi8_mask(v, v), sum, all(1));
  }
  static std::uint32_t sum(Bytes v) {
    return static_cast<std::uint32_t>(_mm512_reduce_add_epi64(_mm512_sad_epu8(v, _mm512_setzero_si512())));
  }

  // Writes `exponent` to `out`, with the next of `escapes` where the code is 0, and returns where the next of them
  // begins.
  template <int>
  static const std::uint8_t* with_escapes(Bytes code, Bytes exponent, const std::uint8_t* escapes, std::uint8_t* out) {
    const __mmask64 missing = _mm512_testn_epi8_mask(code, code);
    store(out, _mm512_mask_expand_epi8(exponent, missing, load(escapes)));
    return escapes + __builtin_popcountll(missing);
  }
  // Writes the exponents whose code is 0, and anything in the 64 bytes behind them.
  static std::uint8_t* put_escapes(Bytes code, Bytes exponent, std::uint8_t* escapes) {
    const __mmask64 missing = _mm512_testn_epi8_mask(code, code);
    store(escapes, _mm512_maskz_compress_epi8(missing, exponent));
    return escapes + __builtin_popcountll(missing);
  }

  static Bytes lower8(Bytes a, Bytes b) { return _mm512_unpacklo_epi8(a, b); }
  static Bytes upper8(Bytes a, Bytes b) { return _mm512_unpackhi_epi8(a, b); }
  static Bytes lower16(Bytes a, Bytes b) { return _mm512_unpacklo_epi16(a, b); }
  static Bytes upper16(Bytes a, Bytes b) { return _mm512_unpackhi_epi16(a, b); }
  static Bytes rotated_right16(Bytes w) { return _mm512_shrdi_epi16(w, w, 1); }
  static Bytes rotated_right32(Bytes w) { return _mm512_ror_epi32(w, 1); }
  static Bytes rotated_left16(Bytes v) { return _mm512_shldi_epi16(v, v, 1); }
  // What lower8() and upper8() would make a and b of.
  static Bytes lower_bytes16(Bytes a, Bytes b) {
    return _mm512_packus_epi16(_mm512_and_si512(a, low_bytes()), _mm512_and_si512(b, low_bytes()));
  }
  static Bytes upper_bytes16(Bytes a, Bytes b) {
    return _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
  }
  // The four byte planes of 64 values of 32 bits, rotated left by one bit.
  struct BytePlanes {
    Bytes lowest, second, third, upper;
  };
  static BytePlanes byte_planes(const std::uint8_t* values) {
    const Bytes a = bytes_of_32(values), b = bytes_of_32(values + 64);
    const Bytes c = bytes_of_32(values + 128), d = bytes_of_32(values + 192);
    const Bytes low = _mm512_unpacklo_epi32(a, b), low_next = _mm512_unpacklo_epi32(c, d);
    const Bytes high = _mm512_unpackhi_epi32(a, b), high_next = _mm512_unpackhi_epi32(c, d);
    return {_mm512_unpacklo_epi64(low, low_next), _mm512_unpackhi_epi64(low, low_next),
            _mm512_unpacklo_epi64(high, high_next), _mm512_unpackhi_epi64(high, high_next)};
  }

 private:
  static Bytes low_bytes() { return _mm512_set1_epi16(0xFF); }
  // Of each four values the lowest bytes, then the next, to the uppermost.
  static Bytes bytes_of_32(const std::uint8_t* values) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_shuffle_epi8(_mm512_rol_epi32(load(values), 1), _mm512_broadcast_i32x4(order));
  }
  static std::uint8_t largest_of_16(__m128i v) {
    const __m128i pairs = _mm_max_epu8(v, _mm_srli_epi16(v, 8));
    const __m128i below = _mm_andnot_si128(pairs, _mm_set1_epi16(0xFF));
    return static_cast<std::uint8_t>(0xFF - _mm_extract_epi16(_mm_minpos_epu16(below), 0));
  }
};

}  // namespace

void decode_block_avx512(BlockEncoding encoding, const CodedBlock& block, std::uint8_t* out, Stores stores) {
  decode_block<CodedLanes512>(encoding, block, out, stores);
}

std::size_t encode_block_avx512(BlockEncoding encoding, const std::uint8_t* values, std::uint8_t* out) {
  return encode_block<CodedLanes512>(encoding, values, out);
}

}  // namespace computron::kernels
