#include "computron/checkpoint/code_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "computron/base/convert.h"

namespace computron {
namespace {

// The old bytes are of no use and are given back first.
std::span<std::byte> room_in(std::vector<std::byte>& buffer, std::size_t bytes) {
  if (buffer.size() < bytes) {
    std::vector<std::byte>().swap(buffer);
    buffer.resize(bytes);
  }
  return std::span(buffer).first(bytes);
}

// Code number `which` of `columns` elements of `size` bytes, of a byte each.
void take_bytes(const std::byte* elements, std::size_t size, std::size_t columns, std::size_t which, std::byte* out) {
  for (std::size_t c = 0; c < columns; ++c) out[c] = elements[size * c + which];
}

// The same of codes of 4 bits, two to a byte.
void take_nibbles(const std::byte* elements, std::size_t size, std::size_t columns, std::size_t which, std::byte* out) {
  const auto shift = static_cast<int>(which % 2 * 4);
  const std::byte* at = elements + which / 2;
  for (std::size_t c = 0; c < columns; c += 2, at += 2 * size) {
    out[c / 2] = (at[0] >> shift & std::byte{0x0f}) | (at[size] >> shift & std::byte{0x0f}) << 4;
  }
}

std::string place(const std::string& path, const std::string& name) { return fmt::format("{}: '{}'", path, name); }

void check_codes(const CodeSource& source, std::span<const std::byte> codes) {
  if (source.codes != DType::kFp8 || count_not_finite(codes.data(), DType::kFp8, codes.size()) == 0) return;
  throw ConfigError(place(source.matrix.file->path(), source.name) + ": NaN among its fp8 codes");
}

void check_scales(const ScaleSource& source, std::span<const std::byte> scales) {
  const DType dtype = source.matrix.dtype;
  const std::size_t count = scales.size() / size_of(dtype);
  const std::string& path = source.matrix.file->path();
  if (count_not_finite(scales.data(), dtype, count) != 0) {
    throw ConfigError(place(path, source.name) + ": NaN or an infinity among its scales");
  }
  if (source.may_be_negative || count_negative(scales.data(), dtype, count) == 0) return;
  throw ConfigError(place(path, source.name) + ": negative scales, which only int4 may have");
}

}  // namespace

std::span<const std::byte> CodeReader::read(const CodeSource& source, std::size_t first, std::size_t last) {
  const std::span<std::byte> codes = source.spread ? read_spread(source, first, last) : read_along(source, first, last);
  if (source.flipped != std::byte{}) {
    for (std::byte& byte : codes) byte ^= source.flipped;
  }
  check_codes(source, codes);
  return codes;
}

// The codes of an element lie in it as they do in the checkpoint.
std::span<std::byte> CodeReader::read_along(const CodeSource& source, std::size_t first, std::size_t last) {
  const DType element = source.matrix.dtype;
  const auto read = matrix_.read(source.matrix, element, bytes_of(source.codes, first), bytes_of(source.codes, last));
  const std::span<std::byte> codes = room_in(out_, read.size());
  std::ranges::copy(read, codes.begin());
  return codes;
}

// A line of elements is as many lines of codes as an element has.
std::span<std::byte> CodeReader::read_spread(const CodeSource& source, std::size_t first, std::size_t last) {
  const std::size_t columns = source.matrix.columns, per_element = source.codes_per_element;
  const std::size_t size = size_of(source.matrix.dtype), line_bytes = bytes_of(source.codes, columns);
  const std::size_t first_line = first / columns, end_line = ceil_div(last, columns);
  const std::size_t first_row = first_line / per_element, end_row = ceil_div(end_line, per_element);
  const auto elements =
      matrix_.read(source.matrix, source.matrix.dtype, first_row * columns * size, end_row * columns * size);
  const std::span<std::byte> codes = room_in(out_, (end_line - first_line) * line_bytes);
  for (std::size_t line = first_line; line < end_line; ++line) {
    const std::byte* row = &elements[(line / per_element - first_row) * columns * size];
    std::byte* out = &codes[(line - first_line) * line_bytes];
    (two_in_a_byte(source.codes) ? take_nibbles : take_bytes)(row, size, columns, line % per_element, out);
  }
  return codes.subspan(bytes_of(source.codes, first - first_line * columns), bytes_of(source.codes, last - first));
}

std::span<const std::byte> CodeReader::read(const ScaleSource& source, std::size_t first, std::size_t last) {
  const DType dtype = source.matrix.dtype;
  const std::size_t size = size_of(dtype);
  if (source.rows_per_scale == 1) {
    const auto scales = matrix_.read(source.matrix, dtype, first * size, last * size);
    check_scales(source, scales);
    return scales;
  }
  const auto shared = matrix_.read(source.matrix, dtype, 0, source.matrix.elements() * size);
  check_scales(source, shared);
  const std::span<std::byte> scales = room_in(out_, (last - first) * size);
  for (std::size_t i = first; i < last; ++i) {
    const std::size_t row = source.transposed ? i % source.out : i / source.groups;
    const std::size_t group = source.transposed ? i / source.out : i % source.groups;
    const std::size_t from = row / source.rows_per_scale * source.groups + group;
    std::memcpy(&scales[(i - first) * size], &shared[from * size], size);
  }
  return scales;
}

}  // namespace computron
