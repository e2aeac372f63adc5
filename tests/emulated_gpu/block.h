// A grid's threads as fibers: blocks one after another, on the calling thread; within a block each fiber runs until it
// waits for others, and those that can go on do so in a changing order. What needs a barrier that is not there shows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <functional>

namespace computron::emulated_gpu {

inline constexpr int kLanes = 32;

// What the language calls by these names, of the fiber that runs.
struct Place {
  uint3 threadIdx{}, blockIdx{};
  dim3 blockDim, gridDim;
};
extern constinit thread_local Place place;

// Calls `thread` once for each thread of each block. Aborts with a line on stderr where threads wait for each other for
// ever, or leave copies under way.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& thread);

// ---- for the fiber that runs

unsigned char* dynamic_shared();  // `shared_bytes`, filled with 0xFF at a block's beginning
// __syncthreads_and.
int barrier(int all = 1);

inline constexpr std::size_t kMostExchanged = 32;
struct Slot {
  alignas(16) std::byte bytes[kMostExchanged];

  template <class T>
  T as() const {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
};

// Where this lane writes what it gives; then what each lane of the warp gave: kLanes slots, there until this lane's
// exchange after the next.
Slot& own_slot();
const Slot* exchange_slots();
// Written once and never copied: a processor waits for a load that is wider than the stores before it.
template <class T>
const Slot* exchange(const T& mine) {
  static_assert(sizeof(T) <= kMostExchanged);
  std::memcpy(own_slot().bytes, &mine, sizeof mine);
  return exchange_slots();
}
int lane();

// cp.async of 16 bytes: happens when it is waited for, no earlier. Null: zeros.
void copy_later(void* to, const void* from);
void commit_copies();
void wait_for_copies(int open_groups);

}  // namespace computron::emulated_gpu
