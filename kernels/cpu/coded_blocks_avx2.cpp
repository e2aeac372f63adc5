// Two halves of 32 bytes. No instruction puts escapes where they belong, so they go one by one: a few of each group
// whether there are so many or not, since a branch that depends on the weights would be guessed wrong.
#include "computron/base/vectors.h"
#include "kernels/cpu/coded_decode_impl.h"
#include "kernels/cpu/coded_encode_impl.h"

namespace computron::kernels {
namespace {

struct CodedLanes256 {
  struct Bytes {
    __m256i a, b;
  };
  using Table = __m256i;
  static constexpr int kCountersTogether = 4;
  static constexpr bool kEscapesOneByOne = true;

  static Bytes load(const std::uint8_t* at) { return {load_half(at), load_half(at + 32)}; }
  static void store(std::uint8_t* at, const Bytes& v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + 32), v.b);
  }
  static void stream(std::uint8_t* at, const Bytes& v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(at), v.a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(at + 32), v.b);
  }
  static Bytes all(int byte) {
    return {_mm256_set1_epi8(static_cast<char>(byte)), _mm256_set1_epi8(static_cast<char>(byte))};
  }

  static Table table8(const std::uint8_t* at) {
    return _mm256_broadcastsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
  }
  static Table table16(const std::uint8_t* at) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  static Bytes look_up(Table table, const Bytes& index) {
    return {_mm256_shuffle_epi8(table, index.a), _mm256_shuffle_epi8(table, index.b)};
  }

  static Bytes either(const Bytes& a, const Bytes& b) { return {_mm256_or_si256(a.a, b.a), _mm256_or_si256(a.b, b.b)}; }
  static Bytes either(const Bytes& a, const Bytes& b, const Bytes& c) { return either(either(a, b), c); }
  template <int kRight, int kMask>
  static Bytes bits(const Bytes& v) {
    return both(v, [](__m256i x) { return _mm256_and_si256(_mm256_srli_epi16(x, kRight), _mm256_set1_epi8(kMask)); });
  }
  template <int kLeft, int kMask>
  static Bytes left(const Bytes& v) {
    constexpr auto kByte = static_cast<char>(kMask);
    return both(v, [](__m256i x) { return _mm256_and_si256(_mm256_slli_epi16(x, kLeft), _mm256_set1_epi8(kByte)); });
  }
  static Bytes where_zero(const Bytes& v, const Bytes& then, const Bytes& otherwise) {
    return where_equal(v, all(0), then, otherwise);
  }
  static Bytes where_equal(const Bytes& a, const Bytes& b, const Bytes& then, const Bytes& otherwise) {
    return {_mm256_blendv_epi8(otherwise.a, then.a, _mm256_cmpeq_epi8(a.a, b.a)),
            _mm256_blendv_epi8(otherwise.b, then.b, _mm256_cmpeq_epi8(a.b, b.b))};
  }

  static Bytes plus(const Bytes& a, const Bytes& b) { return {_mm256_add_epi8(a.a, b.a), _mm256_add_epi8(a.b, b.b)}; }
  static Bytes minus(const Bytes& a, const Bytes& b) { return {_mm256_sub_epi8(a.a, b.a), _mm256_sub_epi8(a.b, b.b)}; }
  static Bytes plus_saturated(const Bytes& a, const Bytes& b) {
    return {_mm256_adds_epu8(a.a, b.a), _mm256_adds_epu8(a.b, b.b)};
  }
  static Bytes larger(const Bytes& a, const Bytes& b) { return {_mm256_max_epu8(a.a, b.a), _mm256_max_epu8(a.b, b.b)}; }
  static std::uint8_t largest_of(const Bytes& v) {
    const __m256i half = _mm256_max_epu8(v.a, v.b);
    const __m128i all16 = _mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i pairs = _mm_max_epu8(all16, _mm_srli_epi16(all16, 8));
    const __m128i below = _mm_andnot_si128(pairs, _mm_set1_epi16(0xFF));
    return static_cast<std::uint8_t>(0xFF - _mm_extract_epi16(_mm_minpos_epu16(below), 0));
  }
  static Bytes counting_zeros(const Bytes& sum, const Bytes& v) {
    const __m256i none = _mm256_setzero_si256();
    return {_mm256_sub_epi8(sum.a, _mm256_cmpeq_epi8(v.a, none)), _mm256_sub_epi8(sum.b, _mm256_cmpeq_epi8(v.b, none))};
  }
  static std::uint32_t sum(const Bytes& v) {
    const __m256i none = _mm256_setzero_si256();
    const __m256i quads = _mm256_add_epi64(_mm256_sad_epu8(v.a, none), _mm256_sad_epu8(v.b, none));
    const __m128i pair = _mm_add_epi64(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si64(pair) + _mm_extract_epi64(pair, 1));
  }

  // Writes `exponent` to `out`, with the next of `escapes` where the code is 0, and returns where the next of them
  // begins. Writes a byte behind them, too.
  template <int kAlways>
  static const std::uint8_t* with_escapes(const Bytes& code, const Bytes& exponent, const std::uint8_t* escapes,
                                          std::uint8_t* out) {
    std::uint64_t missing = zeros_of(code);
    const int count = __builtin_popcountll(missing);
    store(out, exponent);
    int i = 0;
    for (; i < kAlways; ++i) missing = put(out, missing, escapes[i]);
    for (; i < count; ++i) missing = put(out, missing, escapes[i]);
    return escapes + count;
  }
  // Writes the exponents whose code is 0, and anything in the 64 bytes behind them.
  static std::uint8_t* put_escapes(const Bytes& code, const Bytes& exponent, std::uint8_t* escapes) {
    std::uint64_t missing = zeros_of(code);
    const int count = __builtin_popcountll(missing);
    alignas(32) std::uint8_t from[kCodedGroup + 1];
    store(from, exponent);
    from[kCodedGroup] = 0;
    int i = 0;
    for (; i < kAlwaysPut; ++i, missing = _blsr_u64(missing)) escapes[i] = from[_tzcnt_u64(missing)];
    for (; i < count; ++i, missing = _blsr_u64(missing)) escapes[i] = from[_tzcnt_u64(missing)];
    return escapes + count;
  }

  static Bytes lower8(const Bytes& a, const Bytes& b) {
    return {_mm256_unpacklo_epi8(a.a, b.a), _mm256_unpacklo_epi8(a.b, b.b)};
  }
  static Bytes upper8(const Bytes& a, const Bytes& b) {
    return {_mm256_unpackhi_epi8(a.a, b.a), _mm256_unpackhi_epi8(a.b, b.b)};
  }
  static Bytes lower16(const Bytes& a, const Bytes& b) {
    return {_mm256_unpacklo_epi16(a.a, b.a), _mm256_unpacklo_epi16(a.b, b.b)};
  }
  static Bytes upper16(const Bytes& a, const Bytes& b) {
    return {_mm256_unpackhi_epi16(a.a, b.a), _mm256_unpackhi_epi16(a.b, b.b)};
  }
  static Bytes rotated_right16(const Bytes& w) {
    return both(w, [](__m256i v) { return _mm256_or_si256(_mm256_srli_epi16(v, 1), _mm256_slli_epi16(v, 15)); });
  }
  static Bytes rotated_right32(const Bytes& w) {
    return both(w, [](__m256i v) { return _mm256_or_si256(_mm256_srli_epi32(v, 1), _mm256_slli_epi32(v, 31)); });
  }
  static Bytes rotated_left16(const Bytes& w) {
    return both(w, [](__m256i v) { return _mm256_or_si256(_mm256_slli_epi16(v, 1), _mm256_srli_epi16(v, 15)); });
  }
  // What lower8() and upper8() would make a and b of.
  static Bytes lower_bytes16(const Bytes& a, const Bytes& b) {
    const __m256i mask = _mm256_set1_epi16(0xFF);
    return {_mm256_packus_epi16(_mm256_and_si256(a.a, mask), _mm256_and_si256(b.a, mask)),
            _mm256_packus_epi16(_mm256_and_si256(a.b, mask), _mm256_and_si256(b.b, mask))};
  }
  static Bytes upper_bytes16(const Bytes& a, const Bytes& b) {
    return {_mm256_packus_epi16(_mm256_srli_epi16(a.a, 8), _mm256_srli_epi16(b.a, 8)),
            _mm256_packus_epi16(_mm256_srli_epi16(a.b, 8), _mm256_srli_epi16(b.b, 8))};
  }
  // The four byte planes of 64 values of 32 bits, rotated left by one bit.
  struct BytePlanes {
    Bytes lowest, second, third, upper;
  };
  static BytePlanes byte_planes(const std::uint8_t* values) {
    const HalfPlanes first = half_planes(values), second = half_planes(values + 32);
    return {{first.lowest, second.lowest},
            {first.second, second.second},
            {first.third, second.third},
            {first.upper, second.upper}};
  }

 private:
  static constexpr int kAlwaysPut = 4;  // escapes of a group that are written whether they are there or not

  static __m256i load_half(const std::uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
  template <class Body>
  static Bytes both(const Bytes& v, const Body& body) {
    return {body(v.a), body(v.b)};
  }
  static std::uint64_t zeros_of(const Bytes& code) {
    const __m256i none = _mm256_setzero_si256();
    const auto a = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(code.a, none)));
    const auto b = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(code.b, none)));
    return a | static_cast<std::uint64_t>(b) << 32;
  }
  // At the first place of `missing`, which goes; behind all places if there is none.
  static std::uint64_t put(std::uint8_t* at, std::uint64_t missing, std::uint8_t value) {
    at[_tzcnt_u64(missing)] = value;
    return _blsr_u64(missing);
  }
  // Of each four values the lowest bytes, then the next, to the uppermost.
  static __m256i bytes_of_32(const std::uint8_t* values) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i v = load_half(values);
    const __m256i w = _mm256_or_si256(_mm256_slli_epi32(v, 1), _mm256_srli_epi32(v, 31));
    return _mm256_shuffle_epi8(w, _mm256_broadcastsi128_si256(order));
  }
  // Of the first 32 bytes of each 64.
  struct HalfPlanes {
    __m256i lowest, second, third, upper;
  };
  static HalfPlanes half_planes(const std::uint8_t* values) {
    const __m256i a = bytes_of_32(values), b = bytes_of_32(values + 64);
    const __m256i c = bytes_of_32(values + 128), d = bytes_of_32(values + 192);
    const __m256i low = _mm256_unpacklo_epi32(a, b), low_next = _mm256_unpacklo_epi32(c, d);
    const __m256i high = _mm256_unpackhi_epi32(a, b), high_next = _mm256_unpackhi_epi32(c, d);
    return {_mm256_unpacklo_epi64(low, low_next), _mm256_unpackhi_epi64(low, low_next),
            _mm256_unpacklo_epi64(high, high_next), _mm256_unpackhi_epi64(high, high_next)};
  }
};

}  // namespace

void decode_block_avx2(BlockEncoding encoding, const CodedBlock& block, std::uint8_t* out, Stores stores) {
  decode_block<CodedLanes256>(encoding, block, out, stores);
}

std::size_t encode_block_avx2(BlockEncoding encoding, const std::uint8_t* values, std::uint8_t* out) {
  return encode_block<CodedLanes256>(encoding, values, out);
}

}  // namespace computron::kernels
