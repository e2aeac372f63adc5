#include "computron/base/weight_type.h"

#include <fmt/format.h>

namespace computron {

std::string name_of(const WeightType& type) {
  const std::string_view codes = name_of(type.codes);
  if (!type.quantised()) return std::string(codes);
  if (type.group == WeightType::kWholeRow) return fmt::format("{} by row", codes);
  return fmt::format("{} in groups of {}", codes, type.group);
}

}  // namespace computron
