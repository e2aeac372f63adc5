#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/cpu/expand256.h"
#include "kernels/cpu/gemm_integers.h"

namespace computron::kernels {
namespace {

// ---- rows of x

// Makes integers of chunks of so many vectors, eight chunks of a row at a time.
template <int kVectors>
class EightChunks {
  using I = __m256i;
  static constexpr int kDigits = 14;
  static constexpr int kChunk = kVectors * kLanes;
  static constexpr int kWhole = kLanes * kChunk;  // elements of eight chunks

 public:
  EightChunks(const IntegerRows& to, const float* x, int depth, bool halves)
      : to_(to), x_(x), depth_(depth), halves_(halves) {}

  void run() const {
    for (int first = 0; first < to_.rows; first += to_.block_rows) {
      const int rows = std::min(to_.block_rows, to_.rows - first);
      for (int m = 0; m < rows; ++m) make_row(first, m);
    }
  }

 private:
  void make_row(int first, int m) const {
    const float* x = x_ + static_cast<std::size_t>(first + m) * depth_;
    const std::size_t stride = static_cast<std::size_t>(to_.rows_of_block(first));
    std::size_t at = to_.at(first, 0, m);
    for (int c = 0, k = 0; c < to_.chunks; c += kLanes, k += kWhole, at += kLanes * stride) {
      const int left = depth_ - k;
      if (left >= kWhole) {
        make(x + k, kLanes, at, stride);
      } else {
        float padded[kWhole] = {};
        std::memcpy(padded, x + k, left * sizeof(float));  // some: chunks go to the next 32 elements and no further
        make(padded, std::min(kLanes, to_.chunks - c), at, stride);
      }
    }
  }

  // `count` chunks of the eight at x; the results of one are `stride` behind those of the one before.
  void make(const float* x, int count, std::size_t at, std::size_t stride) const {
    I largest[kLanes];
    for (int c = 0; c < kLanes; ++c) {
      largest[c] = size_of_lanes(x + c * kChunk);
      for (int v = 1; v < kVectors; ++v) {
        largest[c] = _mm256_max_epu32(largest[c], size_of_lanes(x + c * kChunk + v * kLanes));
      }
    }
    float inverses[kLanes], steps[kLanes];
    find_steps(largest, inverses, steps);
    std::int16_t* integers = to_.integers + at * kChunk;
    float* step = to_.steps + at;
    for (int c = 0; c < count; ++c, integers += stride * kChunk, step += stride, x += kChunk) {
      const F8 inverse = splat(inverses[c]);
      for (int v = 0; v < kVectors; v += 2) {
        const I packed = _mm256_packs_epi32(rounded(x + v * kLanes, inverse), rounded(x + (v + 1) * kLanes, inverse));
        // Packing is by halves of both.
        _mm256_storeu_si256(reinterpret_cast<I*>(integers + v * kLanes), _mm256_permute4x64_epi64(packed, 0xd8));
      }
      *step = steps[c];
    }
  }

  static I size_of_lanes(const float* x) {
    return _mm256_and_si256(_mm256_castps_si256(load(x)), _mm256_set1_epi32(0x7fffffff));
  }
  static I rounded(const float* x, F8 inverse) { return _mm256_cvtps_epi32(mul(load(x), inverse)); }

  // Lane c of the results is of chunk c, whose elements' magnitudes are at most those in `largest`.
  void find_steps(const I (&largest)[kLanes], float* inverses, float* steps) const {
    const I exponents = _mm256_srli_epi32(max_of_each(largest), 23);
    // Neither a step nor half of one is subnormal.
    const I of_steps =
        _mm256_sub_epi32(_mm256_max_epi32(exponents, _mm256_set1_epi32(kDigits + 2)), _mm256_set1_epi32(kDigits));
    store(inverses, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(254), of_steps), 23)));
    const F8 sizes = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(of_steps, _mm256_set1_epi32(halves_)), 23));
    const F8 finite = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(255), exponents));
    store(steps, _mm256_blendv_ps(splat(std::numeric_limits<float>::quiet_NaN()), sizes, finite));
  }

  // Lane c: the largest of vector c.
  static I max_of_each(const I (&vectors)[kLanes]) {
    I pairs[4], fours[2];
    for (int i = 0; i < 4; ++i) {
      const I a = vectors[2 * i], b = vectors[2 * i + 1];
      pairs[i] = _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    }
    for (int i = 0; i < 2; ++i) {
      const I a = pairs[2 * i], b = pairs[2 * i + 1];
      fours[i] = _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    }
    constexpr int kLower = 0x20, kUpper = 0x31;  // halves of both
    return _mm256_max_epu32(_mm256_permute2x128_si256(fours[0], fours[1], kLower),
                            _mm256_permute2x128_si256(fours[0], fours[1], kUpper));
  }

  const IntegerRows& to_;
  const float* x_;
  const int depth_;
  const int halves_;
};

// ---- codes

// words<v>(pair): those of a pair of k of the v-th 8 of 64 columns, a column's two side by side. kMostRows leave room
// in registers for what that takes.
struct Int8Codes {
  static constexpr int kMostRows = 6;
  static constexpr int kPairBytes = 2 * kRowBlock;
  template <int kEight>
  static __m256i words(const std::byte* pair) {
    return _mm256_cvtepi8_epi16(Expand256::load128(pair + 16 * kEight));
  }
};

// What both kinds of codes of four bits have: 32 bytes hold those of four times 8 columns.
template <int kEight>
struct InNibbles {
  static constexpr int kBit = kEight / 2 * 4;
  static __m256i load(const std::byte* pair) { return Expand256::load256(pair + kEight % 2 * 32); }
};

struct Int4Codes {
  static constexpr int kMostRows = 6;
  static constexpr int kPairBytes = kRowBlock;
  template <int kEight>
  static __m256i words(const std::byte* pair) {
    using At = InNibbles<kEight>;
    const __m256i codes = At::load(pair);
    return _mm256_srai_epi16(At::kBit == 12 ? codes : _mm256_slli_epi16(codes, 12 - At::kBit), 12);
  }
};

// As halves. The upper byte of a word finds its value in the table, and the lower one, whose index is zero, none.
struct Fp4Codes {
  static constexpr int kMostRows = 5;
  static constexpr int kPairBytes = kRowBlock;
  template <int kEight>
  static __m256i words(const std::byte* pair) {
    using At = InNibbles<kEight>;
    constexpr int kUpperByte = 8;
    const __m256i codes = At::load(pair);
    const __m256i moved = At::kBit < kUpperByte ? _mm256_slli_epi16(codes, kUpperByte - At::kBit)
                                                : _mm256_srli_epi16(codes, At::kBit - kUpperByte);
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i indices = _mm256_and_si256(moved, _mm256_set1_epi16(0x0f00));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(table, indices), kUpperByte);
  }
};

// ---- products

// Few rows meet codes in registers; for more, codes become words in the first cache, which six at a time meet.
template <class Codes, int kChunk>
class IntegersByAvx2 {
  static constexpr int kPairs = kChunk / 2, kEights = kRowBlock / kLanes;
  static constexpr int kMostTogether = 6;  // rows
  static constexpr int kLineBytes = 64;

 public:
  IntegersByAvx2(const PanelCall& call, const IntegerRows& x) : call_(call), e_(*call.expansion), x_(x) {}

  void run() const {
    const std::byte* block = call_.weight;
    for (int n = 0; n < call_.columns; n += kRowBlock, block += e_.layout.block_bytes()) {
      for (int row = 0; row < x_.padded_rows(); row += x_.block_rows) multiply(block, row, n);
    }
  }

 private:
  using Scales = F8[kEights];
  using Words = __m256i[kPairs][kEights];

  // Of the block of rows from first_row on.
  void multiply(const std::byte* block, int first_row, int column) const {
    alignas(kLineBytes) float sums[IntegerRows::kBlockRows][kRowBlock];
    const int rows = std::min(x_.rows_of_block(first_row), x_.rows - first_row);
    std::memset(sums, 0, rows * sizeof sums[0]);
    Scales scales = {};
    for (int c = 0, k = 0; c < x_.chunks; ++c, k += kChunk) {
      if (k % e_.layout.group == 0) load_scales(block, k / e_.layout.group, scales);
      const std::byte* codes = block + e_.layout.codes_at(k);
      const std::size_t at = x_.at(first_row, c, 0);
      if (rows <= Codes::kMostRows) {
        add_rows(InCodes{codes, call_.blocking.codes_ahead_bytes}, at, rows, scales, sums);
      } else {
        add_many(codes, at, rows, scales, sums);
      }
    }
    for (int m = 0; m < rows; ++m) {
      std::memcpy(call_.tile + static_cast<std::size_t>(first_row + m) * call_.columns + column, sums[m],
                  sizeof sums[m]);
    }
  }

  void load_scales(const std::byte* block, int group, Scales& scales) const {
    const std::byte* p = block + e_.layout.scales_at(group);
    for (std::size_t b = 0; b < kRowBlock * e_.layout.scale_bytes; b += kLineBytes) {
      Expand256::ask(p + b, call_.blocking.codes_ahead_bytes);
    }
    for (int v = 0; v < kEights / 2; ++v) {
      const Expand256::V two =
          e_.type.has_factors() ? Expand256::load_scales(p, block, v) : Expand256::load_scales(p, e_.type.scales, v);
      scales[2 * v] = two.low;
      scales[2 * v + 1] = two.high;
    }
  }

  // Words as add_rows() wants them: words<v>(number of a pair of k), and ask(that) for memory further on.
  struct InCodes {
    static constexpr int kMostRows = Codes::kMostRows;
    const std::byte* codes;
    int ahead_bytes;
    template <int kEight>
    __m256i words(int pair) const {
      return Codes::template words<kEight>(codes + pair * Codes::kPairBytes);
    }
    __attribute__((always_inline)) void ask(int pair) const {
      for (int b = 0; b < Codes::kPairBytes; b += kLineBytes) {
        Expand256::ask(codes + pair * Codes::kPairBytes + b, ahead_bytes);
      }
    }
  };
  struct InMemory {
    static constexpr int kMostRows = kMostTogether;
    const Words& all;
    template <int kEight>
    __m256i words(int pair) const {
      return _mm256_load_si256(&all[pair][kEight]);
    }
    void ask(int) const {}
  };

  void add_many(const std::byte* codes, std::size_t at, int rows, const Scales& scales,
                float (*sums)[kRowBlock]) const {
    Words words;
    for (int j = 0; j < kPairs; ++j, codes += Codes::kPairBytes) {
      for (int b = 0; b < Codes::kPairBytes; b += kLineBytes) {
        Expand256::ask(codes + b, call_.blocking.codes_ahead_bytes);
      }
      write_words(codes, words[j], std::make_integer_sequence<int, kEights>());
    }
    const int groups = ceil_div(rows, kMostTogether), most = ceil_div(rows, groups);
    for (int m = 0; m < rows; m += most) {
      add_rows(InMemory{words}, at + m, std::min(most, rows - m), scales, sums + m);
    }
  }

  template <int... kEight>
  static void write_words(const std::byte* pair, __m256i* to, std::integer_sequence<int, kEight...>) {
    (_mm256_store_si256(to + kEight, Codes::template words<kEight>(pair)), ...);
  }

  // Rows of x from the one on whose chunk is number `at`.
  template <int kRows = 1, class Source>
  void add_rows(const Source& source, std::size_t at, int rows, const Scales& scales, float (*sums)[kRowBlock]) const {
    if constexpr (kRows < Source::kMostRows) {
      if (rows > kRows) return add_rows<kRows + 1>(source, at, rows, scales, sums);
    }
    add_columns<kRows, 0>(source, x_.integers + at * kChunk, x_.steps + at, scales, sums);
  }

  // Of all columns from number kFirst times eight on. As many meet as leave room for a word and an element of x.
  template <int kRows, int kFirst, class Source>
  static void add_columns(const Source& source, const std::int16_t* x, const float* steps, const Scales& scales,
                          float (*sums)[kRowBlock]) {
    constexpr int kTogether = kRows == 1 ? 8 : kRows == 2 ? 4 : 2;
    add_some<kRows, kFirst>(source, x, steps, scales, sums, std::make_integer_sequence<int, kTogether>());
    if constexpr (kFirst + kTogether < kEights) {
      add_columns<kRows, kFirst + kTogether>(source, x, steps, scales, sums);
    }
  }

  // Not inlined: else GCC 12 keeps products of six rows in memory.
  template <int kRows, int kFirst, class Source, int... kOf>
  static __attribute__((noinline)) void add_some(const Source& source, const std::int16_t* x, const float* steps,
                                                 const Scales& scales, float (*sums)[kRowBlock],
                                                 std::integer_sequence<int, kOf...>) {
    constexpr int kTogether = sizeof...(kOf);
    __m256i products[kRows][kTogether];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) ((products[m][kOf] = _mm256_setzero_si256()), ...);
#pragma GCC unroll 2
    for (int j = 0; j < kPairs; ++j) {
      if (kFirst == 0) source.ask(j);
      if constexpr (kRows == 1) {
        const __m256i of_row = pair_at(x + 2 * j);
        (add(_mm256_madd_epi16(source.template words<kFirst + kOf>(j), of_row), products[0][kOf]), ...);
      } else {
        const __m256i words[] = {source.template words<kFirst + kOf>(j)...};
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          const __m256i of_row = pair_at(x + m * kChunk + 2 * j);
          (add(_mm256_madd_epi16(words[kOf], of_row), products[m][kOf]), ...);
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const F8 step = splat(steps[m]);
      (add_to(sums[m] + (kFirst + kOf) * kLanes, products[m][kOf], step, scales[kFirst + kOf]), ...);
    }
  }

  // Both integers in all lanes.
  static __m256i pair_at(const std::int16_t* p) {
    std::int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return _mm256_set1_epi32(pair);
  }

  // Sums stay in their registers: GCC 12 moves each of them once a pair.
  static __attribute__((always_inline)) void add(__m256i products, __m256i& sums) {
    asm("vpaddd %1, %0, %0" : "+x"(sums) : "x"(products));
  }

  static void add_to(float* sums, __m256i products, F8 step, F8 scales) {
    store(sums, fma(mul(_mm256_cvtepi32_ps(products), step), scales, load(sums)));
  }

  const PanelCall& call_;
  const Expansion& e_;
  const IntegerRows& x_;
};

template <class Codes>
void multiply_codes_avx2(const PanelCall& call, const IntegerRows& x) {
  if (x.chunk == 32) return IntegersByAvx2<Codes, 32>(call, x).run();
  IntegersByAvx2<Codes, 16>(call, x).run();
}

}  // namespace

void make_integers_avx2(const IntegerRows& to, const float* x, int depth, bool halves) {
  to.chunk == 32 ? EightChunks<4>(to, x, depth, halves).run() : EightChunks<2>(to, x, depth, halves).run();
}

void gemm_integers_avx2(const PanelCall& call, const IntegerRows& x) {
  switch (call.expansion->type.codes) {
    case DType::kInt8:
      return multiply_codes_avx2<Int8Codes>(call, x);
    case DType::kInt4:
      return multiply_codes_avx2<Int4Codes>(call, x);
    default:
      return multiply_codes_avx2<Fp4Codes>(call, x);
  }
}

}  // namespace computron::kernels
