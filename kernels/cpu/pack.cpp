// Weights are packed in units, [unit][64 rows]: a float32, a float16, or a pair of bfloat16 neighbours of one row.
// Whole units go by vectors: with column_stride 1 eight rows × 32 bytes are transposed in registers, with row_stride 1
// rows are copied (bfloat16: two columns interleaved). What is left over goes element by element.
//
// A transposed source comes a few columns at a time and each reaches every block of the panel, so what is written has
// long left the cache, and comes back at the price of another read. Where all rows of a block are there they are
// streamed past it: twice as fast into memory, no slower into cache.
#include "kernels/cpu/pack.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "computron/base/vectors.h"
#include "kernels/cpu/quantised_panel.h"

namespace computron::kernels {
namespace {

constexpr std::size_t kLine = 64;  // bytes of a cache line

struct F32Layout {
  using Element = float;
  using Unit = std::uint32_t;
};
struct F16Layout {
  using Element = std::uint16_t;
  using Unit = std::uint16_t;
};
struct Bf16Layout {
  using Element = std::uint16_t;
  using Unit = std::uint32_t;
};

// Elements of a unit, which follow each other in a row.
template <class Layout>
constexpr int kPerUnit = sizeof(typename Layout::Unit) / sizeof(typename Layout::Element);

// A piece that lies in one block of 64 rows. Columns count from the block's first, rows from `lane`.
struct Piece {
  std::byte* block;  // [units][64]
  int lane, rows;    // rows [lane, lane + rows) of the block
  int column, columns;
  const std::byte* source;                // of its element (0, 0)
  std::size_t row_stride, column_stride;  // in elements
};

template <class Layout>
typename Layout::Unit* unit_at(const Piece& p, int unit) {
  return reinterpret_cast<typename Layout::Unit*>(p.block) + static_cast<std::size_t>(unit) * kRowBlock + p.lane;
}

// Columns [first, last) of the piece.
template <class Layout>
void pack_elements(const Piece& p, int first, int last) {
  using Element = typename Layout::Element;
  constexpr int kCount = kPerUnit<Layout>;
  const auto* source = reinterpret_cast<const Element*>(p.source);
  for (int c = first; c < last; ++c) {
    auto* to = reinterpret_cast<Element*>(unit_at<Layout>(p, (p.column + c) / kCount)) + (p.column + c) % kCount;
    for (int r = 0; r < p.rows; ++r) to[r * kCount] = source[r * p.row_stride + c * p.column_stride];
  }
}

__m256i load256(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
void store256(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
void store128(void* p, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }

// to[u * 64 + r] = unit u of row r, for eight rows of 32 bytes.
void transpose_rows(const std::byte* from, std::size_t row_bytes, std::uint32_t* to) {
  __m256i a[8], b[8];
  for (int r = 0; r < 8; ++r) a[r] = load256(from + r * row_bytes);
  for (int r = 0; r < 8; r += 2) {
    b[r] = _mm256_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm256_unpackhi_epi32(a[r], a[r + 1]);
  }
  for (int r = 0; r < 8; r += 4) {
    a[r] = _mm256_unpacklo_epi64(b[r], b[r + 2]);
    a[r + 1] = _mm256_unpackhi_epi64(b[r], b[r + 2]);
    a[r + 2] = _mm256_unpacklo_epi64(b[r + 1], b[r + 3]);
    a[r + 3] = _mm256_unpackhi_epi64(b[r + 1], b[r + 3]);
  }
  for (int u = 0; u < 4; ++u) {
    store256(to + u * kRowBlock, _mm256_permute2x128_si256(a[u], a[u + 4], 0x20));
    store256(to + (u + 4) * kRowBlock, _mm256_permute2x128_si256(a[u], a[u + 4], 0x31));
  }
}

void transpose_rows(const std::byte* from, std::size_t row_bytes, std::uint16_t* to) {
  __m256i a[8], b[8];
  for (int r = 0; r < 8; ++r) a[r] = load256(from + r * row_bytes);
  for (int r = 0; r < 4; ++r) {
    b[r] = _mm256_unpacklo_epi16(a[2 * r], a[2 * r + 1]);
    b[r + 4] = _mm256_unpackhi_epi16(a[2 * r], a[2 * r + 1]);
  }
  for (int i = 0; i < 8; i += 2) {
    a[i / 2] = _mm256_unpacklo_epi32(b[i], b[i + 1]);
    a[i / 2 + 4] = _mm256_unpackhi_epi32(b[i], b[i + 1]);
  }
  // a: rows 0 to 3, then 4 to 7, of two units in each half; those of units 0, 1; 4, 5; then 2, 3; 6, 7.
  for (int i = 0; i < 8; i += 2) {
    const int unit = (i / 2 % 2) * 4 + i / 4 * 2;
    const __m256i even = _mm256_unpacklo_epi64(a[i], a[i + 1]), odd = _mm256_unpackhi_epi64(a[i], a[i + 1]);
    store128(to + unit * kRowBlock, _mm256_castsi256_si128(even));
    store128(to + (unit + 1) * kRowBlock, _mm256_castsi256_si128(odd));
    store128(to + (unit + 8) * kRowBlock, _mm256_extracti128_si256(even, 1));
    store128(to + (unit + 9) * kRowBlock, _mm256_extracti128_si256(odd, 1));
  }
}

// Columns from `first` on, kBytes of a row at a time, while these end before `last`; gives the first that is left.
// Eight rows after the other: rows that lie a power of two apart share a set of the first cache, which cannot hold a
// line of each of 64.
template <class Layout, int kBytes>
int pack_units(const Piece& p, int first, int last) {
  using Unit = typename Layout::Unit;
  constexpr int kStep = kBytes / sizeof(typename Layout::Element), kUnits = kBytes / sizeof(Unit);
  constexpr int kUnitsTogether = 32 / sizeof(Unit);
  const std::size_t row_bytes = p.row_stride * sizeof(typename Layout::Element);
  int c = first;
  for (; c + kStep <= last; c += kStep) {
    const std::byte* from = p.source + c * sizeof(typename Layout::Element);
    Unit* to = unit_at<Layout>(p, (p.column + c) / kPerUnit<Layout>);
    int r = 0;
    for (; r + 8 <= p.rows; r += 8) {
      const std::byte* rows = from + r * row_bytes;
      for (int u = 0; u < kUnits; u += kUnitsTogether) {
        transpose_rows(rows + u * sizeof(Unit), row_bytes, to + u * kRowBlock + r);
      }
    }
    for (; r < p.rows; ++r) {
      for (int u = 0; u < kUnits; ++u) {
        std::memcpy(to + u * kRowBlock + r, from + r * row_bytes + u * sizeof(Unit), sizeof(Unit));
      }
    }
  }
  return c;
}

// Columns [first, last), whole units; rows are contiguous (column_stride 1).
template <class Layout>
void pack_rows(const Piece& p, int first, int last) {
  first = pack_units<Layout, 256>(p, first, last);
  first = pack_units<Layout, 32>(p, first, last);
  pack_elements<Layout>(p, first, last);
}

// 32 bytes of a unit of rows from `column` on.
template <class Layout>
__m256i load_unit(const typename Layout::Element* column, std::size_t column_stride) {
  if constexpr (kPerUnit<Layout> == 1) return load256(reinterpret_cast<const std::byte*>(column));
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(column));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(column + column_stride));
  return _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
}

// All rows of a block: whole lines, which need not be read before they are written. `to` is aligned to them.
template <class Layout>
void stream_unit(const typename Layout::Element* column, std::size_t column_stride, typename Layout::Unit* to) {
  constexpr int kRows = 32 / sizeof(*to);
  for (int r = 0; r < kRowBlock; r += kRows) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + r), load_unit<Layout>(column + r, column_stride));
  }
}

template <class Layout>
void copy_unit(const typename Layout::Element* column, std::size_t column_stride, int rows, typename Layout::Unit* to) {
  if constexpr (kPerUnit<Layout> == 1) {
    std::memcpy(to, column, rows * sizeof(*to));
  } else {
    int r = 0;
    for (; r + 8 <= rows; r += 8) store256(to + r, load_unit<Layout>(column + r, column_stride));
    for (; r < rows; ++r) to[r] = column[r] | static_cast<std::uint32_t>(column[column_stride + r]) << 16;
  }
}

// Columns [first, last), whole units; columns are contiguous (row_stride 1).
template <class Layout>
void pack_columns(const Piece& p, int first, int last) {
  const auto* source = reinterpret_cast<const typename Layout::Element*>(p.source);
  const bool whole_lines = p.rows == kRowBlock && reinterpret_cast<std::uintptr_t>(p.block) % kLine == 0;
  for (int c = first; c < last; c += kPerUnit<Layout>) {
    const auto* column = source + c * p.column_stride;
    auto* to = unit_at<Layout>(p, (p.column + c) / kPerUnit<Layout>);
    whole_lines ? stream_unit<Layout>(column, p.column_stride, to)
                : copy_unit<Layout>(column, p.column_stride, p.rows, to);
  }
}

template <class Layout>
void pack_piece(const Piece& p) {
  constexpr int kCount = kPerUnit<Layout>;
  const bool by_vectors = p.column_stride == 1 || p.row_stride == 1;
  const int first = by_vectors ? std::min(p.columns, (kCount - p.column % kCount) % kCount) : p.columns;
  const int last = first + (p.columns - first) / kCount * kCount;
  pack_elements<Layout>(p, 0, first);
  if (first < last) p.column_stride == 1 ? pack_rows<Layout>(p, first, last) : pack_columns<Layout>(p, first, last);
  pack_elements<Layout>(p, last, p.columns);
}

// Columns go in groups so that the blocks of a panel share the source's lines and pages while these are at hand.
template <class Layout>
void pack_all(std::byte* packed, std::size_t block_bytes, int row, int rows, int column, int columns,
              const std::byte* source, std::size_t row_stride, std::size_t column_stride) {
  const int group = row_stride == 1 && column_stride != 1 ? 32 : columns;
  for (int c = 0; c < columns; c += group) {
    for (int r = row, end; r < row + rows; r = end) {
      end = std::min(round_up(r + 1, kRowBlock), row + rows);
      const std::size_t offset = (r - row) * row_stride + c * column_stride;
      pack_piece<Layout>({packed + r / kRowBlock * block_bytes, r % kRowBlock, end - r, column + c,
                          std::min(group, columns - c), source + offset * sizeof(typename Layout::Element), row_stride,
                          column_stride});
    }
  }
}

}  // namespace

std::size_t packed_bytes(int rows, int depth, const WeightType& type) {
  if (!type.quantised()) return packed_bytes(rows, depth, type.values);
  return ceil_div(rows, kRowBlock) * QuantisedLayout(depth, type).block_bytes();
}

void pack(std::byte* packed, int depth, const WeightType& type, int row, int rows, int column, int columns,
          const std::byte* source, std::size_t row_stride, std::size_t column_stride) {
  if (type.quantised()) {
    return pack_codes(packed, depth, type, row, rows, column, columns, source, row_stride, column_stride);
  }
  const std::size_t block_bytes = packed_bytes(kRowBlock, depth, type.values);
  const auto pack_as = type.values == DType::kF32   ? pack_all<F32Layout>
                       : type.values == DType::kF16 ? pack_all<F16Layout>
                                                    : pack_all<Bf16Layout>;
  pack_as(packed, block_bytes, row, rows, column, columns, source, row_stride, column_stride);
  _mm_sfence();  // what was streamed comes before whatever tells other threads of it
}

}  // namespace computron::kernels
