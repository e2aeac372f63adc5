// Products of small matrices on tensor cores, and the copies that feed them (PTX ISA, "Matrix fragments for
// mma.m16n8k16", "ldmatrix", "cp.async").
#pragma once

#include "kernels/cuda/element.h"

namespace computron::kernels::cuda {

// acc [16, 8] += a [16, 16] × b [16, 8]. Lane 4 g + t holds of a: (g, 2t..), (g + 8, 2t..), (g, 2t + 8..),
// (g + 8, 2t + 8..), two neighbours in a register; of b: (2t.., g), (2t + 8.., g); of acc: (g, 2t), (g, 2t + 1),
// (g + 8, 2t), (g + 8, 2t + 1).
__device__ inline void mma(BFloat16, float (&acc)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                           unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void mma(Float16, float (&acc)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                           unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// `low` in the lower half: the element of the smaller index.
template <class T>
__device__ unsigned pack(float low, float high) {
  T a, b;
  narrow(low, a);
  narrow(high, b);
  return static_cast<unsigned>(a.bits) | static_cast<unsigned>(b.bits) << 16;
}

// The same of numbers that float16 holds, in one instruction.
__device__ inline unsigned pack_weights(BFloat16, float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline unsigned pack_weights(Float16, float low, float high) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// 2^x, zero where that is smaller than any normal number; in one instruction.
__device__ inline float exp2_or_zero(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// `p` itself, an address in global memory, which the compiler does not take apart to add things up anew wherever it is
// used.
__device__ inline const std::byte* in_registers(const std::byte* p) {
  asm("" : "+l"(p));
  __builtin_assume(__isGlobal(p));
  return p;
}

// What will be read soon: 128 bytes into the second cache.
__device__ inline void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// 16, 8, 4 or 2 bytes that are read once, past the first cache; zeros if not `exists`, without a branch. Not by
// ld.global.nc: such a load ptxas may move behind the wait for the kernel before (overlap.cuh), and then nothing is
// under way meanwhile.
__device__ inline void load_once(const void* from, bool exists, uint4& out) {
  asm volatile(
      "{\n"
      ".reg .pred exists;\n"
      "setp.ne.s32 exists, %5, 0;\n"
      "mov.u32 %0, 0;\n"
      "mov.u32 %1, 0;\n"
      "mov.u32 %2, 0;\n"
      "mov.u32 %3, 0;\n"
      "@exists ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];\n"
      "}"
      : "=&r"(out.x), "=&r"(out.y), "=&r"(out.z), "=&r"(out.w)
      : "l"(from), "r"(exists ? 1 : 0));
}
__device__ inline void load_once(const void* from, bool exists, unsigned long long& out) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; mov.b64 %0, 0; @p ld.global.L1::no_allocate.b64 %0, [%1];}"
               : "=&l"(out)
               : "l"(from), "r"(exists ? 1 : 0));
}
__device__ inline void load_once(const void* from, bool exists, unsigned& out) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; mov.b32 %0, 0; @p ld.global.L1::no_allocate.b32 %0, [%1];}"
               : "=&r"(out)
               : "l"(from), "r"(exists ? 1 : 0));
}
__device__ inline void load_once(const void* from, bool exists, unsigned short& out) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; mov.b16 %0, 0; @p ld.global.L1::no_allocate.b16 %0, [%1];}"
               : "=&h"(out)
               : "l"(from), "r"(exists ? 1 : 0));
}
// Shared memory of the size that the launch says.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}
__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Four 8 × 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. Lane 4 g + t gets of each (g, 2t..), or
// transposed (2t.., g).
__device__ inline void load_matrices(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_matrices_transposed(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 bytes from global into shared memory beside the computation; zeros if not `exists`.
__device__ inline void copy_async(void* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Of the groups that this thread has committed, all but the last kOpen have arrived.
template <int kOpen>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

}  // namespace computron::kernels::cuda
