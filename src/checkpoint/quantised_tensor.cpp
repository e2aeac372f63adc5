#include "src/checkpoint/quantised_tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "computron/base/convert.h"

namespace computron {
namespace {

// Values that are widened at a time: small enough for the first cache.
constexpr std::size_t kTile = 2048;

// Calls body(first, count) for tiles of `n` values.
template <class Body>
void for_each_tile(std::size_t n, std::size_t tile, Body&& body) {
  for (std::size_t at = 0; at < n; at += tile) body(at, std::min(tile, n - at));
}

}  // namespace

QuantisedTensor::QuantisedTensor(const TensorDeclaration& codes, DType values)
    : name_(codes.name),
      codes_(codes.dtype),
      values_(values),
      lines_(codes.shape.front()),
      columns_(codes.shape.back()),
      transposed_(codes.transposed),
      unfinished_(lines_ * columns_) {
  const std::size_t in = transposed_ ? lines_ : columns_;
  group_ = std::min(static_cast<std::size_t>(codes.group), in);
  groups_ = ceil_div(in, group_);
  ensure(codes_ != DType::kInt4 || group_ <= kLongestInt4Group, "a group of int4 that is too long");
}

ElementRange QuantisedTensor::elements_of(std::size_t begin, std::size_t end) const {
  const std::size_t bits = bits_of(codes_);
  return {begin * 8 / bits, end * 8 / bits};
}

ElementRange QuantisedTensor::cover(const ElementRange& piece) const {
  const std::size_t lines = !transposed_ ? 1 : needs_peaks() ? 1 : group_;
  const std::size_t unit = lines * columns_;
  return {piece.begin / unit * unit, std::min(round_up(piece.end, unit), lines_ * columns_)};
}

void QuantisedTensor::allocate_scales() {
  const std::lock_guard lock(mutex_);
  if (scales_.empty()) scales_.resize(groups_ * (transposed_ ? columns_ : lines_));
}

// peaks[c] is raised to those of column c of some lines.
void QuantisedTensor::raise(std::span<const std::byte> lines, std::vector<Peak>& peaks) const {
  float tile[kTile];
  const std::size_t size = size_of(values_), line_bytes = columns_ * size;
  for (std::size_t at = 0; at < lines.size(); at += line_bytes) {
    for_each_tile(columns_, kTile, [&](std::size_t first, std::size_t count) {
      convert_elements(&lines[at + first * size], values_, reinterpret_cast<std::byte*>(tile), DType::kF32, count);
      raise_peaks({tile, count}, peaks.data() + first);
    });
  }
}

// A tile of columns at a time, each of which becomes a row.
void QuantisedTensor::find_int4_scales(std::span<const std::byte> lines, std::vector<std::uint16_t>& scales) const {
  const std::size_t size = size_of(values_), line_bytes = columns_ * size, count_of_lines = lines.size() / line_bytes;
  const std::size_t tile = std::max(kTile / count_of_lines, std::size_t{1});
  std::vector<float> line(tile), columns(tile * count_of_lines);
  for_each_tile(columns_, tile, [&](std::size_t first, std::size_t count) {
    for (std::size_t l = 0; l < count_of_lines; ++l) {
      convert_elements(&lines[l * line_bytes + first * size], values_, reinterpret_cast<std::byte*>(line.data()),
                       DType::kF32, count);
      for (std::size_t c = 0; c < count; ++c) columns[c * count_of_lines + l] = line[c];
    }
    for (std::size_t c = 0; c < count; ++c) {
      scales[first + c] = int4_scale_of({&columns[c * count_of_lines], count_of_lines});
    }
  });
}

void QuantisedTensor::encode_lines(std::span<const std::byte> lines, const std::uint16_t* scales,
                                   std::byte* out) const {
  float tile[kTile];
  const std::size_t size = size_of(values_), line_bytes = columns_ * size;
  for (std::size_t at = 0; at < lines.size(); at += line_bytes, out += bytes_of(codes_, columns_)) {
    for_each_tile(columns_, kTile, [&](std::size_t first, std::size_t count) {
      convert_elements(&lines[at + first * size], values_, reinterpret_cast<std::byte*>(tile), DType::kF32, count);
      encode({tile, count}, scales + first, codes_, out + bytes_of(codes_, first));
    });
  }
}

void QuantisedTensor::find_peaks(const ElementRange& covered, std::span<const std::byte> values) {
  std::vector<Peak> peaks(columns_);
  raise(values, peaks);
  check_finite(*std::ranges::max_element(peaks), covered, values);
  const std::lock_guard lock(mutex_);
  peaks_.resize(columns_);
  for (std::size_t c = 0; c < columns_; ++c) peaks_[c] = std::max(peaks_[c], peaks[c]);
}

std::span<const std::byte> QuantisedTensor::quantise(const ElementRange& piece, std::span<const std::byte> values,
                                                     std::vector<std::byte>& buffer) {
  allocate_scales();
  const ElementRange covered = cover(piece);
  const std::size_t bytes = bytes_of(codes_, covered.size());
  if (buffer.size() < bytes) {
    std::vector<std::byte>().swap(buffer);
    buffer.resize(bytes);
  }
  transposed_ ? quantise_columns(covered, piece, values, buffer.data())
              : quantise_rows(covered, piece, values, buffer.data());
  return std::span(buffer).subspan(bytes_of(codes_, piece.begin - covered.begin), bytes_of(codes_, piece.size()));
}

// Line by line, and a long one by tiles where it has several groups. Of the groups that two pieces touch, the one keeps
// the scales that has their first value.
void QuantisedTensor::quantise_rows(const ElementRange& covered, const ElementRange& piece,
                                    std::span<const std::byte> values, std::byte* out) {
  const std::size_t size = size_of(values_);
  const std::size_t tile = group_ == columns_ ? columns_ : std::max(kTile / group_, std::size_t{1}) * group_;
  std::vector<float> wide(std::min(tile, columns_));
  std::vector<std::uint16_t> scales(ceil_div(wide.size(), group_));
  for (std::size_t line = covered.begin; line < covered.end; line += columns_) {
    for_each_tile(columns_, tile, [&](std::size_t first, std::size_t count) {
      const std::size_t at = line - covered.begin + first;
      convert_elements(&values[at * size], values_, reinterpret_cast<std::byte*>(wide.data()), DType::kF32, count);
      const Peak peak = quantise_row({wide.data(), count}, group_, codes_, out + bytes_of(codes_, at), scales.data());
      check_finite(peak, covered, values);
      std::uint16_t* kept = &scales_[line / columns_ * groups_ + first / group_];
      for (std::size_t g = 0; g * group_ < count; ++g) {
        const std::size_t element = line + first + g * group_;
        if (element >= piece.begin && element < piece.end) kept[g] = scales[g];
      }
    });
  }
}

// A group of lines at a time; of the scales, those are kept whose first values are of the piece.
void QuantisedTensor::quantise_columns(const ElementRange& covered, const ElementRange& piece,
                                       std::span<const std::byte> values, std::byte* out) {
  const std::size_t size = size_of(values_);
  const std::size_t step = (needs_peaks() ? lines_ : group_) * columns_;
  std::vector<Peak> peaks(columns_);
  std::vector<std::uint16_t> scales(columns_);
  for (std::size_t at = covered.begin; at < covered.end; at += step) {
    const auto lines = values.subspan((at - covered.begin) * size, std::min(step, covered.end - at) * size);
    if (needs_peaks()) {
      peaks = peaks_;
    } else {
      std::ranges::fill(peaks, Peak{0});
      raise(lines, peaks);
    }
    check_finite(*std::ranges::max_element(peaks), covered, values);
    if (codes_ == DType::kInt4) {
      find_int4_scales(lines, scales);
    } else {
      std::ranges::transform(peaks, scales.begin(), [&](Peak peak) { return scale_of(peak, codes_); });
    }
    encode_lines(lines, scales.data(), out + bytes_of(codes_, at - covered.begin));
    const std::size_t group_begin = at / step * step;  // its first line
    const std::size_t first = std::clamp(piece.begin, group_begin, group_begin + columns_) - group_begin;
    const std::size_t last = std::clamp(piece.end, group_begin, group_begin + columns_) - group_begin;
    std::copy(scales.begin() + static_cast<std::ptrdiff_t>(first), scales.begin() + static_cast<std::ptrdiff_t>(last),
              scales_.begin() + static_cast<std::ptrdiff_t>(at / step * columns_ + first));
  }
}

bool QuantisedTensor::finish_piece(const ElementRange& piece) {
  return unfinished_.fetch_sub(piece.size(), std::memory_order_acq_rel) == piece.size();
}

void QuantisedTensor::check_finite(Peak peak, const ElementRange& covered, std::span<const std::byte> values) const {
  if (peak < kFirstPeakNotFinite) return;
  const std::size_t size = size_of(values_);
  for (std::size_t i = 0; i < covered.size(); ++i) {
    if (count_not_finite(&values[i * size], values_, 1) != 0) refuse(covered.begin + i);
  }
  ensure(false, "a peak that is not finite without such a value");
}

void QuantisedTensor::refuse(std::size_t element) const {
  const std::size_t line = element / columns_, column = element % columns_;
  throw ConfigError(fmt::format("{}: NaN or an infinity at output {}, input {}, which cannot be quantised", name_,
                                transposed_ ? column : line, transposed_ ? line : column));
}

}  // namespace computron
