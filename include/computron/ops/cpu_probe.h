// What programs ask of the CPU's kernels beside the operations: which instructions they use here, and how fast memory
// is read.
#pragma once

#include <cstddef>
#include <string>

#include "computron/base/weight_type.h"

namespace computron {

// The widest vector instructions that the kernels use on this processor: "avx2", "avx512", "avx512_vnni", "avx512_bf16"
// or "amx"; "neon" on aarch64. The environment's COMPUTRON_MAX_ISA, one of these names, holds them to narrower ones;
// throws Error (usage) where it says something else.
std::string instruction_set();

// How weights that are stored as `type` are multiplied with these instructions, as far as results depend on it:
// "bfloat16", "bfloat16 in tiles" (AMX), and "float32" or "integers" "by 256 bits" or "by 512 bits": whole models have
// been seen to differ between AVX2 and AVX-512.
std::string arithmetic_of(WeightType type);

// Loads every byte of [data, data + bytes) once, in order, and does nothing with it: the yardstick of everything that
// memory bounds. `data` is aligned to 32, `bytes` a multiple of 256.
void read_memory(const std::byte* data, std::size_t bytes);

}  // namespace computron
