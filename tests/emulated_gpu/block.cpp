#include "tests/emulated_gpu/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace computron::emulated_gpu {

constinit thread_local Place place;

namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;
constexpr std::size_t kColours = 61, kColourBytes = 512;  // stacks begin in different lines of the processor's caches

// Leaves the stack that is in use, whose top it tells, for the one whose top is `to`.
extern "C" void computron_switch_stack(void** from, void* to);
asm(R"(
.text
.p2align 4
computron_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
constexpr std::size_t kSavedRegisters = 6;

enum class State : unsigned char { kRuns, kInWarp, kInBlock, kOver };

struct Copy {
  void* to;
  const void* from;
};

struct Fiber {
  std::byte* stack = nullptr;
  void* top = nullptr;  // while it does not run
  uint3 index{};
  std::vector<Copy> copies;              // of the group that is open
  std::deque<std::vector<Copy>> groups;  // committed
};

// Values of two exchanges: a lane may be at the next one while another has not read this one's.
struct Warp {
  Slot slots[2][kLanes];
  int present = 0;
  int arrived = 0;
  int turn = 0;
};

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated GPU: block (%u, %u, %u): %s\n", place.blockIdx.x, place.blockIdx.y, place.blockIdx.z,
               what);
  std::abort();
}

void do_copies(const std::vector<Copy>& copies) {
  for (const auto& [to, from] : copies) {
    if (from == nullptr) {
      std::memset(to, 0, 16);
    } else {
      std::memcpy(to, from, 16);
    }
  }
}

class Fibers;
constinit thread_local Fibers* running = nullptr;  // while a grid runs on this thread

// The fibers of an operating system's thread, used for block after block. One that waits hands over to the next that
// does not.
class Fibers {
 public:
  ~Fibers() {
    for (const Fiber& fiber : fibers_) munmap(fiber.stack, kStackBytes);
  }

  void run_block(std::size_t count, std::size_t shared_bytes, const std::function<void()>& thread) {
    begin(count, shared_bytes, thread);
    step_ = random_() % 2 == 0 ? 1 : count - 1;
    current_ = random_() % count;
    place.threadIdx = fiber().index;
    computron_switch_stack(&caller_, fiber().top);
  }

  unsigned char* shared() { return shared_.data(); }
  int lane() const { return static_cast<int>(current_ % kLanes); }
  Fiber& fiber() { return fibers_[current_]; }

  int barrier(int all) {
    all_of_block_ = all_of_block_ && all != 0;
    if (++in_block_ == count_) {
      in_block_ = 0;
      decision_ = std::exchange(all_of_block_, true);
      std::fill(states_.begin(), states_.end(), State::kRuns);
    } else {
      state() = State::kInBlock;
    }
    hand_over();
    return decision_;
  }

  Slot& own_slot() {
    Warp& warp = warps_[current_ / kLanes];
    return warp.slots[warp.turn][lane()];
  }

  const Slot* exchange() {
    Warp& warp = warps_[current_ / kLanes];
    const int turn = warp.turn;
    if (++warp.arrived == warp.present) {
      warp.arrived = 0;
      warp.turn = 1 - turn;
      std::fill_n(states_.begin() + static_cast<std::ptrdiff_t>(current_ / kLanes * kLanes), warp.present,
                  State::kRuns);
    } else {
      state() = State::kInWarp;
      hand_over_in_warp(static_cast<std::size_t>(warp.present));
    }
    return warp.slots[turn];
  }

 private:
  void begin(std::size_t count, std::size_t shared_bytes, const std::function<void()>& thread) {
    while (fibers_.size() < count) add_fiber();
    thread_ = &thread;
    count_ = count;
    over_ = in_block_ = 0;
    all_of_block_ = true;
    shared_.assign(shared_bytes, 0xFF);
    states_.assign(count, State::kRuns);
    warps_.resize((count + kLanes - 1) / kLanes);
    for (Warp& warp : warps_) warp.present = warp.arrived = warp.turn = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto n = static_cast<unsigned>(i);
      fibers_[i].index = {n % place.blockDim.x, n / place.blockDim.x % place.blockDim.y,
                          n / (place.blockDim.x * place.blockDim.y)};
      ++warps_[i / kLanes].present;
    }
  }

  State& state() { return states_[current_]; }

  // To the next that can go on: this one, if no other can. Its caller goes on if all are over.
  void hand_over() {
    std::size_t next = current_;
    for (std::size_t i = 0; i < count_; ++i) {
      next = next + step_ >= count_ ? next + step_ - count_ : next + step_;
      if (states_[next] == State::kRuns) return switch_to(next);
    }
    if (over_ != count_) die("threads wait for others that are elsewhere, or gone (a barrier, shuffle or vote)");
    computron_switch_stack(&fiber().top, caller_);
  }
  // To the next of its warp, where one can go on: their stacks are in the processor's nearest cache.
  void hand_over_in_warp(std::size_t present) {
    const std::size_t first = current_ / kLanes * kLanes;
    std::size_t next = current_ - first;
    for (std::size_t i = 1; i < present; ++i) {
      next = step_ == 1 ? (next + 1 == present ? 0 : next + 1) : (next == 0 ? present - 1 : next - 1);
      if (states_[first + next] == State::kRuns) return switch_to(first + next);
    }
    hand_over();
  }
  void switch_to(std::size_t next) {
    if (next == current_) return;
    void** top = &fiber().top;
    current_ = next;
    place.threadIdx = fiber().index;
    computron_switch_stack(top, fiber().top);
  }

  // A fiber's life: one thread of a block, and then one of another.
  static void live() {
    for (;;) running->live_once();
  }
  void live_once() {
    (*thread_)();
    if (!fiber().copies.empty() || !fiber().groups.empty()) die("a thread ends while its copies are under way");
    state() = State::kOver;
    ++over_;
    hand_over();
  }

  // Its stack looks as if it had left live() at its beginning, where the address of a caller lies at a multiple of 16.
  void add_fiber() {
    void* stack =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) die("no memory for a fiber's stack");
    const std::size_t colour = fibers_.size() % kColours * kColourBytes;
    auto* end = reinterpret_cast<void**>(static_cast<std::byte*>(stack) + kStackBytes - colour);
    end[-2] = reinterpret_cast<void*>(&live);
    Fiber& fiber = fibers_.emplace_back();
    fiber.stack = static_cast<std::byte*>(stack);
    fiber.top = end - 2 - kSavedRegisters;
  }

  std::vector<Fiber> fibers_;
  std::vector<State> states_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> shared_;
  const std::function<void()>* thread_ = nullptr;
  std::size_t count_ = 0, over_ = 0, in_block_ = 0, current_ = 0;
  std::size_t step_ = 1;
  bool all_of_block_ = true, decision_ = true;
  void* caller_ = nullptr;
  std::minstd_rand random_{1};
};

}  // namespace

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& thread) {
  static thread_local Fibers fibers;
  running = &fibers;
  place.gridDim = grid;
  place.blockDim = block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        place.blockIdx = {x, y, z};
        fibers.run_block(std::size_t{block.x} * block.y * block.z, shared_bytes, thread);
      }
    }
  }
}

unsigned char* dynamic_shared() { return running->shared(); }
int barrier(int all) { return running->barrier(all); }
Slot& own_slot() { return running->own_slot(); }
const Slot* exchange_slots() { return running->exchange(); }
int lane() { return running->lane(); }

void copy_later(void* to, const void* from) { running->fiber().copies.push_back({to, from}); }

void commit_copies() {
  Fiber& fiber = running->fiber();
  fiber.groups.push_back(std::exchange(fiber.copies, {}));
}

void wait_for_copies(int open_groups) {
  Fiber& fiber = running->fiber();
  while (fiber.groups.size() > static_cast<std::size_t>(open_groups)) {
    do_copies(fiber.groups.front());
    fiber.groups.pop_front();
  }
}

}  // namespace computron::emulated_gpu
