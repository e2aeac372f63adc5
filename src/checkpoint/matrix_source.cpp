#include "computron/checkpoint/matrix_source.h"

#include <algorithm>
#include <cstring>

#include "computron/base/convert.h"
#include "src/checkpoint/transpose.h"

namespace computron {
namespace {

// Elements that are converted at a time: small enough for a core's own cache.
constexpr std::size_t kRawElements = 32 << 10;
// A panel that is transposed at a time, of 256 KiB of halves: long enough to be read by pieces of 4 KiB and more.
constexpr std::size_t kPanelLines = 64;
constexpr std::size_t kPanelElements = 2048;  // of a line
// Lines that lie no further apart are read together with what is between them, where several fit a panel.
constexpr std::size_t kMostApart = 4;  // times their length

// The old bytes are of no use and are given back first.
void ensure_size(std::vector<std::byte>& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return;
  std::vector<std::byte>().swap(buffer);
  buffer.resize(bytes);
}

}  // namespace

std::span<const std::byte> MatrixReader::read(const MatrixSource& source, DType dtype, std::size_t begin,
                                              std::size_t end) {
  const std::size_t size = size_of(dtype);
  ensure(begin % size == 0 && end % size == 0 && begin <= end && end <= source.elements() * size,
         "a piece of a matrix outside of it");
  const std::size_t first = begin / size, last = end / size;
  if (first == last) return {};
  if (!source.transposed) {
    const bool together = source.stride != source.columns && source.stride <= kMostApart * source.columns &&
                          source.stride <= kPanelLines * kPanelElements / 2;
    together ? read_with_gaps(source, dtype, first, last) : read_lines(source, dtype, first, last);
    return std::span(out_).first(end - begin);
  }
  const std::size_t first_row = first / source.columns;
  read_transposed(source, dtype, first_row, ceil_div(last, source.columns));
  return std::span(out_).subspan((first - first_row * source.columns) * size, end - begin);
}

// Elements [first, last), line by line, or all at once where lines follow each other.
void MatrixReader::read_lines(const MatrixSource& source, DType dtype, std::size_t first, std::size_t last) {
  const std::size_t size = size_of(dtype);
  const std::size_t line = source.stride == source.columns ? source.elements() : source.columns;
  ensure_size(out_, (last - first) * size);
  for (std::size_t at = first; at < last;) {
    const std::size_t count = std::min(last, (at / line + 1) * line) - at;
    const std::size_t from = source.first + at / line * source.stride + at % line;
    read_elements(source, dtype, from, count, out_.data() + (at - first) * size);
    at += count;
  }
}

void MatrixReader::read_with_gaps(const MatrixSource& source, DType dtype, std::size_t first, std::size_t last) {
  const std::size_t size = size_of(dtype), columns = source.columns, end_line = ceil_div(last, columns);
  const std::size_t at_once = kPanelLines * kPanelElements / source.stride;
  ensure_size(out_, (last - first) * size);
  ensure_size(panel_, kPanelLines * kPanelElements * size);
  for (std::size_t line = first / columns; line < end_line; line += at_once) {
    const std::size_t lines = std::min(at_once, end_line - line);
    read_elements(source, dtype, source.first + line * source.stride, (lines - 1) * source.stride + columns,
                  panel_.data());
    for (std::size_t i = 0; i < lines; ++i) {
      const std::size_t begin = (line + i) * columns, from = std::max(first, begin),
                        to = std::min(last, begin + columns);
      std::memcpy(&out_[(from - first) * size], &panel_[(i * source.stride + from - begin) * size], (to - from) * size);
    }
  }
}

void MatrixReader::read_transposed(const MatrixSource& source, DType dtype, std::size_t first_row,
                                   std::size_t last_row) {
  const std::size_t size = size_of(dtype);
  ensure_size(out_, (last_row - first_row) * source.columns * size);
  ensure_size(panel_, kPanelLines * kPanelElements * size);
  for (std::size_t row = first_row; row < last_row; row += kPanelElements) {
    const std::size_t rows = std::min(kPanelElements, last_row - row);
    for (std::size_t column = 0; column < source.columns; column += kPanelLines) {
      const std::size_t lines = std::min(kPanelLines, source.columns - column);
      for (std::size_t i = 0; i < lines; ++i) {
        const std::size_t from = source.first + (column + i) * source.stride + row * source.step;
        read_apart(source, dtype, from, rows, panel_.data() + i * rows * size);
      }
      std::byte* out = out_.data() + ((row - first_row) * source.columns + column) * size;
      transpose(panel_.data(), rows, lines, rows, out, source.columns, size);
    }
  }
}

// Elements first, first + step, ...
void MatrixReader::read_apart(const MatrixSource& source, DType dtype, std::size_t first, std::size_t count,
                              std::byte* out) {
  if (source.step == 1) return read_elements(source, dtype, first, count, out);
  const std::size_t size = size_of(dtype), all = (count - 1) * source.step + 1;
  ensure_size(apart_, all * size);
  read_elements(source, dtype, first, all, apart_.data());
  for (std::size_t i = 0; i < count; ++i) std::memcpy(out + i * size, &apart_[i * source.step * size], size);
}

void MatrixReader::read_elements(const MatrixSource& source, DType dtype, std::size_t first, std::size_t count,
                                 std::byte* out) {
  const std::size_t stored = size_of(source.dtype);
  const std::size_t begin = source.entry->begin + first * stored;
  if (dtype == source.dtype) return source.file->read(*source.entry, begin, {out, count * stored});
  ensure_size(raw_, kRawElements * stored);
  for (std::size_t done = 0; done < count; done += kRawElements) {
    const std::size_t some = std::min(kRawElements, count - done);
    source.file->read(*source.entry, begin + done * stored, std::span(raw_).first(some * stored));
    convert_elements(raw_.data(), source.dtype, out + done * size_of(dtype), dtype, some);
  }
}

}  // namespace computron
