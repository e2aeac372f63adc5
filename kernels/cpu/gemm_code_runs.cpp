// Compiled with AVX-512 BF16 and AMX; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/gemm_code_runs.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/expand512.h"

namespace computron::kernels {
namespace {

using V = __m512;
using I = __m512i;

constexpr int kRun = QuantisedLayout::kRun;  // k
constexpr int kLine = 64;                    // bytes: a row's values in a run; codes of four rows, of eight bits two
constexpr int kTileRows = 16;
constexpr int kTileBytes = kTileRows * kLine;
constexpr int kRunValues = kRowBlock * kLine;  // bytes of all rows
constexpr int kTableBytes = 32;

constexpr short upper_half(float x) { return static_cast<short>(std::bit_cast<std::uint32_t>(x) >> 16); }

I load(const void* p) { return _mm512_loadu_si512(p); }
void store(void* p, I x) { _mm512_storeu_si512(p, x); }

// The scales of a group of a block, and what readers of its runs have in common. A reader has
//
//   read(k, to, meanwhile): writes the values of k to k + 32, of row after row, kLine bytes each. k is a multiple of
//                           32, and not before those of earlier calls. meanwhile(i) is called behind the i-th four
//                           rows, i < 16.
class RunScales {
 public:
  RunScales(const Expansion& e, const std::byte* block, int ahead_bytes) : e_(e), block_(block), ahead_(ahead_bytes) {}

 protected:
  enum class Group { kSame, kNew, kUnsafe };  // kUnsafe: products with its scales may not be what the kernel makes

  __attribute__((always_inline)) Group enter(int k) {
    if (k < group_end_) return safe_ ? Group::kSame : Group::kUnsafe;
    const int group = k / e_.layout.group;
    group_end_ = (group + 1) * e_.layout.group;
    safe_ = load_scales(block_ + e_.layout.scales_at(group));
    return safe_ ? Group::kNew : Group::kUnsafe;
  }

  const std::byte* codes_at(int k) const { return block_ + e_.layout.codes_at(k); }
  DType code_type() const { return e_.type.codes; }
  bool has_short_scales() const { return kernels::has_short_scales(e_.type); }
  const float* scales() const { return scales_; }

  template <class Meanwhile>
  __attribute__((always_inline)) void read_plainly(int k, std::byte* to, Meanwhile&& meanwhile) const {
    write_plainly(k, to);
    for (int i = 0; i < kRowBlock / 4; ++i) meanwhile(i);
  }
  // GCC 12 takes a call of it for one without effect, and leaves it out, unless it is inlined first.
  __attribute__((always_inline)) void ask_ahead(const std::byte* p) const {
    _mm_prefetch(reinterpret_cast<const char*>(p + ahead_), _MM_HINT_T1);
  }

 private:
  // Whether all are what products with codes are exact for.
  __attribute__((always_inline)) bool load_scales(const std::byte* p) {
    const auto bytes = static_cast<int>(kRowBlock * e_.layout.scale_bytes);
    for (int b = 0; b < bytes; b += kLine) ask_ahead(p + b);
    return e_.type.scales == DType::kBF16 ? load_bf16(p) : load_any(p);
  }
  __attribute__((always_inline)) bool load_bf16(const std::byte* p) {
    constexpr short kLeast = upper_half(kSmallestSafe), kMost = upper_half(kLargestSafe);
    __mmask32 unsafe = 0;
    for (int half = 0; half < 2; ++half) {
      const I bits = load(p + kLine * half), size = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
      const I above = _mm512_sub_epi16(size, _mm512_set1_epi16(kLeast));
      unsafe |=
          _mm512_mask_cmpge_epu16_mask(_mm512_test_epi16_mask(size, size), above, _mm512_set1_epi16(kMost - kLeast));
    }
    for (int v = 0; v < 4; ++v) _mm512_store_ps(scales_ + 16 * v, Expand512::load_scales(p, DType::kBF16, v));
    return unsafe == 0;
  }
  __attribute__((noinline)) bool load_any(const std::byte* p) {
    bool safe = true;
    for (int v = 0; v < 4; ++v) {
      const V scales =
          e_.type.has_factors() ? Expand512::load_scales(p, block_, v) : Expand512::load_scales(p, e_.type.scales, v);
      safe &= Expand512::all_safe(scales);
      _mm512_store_ps(scales_ + 16 * v, scales);
    }
    return safe;
  }

  __attribute__((noinline)) void write_plainly(int k, std::byte* to) const {
    float values[kRun];
    for (int row = 0; row < kRowBlock; ++row) {
      dequantise_row(block_, e_.layout, e_.type, row, k, k + kRun, values);
      for (int i = 0; i < kRun; ++i) {
        const auto half = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[i]) >> 16);
        std::memcpy(to + row * kLine + 2 * i, &half, sizeof half);
      }
    }
  }

  const Expansion& e_;
  const std::byte* block_;
  int ahead_;
  int group_end_ = 0;
  bool safe_ = false;
  alignas(64) float scales_[kRowBlock];  // of the group
};

// Codes of four bits: the 16 values of a group and row are made once, and a permutation looks 32 up.
class NibbleRuns : RunScales {
 public:
  NibbleRuns(const Expansion& e, const std::byte* block, int ahead_bytes)
      : RunScales(e, block, ahead_bytes),
        codes_(code_type() == DType::kInt4 ? Expand512::TwosComplement::values() : Expand512::E2M1::values()) {}

  template <class Meanwhile>
  __attribute__((always_inline)) void read(int k, std::byte* to, Meanwhile&& meanwhile) {
    const std::byte* codes = codes_at(k);
    const Group group = enter(k);
    if (group == Group::kNew) return look_up<true>(codes, to, meanwhile);
    if (group == Group::kSame) return look_up<false>(codes, to, meanwhile);
    read_plainly(k, to, meanwhile);
  }

 private:
  // kTables: those of the group are still to be made.
  template <bool kTables, class Meanwhile>
  __attribute__((always_inline)) void look_up(const std::byte* codes, std::byte* to, Meanwhile&& meanwhile) {
#pragma GCC unroll 16
    for (int i = 0; i < kRowBlock / 4; ++i) {
      ask_ahead(codes + i * kLine);
      if constexpr (kTables) {
        make_tables(4 * i);
        make_tables(4 * i + 2);
      }
      const I line = load(codes + i * kLine);
      look_up_row(4 * i, line, to);
      look_up_row(4 * i + 1, _mm512_srli_epi16(line, 4), to);
      look_up_row(4 * i + 2, _mm512_srli_epi16(line, 8), to);
      look_up_row(4 * i + 3, _mm512_srli_epi16(line, 12), to);
      meanwhile(i);
    }
  }

  // Of two rows. Through memory, since a load repeats a table in both halves of a vector beside the shuffles, which all
  // go through the port that looks up and that rounds.
  __attribute__((always_inline)) void make_tables(int row) {
    const V first = _mm512_mul_ps(codes_, _mm512_set1_ps(scales()[row]));
    const V second = _mm512_mul_ps(codes_, _mm512_set1_ps(scales()[row + 1]));
    I& two = *reinterpret_cast<I*>(tables_ + row * kTableBytes);
    two = reinterpret_cast<I>(_mm512_cvtne2ps_pbh(second, first));
    asm volatile("" : "+m"(two));
  }
  // index: in the lowest four bits of each word.
  __attribute__((always_inline)) void look_up_row(int row, I index, std::byte* to) const {
    const auto* table = reinterpret_cast<const __m256i*>(tables_ + row * kTableBytes);
    store(to + row * kLine, _mm512_permutexvar_epi16(index, _mm512_broadcast_i64x4(_mm256_load_si256(table))));
  }

  V codes_;
  alignas(64) std::byte tables_[kRowBlock * kTableBytes];  // by row: bfloat16 values by code
};

// Codes of eight bits. A permutation puts code + 128 into the bits [8, 16) of a float of exponent 15, which makes it
// 2^15 + 128 + code: a fused multiplication takes that away again and has the scale's exact product.
class ByteRuns : RunScales {
  static constexpr float kOffset = 32768 + 128;
  // Of scales whose products with kOffset are exact and finite.
  static constexpr float kMostFused = 0x1p111f;

 public:
  using RunScales::RunScales;

  template <class Meanwhile>
  __attribute__((always_inline)) void read(int k, std::byte* to, Meanwhile&& meanwhile) {
    const std::byte* codes = codes_at(k);
    const Group group = enter(k);
    if (group == Group::kUnsafe) return read_plainly(k, to, meanwhile);
    if (group == Group::kNew) fused_ = take_offsets();
    fused_ ? multiply<true>(codes, to, meanwhile) : multiply<false>(codes, to, meanwhile);
  }

 private:
  // Whether all scales can be used fused. Those of 0 and below cannot: they make zeros with a sign.
  __attribute__((always_inline)) bool take_offsets() {
    __mmask16 fused = has_short_scales() ? 0xffff : 0;
    for (int v = 0; v < 4; ++v) {
      const V of_rows = _mm512_load_ps(scales() + 16 * v);
      fused &= _mm512_cmp_ps_mask(of_rows, _mm512_set1_ps(kMostFused), _CMP_LT_OQ);
      fused &= _mm512_cmp_ps_mask(of_rows, _mm512_setzero_ps(), _CMP_GT_OQ);
      _mm512_store_ps(offsets_ + 16 * v, _mm512_mul_ps(of_rows, _mm512_set1_ps(-kOffset)));
    }
    return fused == 0xffff;
  }

  template <bool kFused, class Meanwhile>
  __attribute__((always_inline)) void multiply(const std::byte* codes, std::byte* to, Meanwhile&& meanwhile) const {
#pragma GCC unroll 16
    for (int i = 0; i < kRowBlock / 4; ++i) {
      for (int half = 0; half < 2; ++half) {
        const std::byte* line = codes + (2 * i + half) * kLine;
        ask_ahead(line);
        const I above_zero = _mm512_xor_si512(load(line), _mm512_set1_epi8(-128));
        multiply_row<kFused, 0>(4 * i + 2 * half, above_zero, to);
        multiply_row<kFused, 32>(4 * i + 2 * half + 1, above_zero, to);
      }
      meanwhile(i);
    }
  }
  // From byte kFirst of the line on.
  template <bool kFused, int kFirst>
  __attribute__((always_inline)) void multiply_row(int row, I line, std::byte* to) const {
    const V a = product<kFused, kFirst>(row, line), b = product<kFused, kFirst + 16>(row, line);
    store(to + row * kLine, reinterpret_cast<I>(_mm512_cvtne2ps_pbh(b, a)));
  }
  template <bool kFused, int kFirst>
  __attribute__((always_inline)) V product(int row, I line) const {
    constexpr int kExponent = 0x47000000;
    constexpr __mmask64 kSecondBytes = 0x2222222222222222;
    const I places =
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                           _mm512_set1_epi32(kFirst)),
                          8);
    const V code =
        _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(_mm512_set1_epi32(kExponent), kSecondBytes, places, line));
    const V scale = _mm512_set1_ps(scales()[row]);
    if constexpr (kFused) return _mm512_fmadd_ps(code, scale, _mm512_set1_ps(offsets_[row]));
    return _mm512_mul_ps(_mm512_sub_ps(code, _mm512_set1_ps(kOffset)), scale);
  }

  bool fused_ = false;
  alignas(64) float offsets_[kRowBlock];  // -kOffset × scale of the group
};

// body(the Reader of such codes).
template <class Body>
void with_reader(const Expansion& e, const std::byte* block, int ahead_bytes, Body&& body) {
  if (e.layout.bits == 4) return body(NibbleRuns(e, block, ahead_bytes));
  body(ByteRuns(e, block, ahead_bytes));
}

// Rows of kLine bytes change places with columns of four: row(i), i < 16, is where row i lies, put(j, column j).
template <class Row, class Put>
void transpose(Row&& row, Put&& put) {
  const auto part = [&](int i, int j) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row(i)) + j); };
  for (int j = 0; j < 4; ++j) {
    I a[4];  // row 4 n + i in lane n of 128 bits
    for (int i = 0; i < 4; ++i) {
      a[i] = _mm512_broadcast_i32x4(part(i, j));
      a[i] = _mm512_mask_broadcast_i32x4(a[i], 0x00f0, part(4 + i, j));
      a[i] = _mm512_mask_broadcast_i32x4(a[i], 0x0f00, part(8 + i, j));
      a[i] = _mm512_mask_broadcast_i32x4(a[i], 0xf000, part(12 + i, j));
    }
    const I lower01 = _mm512_unpacklo_epi32(a[0], a[1]), upper01 = _mm512_unpackhi_epi32(a[0], a[1]);
    const I lower23 = _mm512_unpacklo_epi32(a[2], a[3]), upper23 = _mm512_unpackhi_epi32(a[2], a[3]);
    put(4 * j, _mm512_unpacklo_epi64(lower01, lower23));
    put(4 * j + 1, _mm512_unpackhi_epi64(lower01, lower23));
    put(4 * j + 2, _mm512_unpacklo_epi64(upper01, upper23));
    put(4 * j + 3, _mm512_unpackhi_epi64(upper01, upper23));
  }
}

// LDTILECFG's operand, as in gemm_amx.cpp. Sums in tiles 0..3 and x in tile 4 have `rows` columns of four bytes,
// weights in tiles 5..7 always 16.
void configure(int rows) {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  } configuration;
  static_assert(sizeof configuration == 64);
  for (int tile = 0; tile < 8; ++tile) {
    configuration.row_bytes[tile] = static_cast<std::uint16_t>(tile < 5 ? 4 * rows : kLine);
    configuration.rows[tile] = kTileRows;
  }
  asm volatile("" : : "m"(configuration));  // GCC 12 does not know that all of it is read
  _tile_loadconfig(&configuration);
}

class RunsGemm {
  // A line of codes of eight bits takes 5.4 ns from 8 to 16 KiB on, 5.7 at 3 and 6.6 at 1 KiB: Xeon of model 207, where
  // a plain read takes 4.4 and decoding from the second cache 3.7.
  static constexpr int kAheadBytes = 12 << 10;

 public:
  // x: for each pair of k those of all rows, `stride` bytes from one pair to the next.
  RunsGemm(const PanelCall& call, const std::byte* x, int stride) : call_(call), x_(x), stride_(stride) {}

  void multiply(const std::byte* block, float* tile) const {
    with_reader(*call_.expansion, block, kAheadBytes, [&](auto&& reader) { add_block(reader, tile); });
  }

 private:
  template <class Reader>
  void add_block(Reader& reader, float* tile) const {
    std::byte *values = call_.scratch, *before = values + kRunValues;
    const std::byte* x = x_;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    reader.read(0, values, [](int) {});
    for (int k = kRun; k < call_.depth; k += kRun, x += kTileRows * stride_) {
      std::swap(values, before);
      reader.read(
          k, values, [&](int i) __attribute__((always_inline)) { add_products(i, x, before); });
    }
    for (int i = 0; i < kTileRows; ++i) add_products(i, x, values);
    call_.rows == 1 ? store_sums(tile) : store_columns(tile);
  }

  // Of a run, in four steps among 16.
  __attribute__((always_inline)) void add_products(int step, const std::byte* x, const std::byte* values) const {
    if (step == 1) {
      asm volatile("" : : : "memory");  // GCC 12 does not know that tile loads read what was stored
      _tile_loadd(4, x, stride_);
      _tile_loadd(5, values, kLine);
      _tile_dpbf16ps(0, 5, 4);
    } else if (step == 5) {
      _tile_loadd(6, values + kTileBytes, kLine);
      _tile_dpbf16ps(1, 6, 4);
    } else if (step == 9) {
      _tile_loadd(7, values + 2 * kTileBytes, kLine);
      _tile_dpbf16ps(2, 7, 4);
    } else if (step == 13) {
      _tile_loadd(5, values + 3 * kTileBytes, kLine);
      _tile_dpbf16ps(3, 5, 4);
    }
  }

  static void store_sums(float* tile) {
    _tile_stored(0, tile, 4);
    _tile_stored(1, tile + 16, 4);
    _tile_stored(2, tile + 32, 4);
    _tile_stored(3, tile + 48, 4);
  }
  // Of several rows of x, each of which is a column of the sums.
  void store_columns(float* tile) const {
    alignas(64) std::byte sums[4 * kTileBytes];
    _tile_stored(0, sums, kLine);
    _tile_stored(1, sums + kTileBytes, kLine);
    _tile_stored(2, sums + 2 * kTileBytes, kLine);
    _tile_stored(3, sums + 3 * kTileBytes, kLine);
    for (int part = 0; part < 4; ++part) {
      transpose([&](int i) { return sums + part * kTileBytes + i * kLine; },
                [&](int m, I column) {
                  if (m < call_.rows) store(tile + static_cast<std::size_t>(m) * call_.columns + 16 * part, column);
                });
    }
  }

  const PanelCall& call_;
  const std::byte* x_;
  int stride_;
};

// Of each pair of k those of all rows of x. A store writes more than that, which the next one corrects.
void pack_pairs(const PanelCall& call, std::byte* to) {
  const std::size_t row_bytes = static_cast<std::size_t>(call.depth) * 2;
  const int stride = pair_bytes(call.rows);
  for (std::size_t at = 0; at < row_bytes; at += kLine, to += kTileRows * stride) {
    transpose([&](int i) { return call.x + std::min(i, call.rows - 1) * row_bytes + at; },
              [&](int pair, I rows) { store(to + pair * stride, rows); });
  }
}

}  // namespace

void gemm_code_runs(const PanelCall& call, std::byte* pairs) {
  const bool one = call.rows == 1;
  if (!one) pack_pairs(call, pairs);
  const RunsGemm gemm(call, one ? call.x : pairs, pair_bytes(call.rows));
  configure(call.rows);
  const std::byte* block = call.weight;
  for (int n = 0; n < call.columns; n += kRowBlock, block += call.expansion->layout.block_bytes()) {
    gemm.multiply(block, call.tile + n);
  }
  _tile_release();  // idle tiles make context switches dearer
}

void expand_code_runs(const Expansion& e, const std::byte* block, int first, int count, std::byte* to) {
  constexpr int kAheadBytes = 3072, kPairBytes = 4 * kRowBlock;
  alignas(64) std::byte values[kRunValues];
  with_reader(e, block, kAheadBytes, [&](auto&& reader) {
    for (int k = first; k < first + count; k += kRun, to += kRun / 2 * kPairBytes) {
      reader.read(k, values, [](int) {});
      for (int part = 0; part < 4; ++part) {
        transpose([&](int i) { return values + part * kTileBytes + i * kLine; },
                  [&](int pair, I rows) { store(to + pair * kPairBytes + part * kLine, rows); });
      }
    }
  });
}

}  // namespace computron::kernels
