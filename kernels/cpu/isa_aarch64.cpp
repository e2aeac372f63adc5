#include <fmt/format.h>

#include <fstream>
#include <string>

#include "kernels/cpu/isa.h"

namespace computron::kernels {

std::span<const NamedIsa> known_isas() {
  static constexpr NamedIsa kKnown[] = {{Isa::kAvx2, "neon"}};
  return kKnown;
}

Isa processor_isa() { return Isa::kAvx2; }

// NEON takes three, and gains by float32.
bool has_integer_pairs() { return false; }

bool has_byte_permutes() { return false; }

bool has_byte_compression() { return false; }

// Linux shows MIDR_EL1, which names maker, variant, part and revision, where it has sysfs.
std::string cpu_model() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1");
  std::string midr;
  return file >> midr ? fmt::format("aarch64-{}", midr) : "aarch64";
}

}  // namespace computron::kernels
