#include "kernels/cuda/attention.h"
#include "kernels/cuda/overlap.cuh"

namespace computron::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxGridRows = 65535;
constexpr int kManyRows = 256;    // from which on a thread takes several heads of its row
constexpr int kHeadsAThread = 4;  // then

// Grid: heads, rows. Block: pieces of a head, heads. Where a row goes is found once a thread.
template <class T, int kPiece>
__global__ void __launch_bounds__(kThreads)
    store_kernel(int rows, const __grid_constant__ StoreKeysValues<T, kPiece> body) {
  begin_overlapped();
  const int step = static_cast<int>(gridDim.x * blockDim.y), piece = static_cast<int>(threadIdx.x);
  for (int r = static_cast<int>(blockIdx.y); r < rows; r += static_cast<int>(gridDim.y)) {
    T* const place = body.place(r);
    if (place == nullptr) continue;
#pragma unroll 4
    for (int head = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y); head < 2 * body.cache.kv_heads;
         head += step) {
      body(r, place, head, piece);
    }
  }
}

template <class T, int kPiece>
void launch(CUstream_st* stream, const AttentionCall& call, int rows) {
  const int pieces = call.shape.head_dim / kPiece, heads = kThreads / pieces;
  const dim3 block(static_cast<unsigned>(pieces), static_cast<unsigned>(heads));
  const int heads_a_block = heads * (rows < kManyRows ? 1 : kHeadsAThread);
  const dim3 grid(static_cast<unsigned>(ceil_div(2 * call.shape.kv_heads, heads_a_block)),
                  static_cast<unsigned>(rows < kMaxGridRows ? rows : kMaxGridRows));
  launch_overlapped(grid, block, 0, stream, store_kernel<T, kPiece>, rows, StoreKeysValues<T, kPiece>::of(call));
}

}  // namespace

void store_keys_values(CUstream_st* stream, const AttentionCall& call, int rows) {
  if (rows == 0) return;
  with_element(call.cache_dtype, [&]<class T>(T) {
    const bool aligned = is_aligned(call.cache, sizeof(T)) && reinterpret_cast<std::uintptr_t>(call.qkv) % 16 == 0;
    aligned ? launch<T, 16 / sizeof(T)>(stream, call, rows) : launch<T, 1>(stream, call, rows);
  });
}

}  // namespace computron::kernels::cuda
