// Which vector instructions the kernels use. Files that need more than the program's baseline (AVX2, FMA, F16C) are
// compiled with it on their own and hold nothing that other files could be linked with.
#pragma once

#include <string>
#include <string_view>

namespace computron::kernels {

// Each has those before it.
enum class Isa {
  kAvx2,
  kAvx512,      // F, BW, DQ and VL
  kAvx512Bf16,  // dot products of bfloat16
  kAmx,         // tiles of bfloat16, which Linux lets this process use
};

// "avx2", "avx512", "avx512_bf16", "amx".
std::string_view name_of(Isa isa);

// Vendor and signature as cpuid has them: "AuthenticAMD-00a10f11". The same for all processors of a model.
std::string cpu_model();

// What this processor has, but no more than the environment's COMPUTRON_MAX_ISA allows, one of the names above. Asked
// once. Throws Error (usage) where the variable says something else.
Isa usable_isa();

}  // namespace computron::kernels
