// Compiled with AVX-512 and VBMI2; nothing here runs unless best_coded_isa() says so.
#include <immintrin.h>

#include "kernels/cpu/coded_blocks_impl.h"

namespace computron::kernels {
namespace {

struct CodedLanes512 {
  using Bytes = __m512i;
  using Table = __m512i;

  static Bytes load(const std::uint8_t* at) { return _mm512_loadu_si512(at); }
  static void stream(std::uint8_t* at, Bytes v) { _mm512_stream_si512(reinterpret_cast<__m512i*>(at), v); }
  static Table table(const std::uint8_t* at) { return _mm512_broadcast_i32x4(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))); }
  static Bytes look_up(Table table, Bytes code) { return _mm512_shuffle_epi8(table, code); }
  static Bytes either(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  static Bytes either(Bytes a, Bytes b, Bytes c) { return _mm512_ternarylogic_epi64(a, b, c, 0xFE); }
  // Of each byte.
  template <int kFrom, int kMask>
  static Bytes bits(Bytes v) {
    return _mm512_and_si512(_mm512_srli_epi16(v, kFrom), _mm512_set1_epi8(kMask));
  }
  // Bit kFrom of each byte, at kTo.
  template <int kFrom, int kTo>
  static Bytes moved_bit(Bytes v) {
    return _mm512_and_si512(_mm512_srli_epi16(v, kFrom - kTo), _mm512_set1_epi8(1 << kTo));
  }
  // Puts the next of `others` where the code is 0; where the next of them begins.
  static const std::uint8_t* take_others(Bytes code, const std::uint8_t* others, Bytes& exponent) {
    const __mmask64 missing = _mm512_testn_epi8_mask(code, code);
    exponent = _mm512_mask_expand_epi8(exponent, missing, load(others));
    return others + __builtin_popcountll(missing);
  }
  static Bytes lower8(Bytes a, Bytes b) { return _mm512_unpacklo_epi8(a, b); }
  static Bytes upper8(Bytes a, Bytes b) { return _mm512_unpackhi_epi8(a, b); }
  static Bytes lower16(Bytes a, Bytes b) { return _mm512_unpacklo_epi16(a, b); }
  static Bytes upper16(Bytes a, Bytes b) { return _mm512_unpackhi_epi16(a, b); }
  // Right by a bit.
  static Bytes rotated16(Bytes w) { return _mm512_or_si512(_mm512_srli_epi16(w, 1), _mm512_slli_epi16(w, 15)); }
  static Bytes rotated32(Bytes w) { return _mm512_ror_epi32(w, 1); }
};

}  // namespace

void decode_block_avx512(BlockCode code, const CodedBlock& block, std::uint8_t* out) {
  decode_block<CodedLanes512>(code, block, out);
}

}  // namespace computron::kernels
