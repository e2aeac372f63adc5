#include "src/checkpoint/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace computron::format {
namespace {

bool is_name_character(unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; }

}  // namespace

std::optional<std::string> fault_of_name(std::string_view name) {
  if (name.empty()) return "empty name";
  if (name.size() > kMaxNameBytes) return fmt::format("name of {} bytes (limit {})", name.size(), kMaxNameBytes);
  if (name == "." || name == "..") return "reserved name";
  for (const unsigned char c : name) {
    if (!is_name_character(c)) return fmt::format("character 0x{:02x} in a name", c);
  }
  return std::nullopt;
}

std::size_t tensor_bytes(const std::vector<std::size_t>& shape, DType dtype, const Subject& subject) {
  if (shape.empty() || shape.size() > kMaxRank) {
    subject.fail(fmt::format("{} dimensions (1 to {} are allowed)", shape.size(), kMaxRank));
  }
  std::size_t elements = 1, bytes = 0;
  for (const std::size_t extent : shape) {
    if (extent == 0) subject.fail("a dimension is zero");
    if (__builtin_mul_overflow(elements, extent, &elements)) subject.fail("size overflows");
  }
  if (__builtin_mul_overflow(elements, std::max(size_of(dtype), std::size_t{1}), &bytes))
    subject.fail("size overflows");
  if (two_in_a_byte(dtype) && shape.back() % 2 != 0) {
    subject.fail(fmt::format("a last dimension of {}, but {} lie two in a byte", shape.back(), name_of(dtype)));
  }
  return two_in_a_byte(dtype) ? elements / 2 : bytes;
}

void check_group(const TensorEntry& tensor, const Subject& subject) {
  if (!is_code(tensor.dtype)) {
    if (tensor.group != 0) subject.fail(fmt::format("{} in groups of {}", name_of(tensor.dtype), tensor.group));
    return;
  }
  if (tensor.shape.size() != 2) {
    subject.fail(fmt::format("codes of {} dimensions, only matrices are quantised", tensor.shape.size()));
  }
  if (tensor.group == WeightType::kWholeRow) return;
  const bool allowed = tensor.group >= WeightType::kSmallestGroup && tensor.group % WeightType::kSmallestGroup == 0;
  const std::size_t in = tensor.transposed ? tensor.shape.front() : tensor.shape.back();
  if (allowed && static_cast<std::size_t>(tensor.group) <= in) return;
  subject.fail(fmt::format("groups of {} of {} values, multiples of {} and whole rows are allowed", tensor.group, in,
                           WeightType::kSmallestGroup));
}

void check_factor(const TensorEntry& tensor, const Subject& subject) {
  if (tensor.dtype != DType::kE4M3 && tensor.factor != 1) {
    subject.fail(fmt::format("{} with a factor of {}", name_of(tensor.dtype), tensor.factor));
  }
  if (!usable_factor(tensor.factor)) {
    subject.fail(fmt::format("a factor of {}, with which scales are negative or not finite", tensor.factor));
  }
}

}  // namespace computron::format
