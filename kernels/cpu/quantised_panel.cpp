// Codes are gathered a square of 64 rows × 64 k at a time, a byte each in the panel's order, and go to the panel from
// there.
#include "kernels/cpu/quantised_panel.h"

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "computron/base/vectors.h"

namespace computron::kernels {
namespace {

constexpr int kSquare = 64;
constexpr int kPairCodes = 2 * kRowBlock;  // codes of two neighbouring k

// Where the code of row `row` and k `k` is among those of its pair of k.
constexpr int place_of(bool in_pairs, int row, int k) { return in_pairs ? row * 2 + k % 2 : k % 2 * kRowBlock + row; }

// ---- values

float value_of_e4m3(unsigned bits) {
  return 256 * f32_from_f16(static_cast<std::uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7));
}

float value_of_code(DType codes, unsigned code) {
  constexpr float kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0f, -0.5, -1, -1.5, -2, -3, -4, -6};
  if (codes == DType::kInt8) return static_cast<std::int8_t>(code);
  if (codes == DType::kInt4) return static_cast<float>(static_cast<int>(code ^ 8) - 8);
  return codes == DType::kFp4 ? kE2M1[code] : value_of_e4m3(code);
}

float value_of_scale(DType scales, const std::byte* p) {
  std::uint16_t half = 0;
  if (scales == DType::kE4M3) return value_of_e4m3(std::to_integer<unsigned>(*p));
  if (size_of(scales) == 2) std::memcpy(&half, p, sizeof(half));
  if (scales == DType::kF16) return f32_from_f16(half);
  if (scales == DType::kBF16) return f32_from_bf16(half);
  if (scales == DType::kE8M0) {
    const auto exponent = std::to_integer<std::uint32_t>(*p);
    return std::bit_cast<float>(exponent == 0 ? 0x00400000u : exponent == 255 ? 0x7fc00000u : exponent << 23);
  }
  float scale;
  std::memcpy(&scale, p, sizeof(scale));
  return scale;
}

// That a row's codes of group `g` are multiplied with.
float scale_of(const std::byte* block, const QuantisedLayout& layout, const WeightType& type, int row, int g) {
  const float scale = value_of_scale(type.scales, block + layout.scales_at(g) + row * layout.scale_bytes);
  if (!type.has_factors()) return scale;
  double factor;
  std::memcpy(&factor, block + row * sizeof factor, sizeof factor);
  return static_cast<float>(scale * factor);
}

unsigned code_at(const std::byte* pair, DType codes, int place) {
  if (!two_in_a_byte(codes)) return std::to_integer<unsigned>(pair[place]);
  return std::to_integer<unsigned>(pair[place % 16 * 4 + place / 32]) >> place / 16 % 2 * 4 & 15;
}

constexpr int kRun = QuantisedLayout::kRun;

// Where the code of four bits of a row is in a run that begins at `k` / 32 * 32: its byte, and whether it is the upper
// half.
constexpr int byte_in_runs(int row, int k) { return row / 4 * 64 + k % kRun * 2 + row % 4 / 2; }
constexpr bool upper_in_runs(int row) { return row % 2 == 1; }

unsigned code_in_run(const std::byte* run, std::size_t bits, int row, int k) {
  if (bits == 8) return std::to_integer<unsigned>(run[row * kRun + k % kRun]);
  return std::to_integer<unsigned>(run[byte_in_runs(row, k)]) >> (upper_in_runs(row) ? 4 : 0) & 15;
}

// The i-th k of a group whose codes begin at `codes`.
unsigned code_of(const std::byte* codes, const QuantisedLayout& layout, const WeightType& type, int row, int i) {
  const int together = layout.in_runs ? kRun : 2;
  const std::byte* first = codes + layout.code_bytes(i / together * together);
  return layout.in_runs ? code_in_run(first, layout.bits, row, i)
                        : code_at(first, type.codes, place_of(layout.in_pairs, row, i));
}

// ---- gathering

// A piece in one square. Rows count from the block's first, k from the square's.
struct CodePiece {
  int row, rows, k, count;
  const std::byte* source;  // of its element (0, 0)
  std::size_t row_stride, column_stride;
};

using Square = std::byte[kSquare / 2][kPairCodes];

void gather_elements(const CodePiece& p, bool pairs, int r, int rows, int c, int columns, Square& square) {
  for (int k = c; k < c + columns; ++k) {
    for (int i = r; i < r + rows; ++i) {
      square[(p.k + k) / 2][place_of(pairs, p.row + i, p.k + k)] = p.source[i * p.row_stride + k * p.column_stride];
    }
  }
}

__m128i load128(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
void store128(std::byte* p, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x); }

// Eight rows of eight elements of two bytes each change places.
void transpose_pairs(__m128i (&a)[8]) {
  __m128i b[8];
  for (int r = 0; r < 8; r += 2) {
    b[r] = _mm_unpacklo_epi16(a[r], a[r + 1]);
    b[r + 1] = _mm_unpackhi_epi16(a[r], a[r + 1]);
  }
  for (int r = 0; r < 8; r += 4) {
    a[r] = _mm_unpacklo_epi32(b[r], b[r + 2]);
    a[r + 1] = _mm_unpackhi_epi32(b[r], b[r + 2]);
    a[r + 2] = _mm_unpacklo_epi32(b[r + 1], b[r + 3]);
    a[r + 3] = _mm_unpackhi_epi32(b[r + 1], b[r + 3]);
  }
  for (int u = 0; u < 4; ++u) {
    b[2 * u] = _mm_unpacklo_epi64(a[u], a[u + 4]);
    b[2 * u + 1] = _mm_unpackhi_epi64(a[u], a[u + 4]);
  }
  std::copy_n(b, 8, a);
}

// Eight rows × 16 columns, of contiguous rows, from an even k on.
void gather_8x16(const CodePiece& p, bool pairs, int r, int c, Square& square) {
  __m128i units[8];  // of two k: by row, then by pair of k
  for (int i = 0; i < 8; ++i) units[i] = load128(p.source + (r + i) * p.row_stride + c);
  transpose_pairs(units);
  const __m128i evens_then_odds = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  for (int u = 0; u < 8; ++u) {
    std::byte* pair = square[(p.k + c) / 2 + u];
    if (pairs) {
      store128(pair + 2 * (p.row + r), units[u]);
    } else {
      const __m128i apart = _mm_shuffle_epi8(units[u], evens_then_odds);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(pair + p.row + r), apart);
      _mm_storeh_pd(reinterpret_cast<double*>(pair + kRowBlock + p.row + r), _mm_castsi128_pd(apart));
    }
  }
}

void gather_rows(const CodePiece& p, bool pairs, Square& square) {
  const int odd = std::min(p.k % 2, p.count), whole = (p.count - odd) / 16 * 16, rows = p.rows / 8 * 8;
  gather_elements(p, pairs, 0, p.rows, 0, odd, square);
  for (int r = 0; r < rows; r += 8) {
    for (int c = odd; c < odd + whole; c += 16) gather_8x16(p, pairs, r, c, square);
  }
  gather_elements(p, pairs, rows, p.rows - rows, odd, whole, square);
  gather_elements(p, pairs, 0, p.rows, odd + whole, p.count - odd - whole, square);
}

// 16 rows of two k, of contiguous columns.
void gather_16x2(const CodePiece& p, bool pairs, int r, int c, Square& square) {
  const __m128i even = load128(p.source + r + c * p.column_stride);
  const __m128i odd = load128(p.source + r + (c + 1) * p.column_stride);
  std::byte* pair = square[(p.k + c) / 2] + (p.row + r) * (pairs ? 2 : 1);
  store128(pair, pairs ? _mm_unpacklo_epi8(even, odd) : even);
  store128(pair + (pairs ? 16 : kRowBlock), pairs ? _mm_unpackhi_epi8(even, odd) : odd);
}

void gather_columns(const CodePiece& p, bool pairs, Square& square) {
  const int odd = std::min(p.k % 2, p.count), whole = (p.count - odd) / 2 * 2, rows = p.rows / 16 * 16;
  gather_elements(p, pairs, 0, p.rows, 0, odd, square);
  for (int c = odd; c < odd + whole; c += 2) {
    for (int r = 0; r < rows; r += 16) gather_16x2(p, pairs, r, c, square);
  }
  gather_elements(p, pairs, rows, p.rows - rows, odd, whole, square);
  gather_elements(p, pairs, 0, p.rows, odd + whole, p.count - odd - whole, square);
}

void gather(const CodePiece& p, bool pairs, Square& square) {
  if (p.column_stride == 1) return gather_rows(p, pairs, square);
  if (p.row_stride == 1) return gather_columns(p, pairs, square);
  gather_elements(p, pairs, 0, p.rows, 0, p.count, square);
}

// ---- from the square to the panel: rows [row, end) of k, or of the pair that begins with k

void put_bytes(const std::byte* from, bool pairs, int row, int end, int k, bool both, std::byte* pair) {
  if (both && pairs) {
    std::memcpy(pair + 2 * row, from + 2 * row, 2 * static_cast<std::size_t>(end - row));
  } else if (!pairs) {
    for (int i = k % 2; i < (both ? 2 : k % 2 + 1); ++i) {
      std::memcpy(pair + i * kRowBlock + row, from + i * kRowBlock + row, static_cast<std::size_t>(end - row));
    }
  } else {
    for (int r = row; r < end; ++r) pair[2 * r + k % 2] = from[2 * r + k % 2];
  }
}

// All codes of a pair of k.
void put_words(const std::byte* from, std::byte* pair) {
  __m128i bytes[4];
  const __m128i low = _mm_set1_epi8(15);
  for (int b = 0; b < 4; ++b) {
    const __m128i second = _mm_slli_epi16(_mm_and_si128(load128(from + 32 * b + 16), low), 4);
    bytes[b] = _mm_or_si128(_mm_and_si128(load128(from + 32 * b), low), second);
  }
  const __m128i a = _mm_unpacklo_epi8(bytes[0], bytes[1]), b = _mm_unpackhi_epi8(bytes[0], bytes[1]);
  const __m128i c = _mm_unpacklo_epi8(bytes[2], bytes[3]), d = _mm_unpackhi_epi8(bytes[2], bytes[3]);
  store128(pair, _mm_unpacklo_epi16(a, c));
  store128(pair + 16, _mm_unpackhi_epi16(a, c));
  store128(pair + 32, _mm_unpacklo_epi16(b, d));
  store128(pair + 48, _mm_unpackhi_epi16(b, d));
}

// Of a whole run, from the pair with its first k on.
void put_run(const std::byte (&from)[kRun / 2][kPairCodes], std::byte* run) {
  const __m128i low = _mm_set1_epi8(15), places = _mm_set1_epi16(0x1001);  // 1 and 16
  const __m128i by_k = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  for (int pair = 0; pair < kRun / 2; ++pair) {
    for (int i = 0; i < kPairCodes / 32; ++i) {  // sixteen rows
      const auto words = [&](int j) {
        const __m128i codes = _mm_and_si128(load128(from[pair] + 32 * i + 16 * j), low);
        return _mm_maddubs_epi16(_mm_shuffle_epi8(codes, by_k), places);
      };
      const __m128i two_k = _mm_packus_epi16(words(0), words(1));  // of four rows, four times
      std::byte* to = run + 256 * i + 4 * pair;
      for (int j = 0; j < 4; ++j) {
        alignas(16) std::byte bytes[16];
        store128(bytes, two_k);
        std::memcpy(to + 64 * j, bytes + 4 * j, 4);
      }
    }
  }
}

void put_run_codes(const std::byte* from, int row, int end, int k, std::byte* run) {
  for (int r = row; r < end; ++r) {
    auto& byte = reinterpret_cast<std::uint8_t&>(run[byte_in_runs(r, k)]);
    const unsigned code = std::to_integer<unsigned>(from[place_of(true, r, k)]) & 15;
    const bool upper = upper_in_runs(r);
    std::atomic_ref(byte).fetch_or(static_cast<std::uint8_t>(code << (upper ? 4 : 0)), std::memory_order_relaxed);
  }
}

// Of eight bits.
void put_run_bytes(const Square& square, const CodePiece& p, const QuantisedLayout& layout, int first_k,
                   std::byte* block) {
  for (int k = p.k; k < p.k + p.count; ++k) {
    std::byte* run = block + layout.codes_at(first_k + k / kRun * kRun);
    for (int r = p.row; r < p.row + p.rows; ++r) {
      run[r * kRun + k % kRun] = square[k / 2][place_of(true, r, k)];
    }
  }
}
// Of rows that lie side by side already.
void copy_run_bytes(const CodePiece& p, const QuantisedLayout& layout, int first_k, std::byte* block) {
  for (int k = p.k, next; k < p.k + p.count; k = next) {
    next = std::min(k / kRun * kRun + kRun, p.k + p.count);
    std::byte* run = block + layout.codes_at(first_k + k / kRun * kRun);
    for (int r = 0; r < p.rows; ++r) {
      std::memcpy(run + (p.row + r) * kRun + k % kRun, p.source + r * p.row_stride + (k - p.k),
                  static_cast<std::size_t>(next - k));
    }
  }
}

void put_runs(const Square& square, const CodePiece& p, const QuantisedLayout& layout, int first_k, std::byte* block) {
  const int end_k = p.k + p.count, end = p.row + p.rows;
  for (int k = p.k, next; k < end_k; k = next) {
    next = std::min(k / kRun * kRun + kRun, end_k);
    std::byte* run = block + layout.codes_at(first_k + k / kRun * kRun);
    if (next - k == kRun && p.rows == kRowBlock) {
      put_run(reinterpret_cast<const std::byte(&)[kRun / 2][kPairCodes]>(square[k / 2]), run);
    } else {
      for (int i = k; i < next; ++i) put_run_codes(square[i / 2], p.row, end, i, run);
    }
  }
}

// A byte holds codes of two rows. Another thread may hold the piece with the other.
void put_nibbles(const std::byte* from, bool pairs, int row, int end, int k, std::byte* pair) {
  const int apart = pairs ? 8 : 16;  // rows
  for (int r = row; r < end; ++r) {
    const int place = place_of(pairs, r, k);
    auto& byte = reinterpret_cast<std::uint8_t&>(pair[place % 16 * 4 + place / 32]);
    const unsigned code = std::to_integer<unsigned>(from[place]) & 15;
    if (const bool first = r / apart % 2 == 0; first && r + apart < end) {
      byte = static_cast<std::uint8_t>(code | std::to_integer<unsigned>(from[place + 16]) << 4);
    } else if (first || r - apart < row) {
      std::atomic_ref(byte).fetch_or(static_cast<std::uint8_t>(code << (first ? 0 : 4)), std::memory_order_relaxed);
    }
  }
}

void put(const Square& square, const WeightType& type, const CodePiece& p, const QuantisedLayout& layout, int first_k,
         std::byte* block) {
  if (layout.in_runs) {
    return layout.bits == 8 ? put_run_bytes(square, p, layout, first_k, block)
                            : put_runs(square, p, layout, first_k, block);
  }
  const bool pairs = layout.in_pairs, words = two_in_a_byte(type.codes);
  const int end_k = p.k + p.count, end = p.row + p.rows;
  for (int k = p.k, next; k < end_k; k = next) {
    next = std::min(k / 2 * 2 + 2, end_k);
    const bool both = next - k == 2;
    const std::byte* from = square[k / 2];
    std::byte* pair = block + layout.codes_at(first_k + k / 2 * 2);
    if (!words) {
      put_bytes(from, pairs, p.row, end, k, both, pair);
    } else if (both && p.rows == kRowBlock) {
      put_words(from, pair);
    } else {
      for (int i = k; i < next; ++i) put_nibbles(from, pairs, p.row, end, i, pair);
    }
  }
}

// ---- scales

// Of rows that follow each other.
template <std::size_t kSize>
void copy_scales(std::byte* to, const std::byte* source, int rows, std::size_t row_stride) {
  if (row_stride == 1) {
    std::memcpy(to, source, rows * kSize);
    return;
  }
  for (int r = 0; r < rows; ++r) std::memcpy(to + r * kSize, source + r * row_stride * kSize, kSize);
}

}  // namespace

// Columns go in squares so that the blocks of a panel share the lines and pages of a transposed source.
void pack_codes(std::byte* packed, int depth, const WeightType& type, int row, int rows, int column, int columns,
                const std::byte* source, std::size_t row_stride, std::size_t column_stride) {
  const QuantisedLayout layout(depth, type);
  alignas(64) Square square;
  for (int k = column, k_end; k < column + columns; k = k_end) {
    k_end = std::min(round_up(k + 1, kSquare), column + columns);
    for (int r = row, r_end; r < row + rows; r = r_end) {
      r_end = std::min(round_up(r + 1, kRowBlock), row + rows);
      const CodePiece piece{r % kRowBlock,
                            r_end - r,
                            k % kSquare,
                            k_end - k,
                            source + (r - row) * row_stride + (k - column) * column_stride,
                            row_stride,
                            column_stride};
      const int first_k = k / kSquare * kSquare;
      std::byte* block = packed + r / kRowBlock * layout.block_bytes();
      if (layout.in_runs && layout.bits == 8 && column_stride == 1) {
        copy_run_bytes(piece, layout, first_k, block);
        continue;
      }
      gather(piece, layout.in_pairs, square);
      put(square, type, piece, layout, first_k, block);
    }
  }
}

void pack_scales(std::byte* packed, int depth, const WeightType& type, int row, int rows, int group, int groups,
                 const std::byte* source, std::size_t row_stride, std::size_t group_stride) {
  const QuantisedLayout layout(depth, type);
  const std::size_t size = layout.scale_bytes;
  const auto copy = size == 4 ? copy_scales<4> : size == 2 ? copy_scales<2> : copy_scales<1>;
  for (int r = row, end; r < row + rows; r = end) {
    end = std::min(round_up(r + 1, kRowBlock), row + rows);
    std::byte* block = packed + r / kRowBlock * layout.block_bytes() + r % kRowBlock * size;
    for (int g = 0; g < groups; ++g) {
      copy(block + layout.scales_at(group + g), source + ((r - row) * row_stride + g * group_stride) * size, end - r,
           row_stride);
    }
  }
}

void pack_factor(std::byte* packed, int depth, const WeightType& type, int row, int rows, double factor) {
  const QuantisedLayout layout(depth, type);
  ensure(type.has_factors(), "a factor of scales that have none");
  for (int r = row; r < row + rows; ++r) {
    std::memcpy(packed + r / kRowBlock * layout.block_bytes() + r % kRowBlock * sizeof factor, &factor, sizeof factor);
  }
}

void dequantise_row(const std::byte* block, const QuantisedLayout& layout, const WeightType& type, int row, int first,
                    int last, float* out) {
  for (int k = first, end; k < last; k = end) {
    end = std::min((k / layout.group + 1) * layout.group, last);
    const int group = k / layout.group, first_k = group * layout.group;
    const float scale = scale_of(block, layout, type, row, group);
    const std::byte* codes = block + layout.codes_at(first_k);
    for (; k < end; ++k) {
      const float value = scale * value_of_code(type.codes, code_of(codes, layout, type, row, k - first_k));
      *out++ = type.values == DType::kBF16 ? f32_from_bf16(bf16_from_f32(value)) : value;
    }
  }
}

void expand_plainly(const std::byte* block, const QuantisedLayout& layout, const WeightType& type, int first, int count,
                    std::byte* to) {
  constexpr int kStep = 16;
  const bool pairs = type.values == DType::kBF16;
  float values[kStep];
  for (int k = first; k < first + count; k += kStep) {
    for (int row = 0; row < kRowBlock; ++row) {
      dequantise_row(block, layout, type, row, k, k + kStep, values);
      for (int i = 0; i < kStep; ++i) {
        const int place = (k + i - first) / 2 * kPairCodes + place_of(pairs, row, k + i);
        const auto bits = std::bit_cast<std::uint32_t>(values[i]);
        const auto half = static_cast<std::uint16_t>(bits >> 16);
        pairs ? std::memcpy(to + place * 2, &half, 2) : std::memcpy(to + place * 4, &bits, 4);
      }
    }
  }
}

}  // namespace computron::kernels
