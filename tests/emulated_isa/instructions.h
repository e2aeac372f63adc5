// Instructions of AVX-512 BF16, AVX-512 VBMI and AMX as functions, for processors with no more than AVX-512 F, BW, DQ
// and VL, and what cpuid says of a processor that has them. Kernels that need such instructions are compiled with these
// in their place (intrinsics.h, cpuid.h), so that every machine with AVX-512 tests them. What is an exception on a real
// processor, and what kernels here have no use for, ends the process with a line that says so.
//
// Formulas: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, by the name of each instruction.
// Those of bfloat16 round to nearest even, take subnormal numbers for zeros of their sign, and make such zeros where
// their result would be subnormal, whatever MXCSR says.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace computron::emulated_isa {

// VDPBF16PS: to each lane of sums the product of the upper halves of a and b, then that of the lower ones, each added
// as by a fused multiplication.
__m512 dot_products(__m512 sums, __m512i a, __m512i b);

// VCVTNE2PS2BF16: b below, a above. VCVTNEPS2BF16: x.
__m512i two_to_bf16(__m512 a, __m512 b);
__m256i to_bf16(__m512 x);

// VPERMB and VPERMI2B: byte i is byte index[i] of x, or of lower and upper in a row, the upper bits of index[i] left
// out.
__m512i permuted(__m512i index, __m512i x);
__m512i permuted(__m512i lower, __m512i index, __m512i upper);

// AMX: eight tiles a thread. `stride` bytes lie between the rows of a tile in memory.
void load_tile_configuration(const void* operand);  // LDTILECFG, its 64 bytes
void release_tiles();
void zero_tile(int tile);
void load_tile(int tile, const void* from, std::size_t stride);
void store_tile(int tile, void* to, std::size_t stride);
// TDPBF16PS: to row m and column n of sums row m of a · column n of b, whose rows are pairs of k. The products of even
// k are added up, those of odd k likewise, each as by a fused multiplication, and then the sum of the two is added.
void multiply_tiles(int sums, int a, int b);
// That of `rows` rows, each `kTileRowBytes` behind the one before: `columns` floats at `sums` (room for 16), `pairs`
// pairs at `x`, and as many rows at `w`.
constexpr int kTileRowBytes = 64;
void add_tile(std::byte* sums, int rows, int columns, const std::byte* x, const std::byte* w, int pairs);

// What the compiler, cpuid and Linux say of the emulated processor: all that is emulated, and of the rest what the real
// one has. The first ends the process with exit code 77, as a test that is skipped, where that has no AVX-512.
bool supports(const char* feature);
int cpuid(unsigned leaf, unsigned* a, unsigned* b, unsigned* c, unsigned* d);
long allow_tiles(long call, long request, long feature);

}  // namespace computron::emulated_isa
