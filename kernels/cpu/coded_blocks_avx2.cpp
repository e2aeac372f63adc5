// Two halves of 32 bytes. Exponents that no code names are put where they belong one at a time: the first four of a
// group whether there are so many or not, since a branch that depends on the weights would be guessed wrong.
#include <immintrin.h>

#include "kernels/cpu/coded_blocks_impl.h"

namespace computron::kernels {
namespace {

struct CodedLanes256 {
  struct Bytes {
    __m256i a, b;
  };
  using Table = __m256i;

  static Bytes load(const std::uint8_t* at) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32))};
  }
  static void stream(std::uint8_t* at, const Bytes& v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(at), v.a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(at + 32), v.b);
  }
  static Table table(const std::uint8_t* at) {
    return _mm256_broadcastsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
  }
  static Bytes look_up(Table table, const Bytes& code) {
    return {_mm256_shuffle_epi8(table, code.a), _mm256_shuffle_epi8(table, code.b)};
  }
  static Bytes either(const Bytes& a, const Bytes& b) { return {_mm256_or_si256(a.a, b.a), _mm256_or_si256(a.b, b.b)}; }
  static Bytes either(const Bytes& a, const Bytes& b, const Bytes& c) { return either(either(a, b), c); }
  template <int kFrom, int kMask>
  static Bytes bits(const Bytes& v) {
    const __m256i mask = _mm256_set1_epi8(kMask);
    return {_mm256_and_si256(_mm256_srli_epi16(v.a, kFrom), mask), _mm256_and_si256(_mm256_srli_epi16(v.b, kFrom), mask)};
  }
  template <int kFrom, int kTo>
  static Bytes moved_bit(const Bytes& v) {
    const __m256i mask = _mm256_set1_epi8(1 << kTo);
    return {_mm256_and_si256(_mm256_srli_epi16(v.a, kFrom - kTo), mask),
            _mm256_and_si256(_mm256_srli_epi16(v.b, kFrom - kTo), mask)};
  }
  static const std::uint8_t* take_others(const Bytes& code, const std::uint8_t* others, Bytes& exponent) {
    const __m256i none = _mm256_setzero_si256();
    const auto a = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(code.a, none)));
    const auto b = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(code.b, none)));
    std::uint64_t missing = a | static_cast<std::uint64_t>(b) << 32;
    const int count = __builtin_popcountll(missing);
    alignas(32) std::uint8_t at[kCodedGroup + 1];  // the last: of places that there are none of
    _mm256_store_si256(reinterpret_cast<__m256i*>(at), exponent.a);
    _mm256_store_si256(reinterpret_cast<__m256i*>(at + 32), exponent.b);
    int i = 0;
    for (; i < 4; ++i) missing = put(at, missing, others[i]);
    for (; i < count; ++i) missing = put(at, missing, others[i]);
    exponent = {_mm256_load_si256(reinterpret_cast<const __m256i*>(at)),
                _mm256_load_si256(reinterpret_cast<const __m256i*>(at + 32))};
    return others + count;
  }
  static Bytes lower8(const Bytes& a, const Bytes& b) { return {_mm256_unpacklo_epi8(a.a, b.a), _mm256_unpacklo_epi8(a.b, b.b)}; }
  static Bytes upper8(const Bytes& a, const Bytes& b) { return {_mm256_unpackhi_epi8(a.a, b.a), _mm256_unpackhi_epi8(a.b, b.b)}; }
  static Bytes lower16(const Bytes& a, const Bytes& b) { return {_mm256_unpacklo_epi16(a.a, b.a), _mm256_unpacklo_epi16(a.b, b.b)}; }
  static Bytes upper16(const Bytes& a, const Bytes& b) { return {_mm256_unpackhi_epi16(a.a, b.a), _mm256_unpackhi_epi16(a.b, b.b)}; }
  static Bytes rotated16(const Bytes& w) {
    const auto one = [](__m256i v) { return _mm256_or_si256(_mm256_srli_epi16(v, 1), _mm256_slli_epi16(v, 15)); };
    return {one(w.a), one(w.b)};
  }
  static Bytes rotated32(const Bytes& w) {
    const auto one = [](__m256i v) { return _mm256_or_si256(_mm256_srli_epi32(v, 1), _mm256_slli_epi32(v, 31)); };
    return {one(w.a), one(w.b)};
  }

 private:
  // At the first place of `missing`, which goes.
  static std::uint64_t put(std::uint8_t* at, std::uint64_t missing, std::uint8_t value) {
    at[_tzcnt_u64(missing)] = value;
    return _blsr_u64(missing);
  }
};

}  // namespace

void decode_block_avx2(BlockCode code, const CodedBlock& block, std::uint8_t* out) {
  decode_block<CodedLanes256>(code, block, out);
}

}  // namespace computron::kernels
