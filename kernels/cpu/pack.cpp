// Both element types are packed in units of 32 bits, [unit][64 rows]: a float32, or a pair of bfloat16 neighbours of
// one row. Whole units go by vectors: with column_stride 1 eight rows × eight units are transposed in registers, with
// row_stride 1 rows are copied (bfloat16: two columns interleaved). What is left over goes element by element.
//
// A transposed source comes a few columns at a time and each reaches every block of the panel, so what is written has
// long left the cache, and comes back at the price of another read. Where all rows of a block are there they are
// streamed past it: twice as fast into memory, no slower into cache.
#include "kernels/cpu/pack.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/quantised_panel.h"

namespace computron::kernels {
namespace {

constexpr std::size_t kLine = 64;  // bytes of a cache line

// A piece that lies in one block of 64 rows. Columns count from the block's first, rows from `lane`.
struct Piece {
  std::byte* block;  // [units][64] of 4 bytes
  int lane, rows;    // rows [lane, lane + rows) of the block
  int column, columns;
  const std::byte* source;                // of its element (0, 0)
  std::size_t row_stride, column_stride;  // in elements
};

std::uint32_t* unit_at(const Piece& p, int unit) {
  return reinterpret_cast<std::uint32_t*>(p.block) + static_cast<std::size_t>(unit) * kRowBlock + p.lane;
}

// Columns [first, last) of the piece, of element type T with kPerUnit columns a unit.
template <class T>
void pack_elements(const Piece& p, int first, int last) {
  constexpr int kPerUnit = 4 / sizeof(T);
  const T* source = reinterpret_cast<const T*>(p.source);
  for (int c = first; c < last; ++c) {
    T* to = reinterpret_cast<T*>(unit_at(p, (p.column + c) / kPerUnit)) + (p.column + c) % kPerUnit;
    for (int r = 0; r < p.rows; ++r) to[r * kPerUnit] = source[r * p.row_stride + c * p.column_stride];
  }
}

__m256i load256(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
void store256(std::uint32_t* p, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }

// to[u * 64 + r] = unit u of row r, for eight rows of eight units.
void transpose_8x8(const std::byte* from, std::size_t row_bytes, std::uint32_t* to) {
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

// Columns from `first` on, kUnits units at a time, while these end before `last`; gives the first that is left. Eight
// rows after the other: rows that lie a power of two apart share a set of the first cache, which cannot hold a line of
// each of 64.
template <class T, int kUnits>
int pack_units(const Piece& p, int first, int last) {
  constexpr int kPerUnit = 4 / sizeof(T), kStep = kUnits * kPerUnit;
  const std::size_t row_bytes = p.row_stride * sizeof(T);
  int c = first;
  for (; c + kStep <= last; c += kStep) {
    const std::byte* from = p.source + c * sizeof(T);
    std::uint32_t* to = unit_at(p, (p.column + c) / kPerUnit);
    int r = 0;
    for (; r + 8 <= p.rows; r += 8) {
      const std::byte* rows = from + r * row_bytes;
      for (int u = 0; u < kUnits; u += 8) transpose_8x8(rows + 4 * u, row_bytes, to + u * kRowBlock + r);
    }
    for (; r < p.rows; ++r) {
      for (int u = 0; u < kUnits; ++u) std::memcpy(to + u * kRowBlock + r, from + r * row_bytes + 4 * u, 4);
    }
  }
  return c;
}

// Columns [first, last), whole units; rows are contiguous (column_stride 1).
template <class T>
void pack_rows(const Piece& p, int first, int last) {
  first = pack_units<T, 64>(p, first, last);
  first = pack_units<T, 8>(p, first, last);
  pack_elements<T>(p, first, last);
}

// Eight rows of a unit.
__m256i load_unit(const float* column, std::size_t) { return load256(reinterpret_cast<const std::byte*>(column)); }

__m256i load_unit(const std::uint16_t* column, std::size_t column_stride) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(column));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(column + column_stride));
  return _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
}

// All rows of a block: whole lines, which need not be read before they are written. `to` is aligned to them.
template <class T>
void stream_unit(const T* column, std::size_t column_stride, std::uint32_t* to) {
  for (int r = 0; r < kRowBlock; r += 8) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + r), load_unit(column + r, column_stride));
  }
}

void copy_unit(const float* column, std::size_t, int rows, std::uint32_t* to) {
  std::memcpy(to, column, static_cast<std::size_t>(rows) * 4);
}

void copy_unit(const std::uint16_t* column, std::size_t column_stride, int rows, std::uint32_t* to) {
  const std::uint16_t* next = column + column_stride;
  int r = 0;
  for (; r + 8 <= rows; r += 8) store256(to + r, load_unit(column + r, column_stride));
  for (; r < rows; ++r) to[r] = column[r] | static_cast<std::uint32_t>(next[r]) << 16;
}

// Columns [first, last), whole units; columns are contiguous (row_stride 1).
template <class T>
void pack_columns(const Piece& p, int first, int last) {
  constexpr int kPerUnit = 4 / sizeof(T);
  const T* source = reinterpret_cast<const T*>(p.source);
  const bool whole_lines = p.rows == kRowBlock && reinterpret_cast<std::uintptr_t>(p.block) % kLine == 0;
  for (int c = first; c < last; c += kPerUnit) {
    const T* column = source + c * p.column_stride;
    std::uint32_t* to = unit_at(p, (p.column + c) / kPerUnit);
    whole_lines ? stream_unit(column, p.column_stride, to) : copy_unit(column, p.column_stride, p.rows, to);
  }
}

template <class T>
void pack_piece(const Piece& p) {
  constexpr int kPerUnit = 4 / sizeof(T);
  const bool by_vectors = p.column_stride == 1 || p.row_stride == 1;
  const int first = by_vectors ? std::min(p.columns, (kPerUnit - p.column % kPerUnit) % kPerUnit) : p.columns;
  const int last = first + (p.columns - first) / kPerUnit * kPerUnit;
  pack_elements<T>(p, 0, first);
  if (first < last) p.column_stride == 1 ? pack_rows<T>(p, first, last) : pack_columns<T>(p, first, last);
  pack_elements<T>(p, last, p.columns);
}

// Columns go in groups so that the blocks of a panel share the source's lines and pages while these are at hand.
template <class T>
void pack_all(std::byte* packed, std::size_t block_bytes, int row, int rows, int column, int columns,
              const std::byte* source, std::size_t row_stride, std::size_t column_stride) {
  const int group = row_stride == 1 && column_stride != 1 ? 32 : columns;
  for (int c = 0; c < columns; c += group) {
    for (int r = row, end; r < row + rows; r = end) {
      end = std::min(round_up(r + 1, kRowBlock), row + rows);
      const std::size_t offset = (r - row) * row_stride + c * column_stride;
      pack_piece<T>({packed + r / kRowBlock * block_bytes, r % kRowBlock, end - r, column + c,
                     std::min(group, columns - c), source + offset * sizeof(T), row_stride, column_stride});
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
  const auto pack_as = type.values == DType::kF32 ? pack_all<float> : pack_all<std::uint16_t>;
  pack_as(packed, block_bytes, row, rows, column, columns, source, row_stride, column_stride);
  _mm_sfence();  // what was streamed comes before whatever tells other threads of it
}

}  // namespace computron::kernels
