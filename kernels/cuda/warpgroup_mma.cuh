// Products of warpgroups, of what lies in registers and in shared memory (PTX ISA, "wgmma.mma_async", "Register
// fragments for wgmma.mma_async.m64nNk16", "Matrix descriptor", "Swizzling modes"). Code for architecture 9.0a alone
// has them.
//
// They are under way until they are waited for: what they read and write is left alone until then.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/element.h"
#include "kernels/cuda/mma.cuh"

namespace computron::kernels::cuda {

inline constexpr int kWarpgroupColumns = 160;
using WarpgroupSums = float[kWarpgroupColumns / 8][4];

// Where piece `piece`, of 16 bytes, of row `row` lies in a matrix of rows of 64 two-byte elements that products read in
// shared memory, at a multiple of 1024 bytes.
COMPUTRON_HOST_DEVICE inline int swizzled_piece(int row, int piece) { return row * 8 + (piece ^ row % 8); }

// What this thread has written there is read by products that begin behind the next barrier.
__device__ inline void show_stores_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// In front of the first product, and of each that reads registers which have been written since.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// acc [64, kWarpgroupColumns] += a [64, 16] × b [kWarpgroupColumns, 16]ᵀ. Warp w of the group has rows 16 w, ..., of a
// and acc, its lanes as mma() has them, eight columns behind the other. b: elements 16 window, ... of the rows at
// `rows`.
#define COMPUTRON_WARPGROUP_PRODUCT(T, NAME)                                                                       \
  __device__ inline void multiply_async(T, WarpgroupSums& acc, unsigned a0, unsigned a1, unsigned a2, unsigned a3, \
                                        const void* rows, int window) {                                            \
    constexpr unsigned long long kEightRows = 1024 / 16, kSwizzle128 = 1;                                          \
    const unsigned at = (shared_address(rows) + window * 32) / 16;                                                 \
    const unsigned long long b = (at & 0x3FFF) | 1ull << 16 | kEightRows << 32 | kSwizzle128 << 62;                \
    asm volatile(                                                                                                  \
        "{\n"                                                                                                      \
        ".reg .pred adds;\n"                                                                                       \
        "setp.eq.u32 adds, 0, 0;\n"                                                                                \
        "wgmma.mma_async.sync.aligned.m64n160k16.f32." NAME "." NAME                                               \
        " {"                                                                                                       \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "               \
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "     \
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "     \
        "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"       \
        "}, {%80, %81, %82, %83}, %84, adds, 1, 1, 0;\n"                                                           \
        "}"                                                                                                        \
        : COMPUTRON_SUMS(0), COMPUTRON_SUMS(1), COMPUTRON_SUMS(2), COMPUTRON_SUMS(3), COMPUTRON_SUMS(4),           \
          COMPUTRON_SUMS(5), COMPUTRON_SUMS(6), COMPUTRON_SUMS(7), COMPUTRON_SUMS(8), COMPUTRON_SUMS(9),           \
          COMPUTRON_SUMS(10), COMPUTRON_SUMS(11), COMPUTRON_SUMS(12), COMPUTRON_SUMS(13), COMPUTRON_SUMS(14),      \
          COMPUTRON_SUMS(15), COMPUTRON_SUMS(16), COMPUTRON_SUMS(17), COMPUTRON_SUMS(18), COMPUTRON_SUMS(19)       \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));                                                             \
  }
#define COMPUTRON_SUMS(n) "+f"(acc[n][0]), "+f"(acc[n][1]), "+f"(acc[n][2]), "+f"(acc[n][3])
COMPUTRON_WARPGROUP_PRODUCT(BFloat16, "bf16")
COMPUTRON_WARPGROUP_PRODUCT(Float16, "f16")
#undef COMPUTRON_SUMS
#undef COMPUTRON_WARPGROUP_PRODUCT

__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Of the groups that this warp has committed, all but the last kOpen have ended.
template <int kOpen>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
}
// Behind the wait for the last of them: `acc` is read no earlier.
__device__ inline void keep_sums(WarpgroupSums& acc) {
#pragma unroll
  for (auto& of_columns : acc) {
#pragma unroll
    for (float& sum : of_columns) asm volatile("" : "+f"(sum)::"memory");
  }
}

// Whether this device has code of a kernel that was compiled for architecture 9.0a alone.
inline bool has_code_of(const void* kernel) {
  cudaFuncAttributes of{};
  if (cudaFuncGetAttributes(&of, kernel) == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

}  // namespace computron::kernels::cuda
