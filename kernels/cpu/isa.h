// Which vector instructions the kernels use. Files that need more than the program's baseline (AVX2, FMA, F16C) are
// compiled with it on their own and hold nothing that other files could be linked with.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace computron::kernels {

// Each has those before it.
enum class Isa {
  kAvx2,
  kAvx512,      // F, BW, DQ and VL
  kAvx512Vnni,  // dot products of integers of 16 bits
  kAvx512Bf16,  // dot products of bfloat16
  kAmx,         // tiles of bfloat16, which Linux lets this process use
};

struct NamedIsa {
  Isa isa;
  std::string_view name;
};

// What a program for this architecture may use, the narrowest first: "avx2", "avx512", "avx512_vnni", "avx512_bf16",
// "amx"; for aarch64 "neon" alone, which is kAvx2's kernels with two registers of four lanes for one of eight
// (computron/base/vectors.h).
std::span<const NamedIsa> known_isas();
std::string_view name_of(Isa isa);

// What this processor has (isa_x86.cpp, isa_aarch64.cpp).
Isa processor_isa();
bool has_integer_pairs();     // one operation adds products of 16-bit integers in pairs: x86's AVX2
bool has_byte_permutes();     // AVX-512 VBMI
bool has_byte_compression();  // AVX-512 VBMI2

// Vendor and signature as cpuid has them: "AuthenticAMD-00a10f11"; MIDR of aarch64. The same for all processors of a
// model.
std::string cpu_model();

// What this processor has, but no more than the environment's COMPUTRON_MAX_ISA allows, one of the names above. Asked
// once. Throws Error (usage) where the variable says something else.
Isa usable_isa();

}  // namespace computron::kernels
