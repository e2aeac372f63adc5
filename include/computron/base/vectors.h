// Intrinsics of AVX2, FMA and F16C, in which what computes on CPUs is written. Where the processor has them (x86-64-v3,
// the program's baseline there), the compiler's own; on others those of SIMDe
// (https://github.com/simd-everywhere/simde), two NEON registers for one of AVX2 on aarch64: the same operation on each
// lane, so the order of sums stays.
#pragma once

#include <bit>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>

namespace computron {
using Half = _Float16;  // binary16

// Has the compiler compute `vector`, though nobody reads it.
template <class V>
__attribute__((always_inline)) inline void keep_result(const V& vector) {
  asm volatile("" : : "x"(vector));
}
}  // namespace computron
#else
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#define _MM_FROUND_NO_EXC SIMDE_MM_FROUND_NO_EXC

namespace computron {

using Half = __fp16;

template <class V>
void keep_result(const V& vector) {
  asm volatile("" : : "m"(vector));
}

// What SIMDe has no name for. As on x86: the number of trailing zeros, 64 of 0; without the lowest bit; a binary16.
inline std::uint64_t _tzcnt_u64(std::uint64_t bits) { return static_cast<std::uint64_t>(std::countr_zero(bits)); }
inline std::uint64_t _blsr_u64(std::uint64_t bits) { return bits & (bits - 1); }
inline float _cvtsh_ss(std::uint16_t bits) { return static_cast<float>(std::bit_cast<Half>(bits)); }

}  // namespace computron
#endif
