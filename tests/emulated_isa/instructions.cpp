// Compiled with AVX-512 F, BW, DQ and VL, and only run where the processor has them, so it holds nothing that other
// files could be linked with. MXCSR does what the instructions do by themselves; barriers keep the compiler from moving
// operations across its changes.
#include "tests/emulated_isa/instructions.h"

#include <cstdint>
#include <cstring>

namespace computron::emulated_isa {
namespace {

// To nearest even, subnormal numbers as zeros, no exceptions.
class OwnRounding {
 public:
  OwnRounding() : before_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
  ~OwnRounding() { _mm_setcsr(before_); }
  OwnRounding(const OwnRounding&) = delete;
  OwnRounding& operator=(const OwnRounding&) = delete;

 private:
  unsigned before_;
};

void keep_here(__m512& x) { asm volatile("" : "+v"(x)); }

__m512 lower_halves(__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
__m512 upper_halves(__m512i x) { return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536))); }

// Of words whose lower bytes are places, the bytes there.
__m512i look_up(__m512i lower, __m512i places, __m512i upper) {
  const __m512i words = _mm512_permutex2var_epi16(lower, _mm512_srli_epi16(places, 1), upper);
  const __m512i shift = _mm512_slli_epi16(_mm512_and_si512(places, _mm512_set1_epi16(1)), 3);
  return _mm512_and_si512(_mm512_srlv_epi16(words, shift), _mm512_set1_epi16(0xff));
}

}  // namespace

__m512 dot_products(__m512 sums, __m512i a, __m512i b) {
  const OwnRounding rounding;
  keep_here(sums);
  sums = _mm512_fmadd_ps(upper_halves(a), upper_halves(b), sums);
  sums = _mm512_fmadd_ps(lower_halves(a), lower_halves(b), sums);
  keep_here(sums);
  return sums;
}

__m256i to_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x), infinity = _mm512_set1_epi32(0x7f800000);
  const __m512i size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i result = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(size, infinity), is_small = _mm512_testn_epi32_mask(bits, infinity);
  result = _mm512_mask_or_epi32(result, is_nan, bits, _mm512_set1_epi32(0x00400000));
  result = _mm512_mask_xor_epi32(result, is_small, bits, size);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16));
}

__m512i two_to_bf16(__m512 a, __m512 b) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(to_bf16(b)), to_bf16(a), 1);
}

__m512i permuted(__m512i lower, __m512i index, __m512i upper) {
  const __m512i places = _mm512_and_si512(index, _mm512_set1_epi8(0x7f));
  const __m512i even = look_up(lower, _mm512_and_si512(places, _mm512_set1_epi16(0xff)), upper);
  const __m512i odd = look_up(lower, _mm512_srli_epi16(places, 8), upper);
  return _mm512_or_si512(even, _mm512_slli_epi16(odd, 8));
}

__m512i permuted(__m512i index, __m512i x) { return permuted(x, index, x); }

void add_tile(std::byte* sums, int rows, int columns, const std::byte* x, const std::byte* w, int pairs) {
  const OwnRounding rounding;
  const auto kept = static_cast<__mmask16>((1u << columns) - 1);
  for (int m = 0; m < rows; ++m, sums += kTileRowBytes, x += kTileRowBytes) {
    __m512 even = _mm512_setzero_ps(), odd = even;
    keep_here(even);
    keep_here(odd);
    for (int pair = 0; pair < pairs; ++pair) {
      std::int32_t both;
      std::memcpy(&both, x + 4 * pair, sizeof both);
      const __m512i of_x = _mm512_set1_epi32(both), of_w = _mm512_loadu_si512(w + kTileRowBytes * pair);
      even = _mm512_fmadd_ps(lower_halves(of_x), lower_halves(of_w), even);
      odd = _mm512_fmadd_ps(upper_halves(of_x), upper_halves(of_w), odd);
    }
    __m512 sum = _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_add_ps(even, odd));
    keep_here(sum);
    _mm512_storeu_ps(sums, _mm512_maskz_mov_ps(kept, sum));
  }
}

}  // namespace computron::emulated_isa
