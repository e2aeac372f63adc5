#include <cpuid.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "kernels/cpu/isa.h"

namespace computron::kernels {
namespace {

// With permutations of bytes (VBMI), as all processors with AMX had until 2026; a virtual machine may hide them.
bool processor_has_amx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAmxBf16) && (d & kAmxTile) &&
         __builtin_cpu_supports("avx512vbmi");
}

// Linux hands out the tile state (XFEATURE 18) on request, once for all threads (Documentation/arch/x86/xstate.rst).
bool tiles_permitted() {
  constexpr int kArchReqXcompPerm = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

}  // namespace

std::span<const NamedIsa> known_isas() {
  static constexpr NamedIsa kKnown[] = {{Isa::kAvx2, "avx2"},
                                        {Isa::kAvx512, "avx512"},
                                        {Isa::kAvx512Vnni, "avx512_vnni"},
                                        {Isa::kAvx512Bf16, "avx512_bf16"},
                                        {Isa::kAmx, "amx"}};
  return kKnown;
}

Isa processor_isa() {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512vnni")) return Isa::kAvx512;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512Vnni;
  return processor_has_amx() && tiles_permitted() ? Isa::kAmx : Isa::kAvx512Bf16;
}

bool has_integer_pairs() { return true; }

bool has_byte_permutes() { return __builtin_cpu_supports("avx512vbmi"); }

bool has_byte_compression() { return __builtin_cpu_supports("avx512vbmi2"); }

std::string cpu_model() {
  unsigned a = 0, signature = 0, vendor[3] = {}, b, c, d;
  __get_cpuid(0, &a, &vendor[0], &vendor[2], &vendor[1]);
  __get_cpuid(1, &signature, &b, &c, &d);
  char name[sizeof vendor];
  std::memcpy(name, vendor, sizeof vendor);
  return fmt::format("{}-{:08x}", std::string_view(name, sizeof name), signature);
}

}  // namespace computron::kernels
