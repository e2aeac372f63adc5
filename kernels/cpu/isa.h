// Which instructions the own kernels use: the program's baseline, or AVX-512 where the processor has it. Files that
// need AVX-512 are compiled with it on their own and hold nothing that other files could be linked with.
#pragma once

namespace computron::kernels {

enum class Isa { kAvx2, kAvx512 };

// Of this processor: kAvx512 needs its F, BW, DQ and VL parts.
inline Isa best_isa() {
  static const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return wide ? Isa::kAvx512 : Isa::kAvx2;
}

}  // namespace computron::kernels
