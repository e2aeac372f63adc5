#include "computron/base/weight_type.h"

#include <fmt/format.h>

#include <cmath>

namespace computron {

bool usable_factor(double factor) {
  constexpr double kMostE4M3 = 448;
  return factor >= 0 && std::isfinite(static_cast<float>(kMostE4M3 * factor));
}

std::string name_of(const WeightType& type) {
  const std::string_view codes = name_of(type.codes);
  if (!type.quantised()) return std::string(codes);
  if (type.group == WeightType::kWholeRow) return fmt::format("{} by row", codes);
  return fmt::format("{} in groups of {}", codes, type.group);
}

}  // namespace computron
