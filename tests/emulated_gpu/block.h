// A grid's threads as fibers: blocks one after another, on the calling thread; within a block each fiber runs until it
// waits for others, and those that can go on do so in a changing order. What needs a barrier that is not there shows.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstddef>
#include <cstdint>
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

inline constexpr std::size_t kMostExchanged = 48;
struct Slot {
  alignas(16) std::byte bytes[kMostExchanged];

  template <class T>
  T as() const {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
};

// A warp of the block that runs. Values of two exchanges: a lane may be at the next one while another has not read this
// one's.
struct Warp {
  Slot slots[2][kLanes];
  void* stacks[kLanes];       // their tops, of fibers that do not run
  uint3 indices[kLanes];      // threadIdx
  std::uint32_t present = 0;  // a bit a lane
  std::uint32_t running = 0;  // those that wait for nobody and are not over
  std::uint32_t arrived = 0;  // at the exchange
  int turn = 0;
};
// Which fiber runs, and whether the one after it is the next of higher number or of lower.
struct Seat {
  Warp* warp = nullptr;
  int lane = 0;
  bool up = true;
};
extern constinit thread_local Seat seat;
inline int lane() { return seat.lane; }

#ifdef __AVX512F__
#error "switch_stack() does not say that it loses the registers of AVX-512"
#endif
// Leaves the stack that is in use, whose top it tells, for the one whose top is `to`.
__attribute__((always_inline)) inline void switch_stack(void** from, void* to) {
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n"  // what the ABI lets a function keep below its stack
      "pushq %%rbp\n"
      "leaq 1f(%%rip), %%rax\n"
      "pushq %%rax\n"
      "movq %%rsp, (%0)\n"
      "movq %1, %%rsp\n"
      "popq %%rax\n"
      "jmpq *%%rax\n"
      "1:\n"
      "popq %%rbp\n"
      "leaq 128(%%rsp), %%rsp\n"
      : "+D"(from), "+S"(to)
      :
      : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2",
        "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
        "memory", "cc");
}

// To lane `lane` of `warp`, if that is another.
__attribute__((always_inline)) inline void switch_to(Warp& warp, int lane) {
  if (&warp == seat.warp && lane == seat.lane) return;
  void** const from = &seat.warp->stacks[seat.lane];
  seat.warp = &warp;
  seat.lane = lane;
  place.threadIdx = warp.indices[lane];
  switch_stack(from, warp.stacks[lane]);
}
// The next of `lanes`, which are not none, after `lane`.
inline int next_of(std::uint32_t lanes, int lane) {
  return seat.up ? (lane + 1 + std::countr_zero(std::rotr(lanes, lane + 1))) % kLanes
                 : (lane + kLanes - 1 - std::countl_zero(std::rotl(lanes, kLanes - lane))) % kLanes;
}
// To one that can go on.
void hand_over();

// What each lane of the warp gives: kLanes slots, there until this lane's exchange after the next. A value is written
// once and never copied: a processor waits for a load that is wider than the stores before it.
template <class T>
const Slot* exchange(const T& mine) {
  static_assert(sizeof(T) <= kMostExchanged);
  Warp& warp = *seat.warp;
  const Slot* slots = warp.slots[warp.turn];
  std::memcpy(warp.slots[warp.turn][seat.lane].bytes, &mine, sizeof mine);
  warp.arrived |= 1u << seat.lane;
  if (warp.arrived == warp.present) {
    warp.arrived = 0;
    warp.running = warp.present;
    warp.turn = 1 - warp.turn;
  } else {
    warp.running &= ~(1u << seat.lane);
    warp.running != 0 ? switch_to(warp, next_of(warp.running, seat.lane)) : hand_over();
  }
  return slots;
}

// cp.async of 16 bytes: happens when it is waited for, no earlier. Null: zeros.
void copy_later(void* to, const void* from);
void commit_copies();
void wait_for_copies(int open_groups);

}  // namespace computron::emulated_gpu
