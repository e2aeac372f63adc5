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

bool AdapterMerge::changes(const CheckpointIndex& adapter, const std::string& name) {
  return name.ends_with(".weight") && adapter.tensors.contains(LoraNames(name).a);
}

std::shared_ptr<const AdapterMatrices::OfTensor> AdapterMatrices::of(const TensorEntry& tensor) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<const OfTensor>& held = read_[tensor.name];
  std::shared_ptr<const OfTensor> matrices = held.lock();
  if (matrices == nullptr) held = matrices = std::make_shared<const OfTensor>(read(tensor));
  return matrices;
}

std::vector<float> AdapterMatrices::read(const std::string& name) const {
  const TensorEntry& entry = adapter_.tensors.at(name);
  const std::size_t size = size_of(entry.dtype);
  std::vector<float> values(entry.bytes / size);
  reader_.read(entry, 0, entry.bytes, kDigestChunkBytes, [&](std::size_t at, std::span<const std::byte> piece) {
    convert_elements(piece.data(), entry.dtype, reinterpret_cast<std::byte*>(&values[at / size]), DType::kF32,
                     piece.size() / size);
  });
  return values;
}

AdapterMatrices::OfTensor AdapterMatrices::read(const TensorEntry& tensor) const {
  const LoraNames names(tensor.name);
  const float scale = read(names.scale).front();
  if (!std::isfinite(scale)) {
    throw ConfigError(fmt::format("{}: tensor '{}' is NaN or an infinity", adapter_.path, names.scale));
  }
  OfTensor matrices{.rank = adapter_.tensors.at(names.b).shape.back(),
                    .columns = tensor.shape.back(),
                    .scale = scale,
                    .left = read(tensor.transposed ? names.a : names.b),
                    .right = {}};
  const std::vector<float> right = read(tensor.transposed ? names.b : names.a);  // [columns, rank]
  matrices.right.resize(right.size());
  for (std::size_t column = 0; column < matrices.columns; ++column) {
    for (std::size_t k = 0; k < matrices.rank; ++k) {
      matrices.right[k * matrices.columns + column] = right[column * matrices.rank + k];
    }
  }
  return matrices;
}

void AdapterMerge::add_to(const TensorEntry& tensor, std::size_t first, std::span<std::byte> values) {
  if (name_ != tensor.name) {
    name_.clear();
    of_tensor_.reset();  // before others are read
    of_tensor_ = matrices_.of(tensor);
    name_ = tensor.name;
  }
  const std::size_t columns = of_tensor_->columns;
  sums_.resize(columns);
  line_.resize(columns);
  const std::size_t size = size_of(tensor.dtype), end = first + values.size() / size;
  for (std::size_t at = first; at < end;) {
    const std::size_t column = at % columns, count = std::min(columns - column, end - at);
    add_to_line(tensor.dtype, at / columns, column, values.subspan((at - first) * size, count * size));
    at += count;
  }
}

void AdapterMerge::add_to_line(DType dtype, std::size_t line, std::size_t column, std::span<std::byte> values) {
  const std::size_t size = size_of(dtype), count = values.size() / size;
  const auto& [rank, columns, scale, left_lines, right_lines] = *of_tensor_;
  double* const sums = sums_.data();
  std::fill_n(sums, count, 0.0);
  for (std::size_t k = 0; k < rank; ++k) {
    const double left = left_lines[line * rank + k];
    const float* const right = right_lines.data() + k * columns + column;
    for (std::size_t i = 0; i < count; ++i) sums[i] += left * static_cast<double>(right[i]);
  }
  auto* const line_bytes = reinterpret_cast<std::byte*>(line_.data());
  convert_elements(values.data(), dtype, line_bytes, DType::kF32, count);
  for (std::size_t i = 0; i < count; ++i) {
    const double merged = within_range(static_cast<double>(line_[i]) + scale * sums[i]);
    line_[i] = dtype == DType::kF32 ? static_cast<float>(merged) : rounded_to_odd(merged);
  }
  convert_elements(line_bytes, DType::kF32, values.data(), dtype, count);
}

}  // namespace computron
