#include "computron/model/adapter_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "computron/base/convert.h"
#include "computron/model/adapter.h"

namespace computron {
namespace {

// To odd: where the value lies between two floats, to the one whose last bit is set. With so many more bits than a
// half has, rounding that to nearest gives what rounding the value itself would (Boldo and Melquiond 2008).
float rounded_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(nearest)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

// Beyond the largest finite value that one.
double within_range(double value) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return std::clamp(value, -kLargest, kLargest);  // NaN stays NaN
}

}  // namespace

AdapterMerge::AdapterMerge(const CheckpointIndex& adapter, const TensorReader& adapter_reader)
    : adapter_(adapter), reader_(adapter_reader) {}

bool AdapterMerge::changes(const CheckpointIndex& adapter, const std::string& name) {
  return name.ends_with(".weight") && adapter.tensors.contains(LoraNames(name).a);
}

std::vector<float> AdapterMerge::read(const std::string& name) const {
  const TensorEntry& entry = adapter_.tensors.at(name);
  const std::size_t size = size_of(entry.dtype);
  std::vector<float> values(entry.bytes / size);
  reader_.read(entry, 0, entry.bytes, kDigestChunkBytes, [&](std::size_t at, std::span<const std::byte> piece) {
    convert_elements(piece.data(), entry.dtype, reinterpret_cast<std::byte*>(&values[at / size]), DType::kF32,
                     piece.size() / size);
  });
  return values;
}

void AdapterMerge::prepare(const TensorEntry& tensor) {
  if (prepared_ == tensor.name) return;
  prepared_.clear();  // until all is there
  const LoraNames names(tensor.name);
  rank_ = adapter_.tensors.at(names.b).shape.back();
  columns_ = tensor.shape.back();
  const float scale = read(names.scale).front();
  if (!std::isfinite(scale)) {
    throw ConfigError(fmt::format("{}: tensor '{}' is NaN or an infinity", adapter_.path, names.scale));
  }
  scale_ = scale;
  left_ = read(tensor.transposed ? names.a : names.b);
  right_ = read(tensor.transposed ? names.b : names.a);
  std::vector<float> turned(right_.size());  // [columns, rank] as [rank, columns]
  for (std::size_t column = 0; column < columns_; ++column) {
    for (std::size_t k = 0; k < rank_; ++k) turned[k * columns_ + column] = right_[column * rank_ + k];
  }
  right_ = std::move(turned);
  sums_.resize(columns_);
  line_.resize(columns_);
  prepared_ = tensor.name;
}

void AdapterMerge::add_to(const TensorEntry& tensor, std::size_t first, std::span<std::byte> values) {
  prepare(tensor);
  const std::size_t size = size_of(tensor.dtype), end = first + values.size() / size;
  for (std::size_t at = first; at < end;) {
    const std::size_t column = at % columns_, count = std::min(columns_ - column, end - at);
    add_to_line(tensor.dtype, at / columns_, column, values.subspan((at - first) * size, count * size));
    at += count;
  }
}

void AdapterMerge::add_to_line(DType dtype, std::size_t line, std::size_t column, std::span<std::byte> values) {
  const std::size_t size = size_of(dtype), count = values.size() / size;
  double* const sums = sums_.data();
  std::fill_n(sums, count, 0.0);
  for (std::size_t k = 0; k < rank_; ++k) {
    const double left = left_[line * rank_ + k];
    const float* const right = right_.data() + k * columns_ + column;
    for (std::size_t i = 0; i < count; ++i) sums[i] += left * static_cast<double>(right[i]);
  }
  auto* const line_bytes = reinterpret_cast<std::byte*>(line_.data());
  convert_elements(values.data(), dtype, line_bytes, DType::kF32, count);
  for (std::size_t i = 0; i < count; ++i) {
    const double merged = within_range(static_cast<double>(line_[i]) + scale_ * sums[i]);
    line_[i] = dtype == DType::kF32 ? static_cast<float>(merged) : rounded_to_odd(merged);
  }
  convert_elements(line_bytes, DType::kF32, values.data(), dtype, count);
}

}  // namespace computron
