#include "kernels/cpu/isa.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>

#include "computron/base/error.h"

namespace computron::kernels {
namespace {

Isa allowed_isa() {
  const char* const variable = std::getenv("COMPUTRON_MAX_ISA");
  if (variable == nullptr || *variable == '\0') return Isa::kAmx;
  std::string names;
  for (const NamedIsa& known : known_isas()) {
    if (known.name == variable) return known.isa;
    fmt::format_to(std::back_inserter(names), "{}{}", names.empty() ? "" : ", ", known.name);
  }
  throw Error(ExitCode::kUsage, fmt::format("COMPUTRON_MAX_ISA is '{}': it must be one of {}", variable, names));
}

}  // namespace

std::string_view name_of(Isa isa) {
  const auto known = known_isas();
  const auto found = std::ranges::find(known, isa, &NamedIsa::isa);
  return found == known.end() ? "unknown" : found->name;
}

Isa usable_isa() {
  static const Isa usable = std::min(processor_isa(), allowed_isa());
  return usable;
}

}  // namespace computron::kernels
