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
constinit thread_local Seat seat;

namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;
constexpr std::size_t kColours = 61, kColourBytes = 512;  // stacks begin in different lines of the processor's caches

struct Copy {
  void* to;
  const void* from;
};

struct Fiber {
  std::byte* stack = nullptr;
  std::vector<Copy> copies;              // of the group that is open
  std::deque<std::vector<Copy>> groups;  // committed
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
    const std::size_t first = random_() % (2 * count);
    Warp& warp = warps_[first / 2 / kLanes];
    const int lane = static_cast<int>(first / 2 % kLanes);
    seat = {&warp, lane, first % 2 == 0};
    place.threadIdx = warp.indices[lane];
    switch_stack(&caller_, warp.stacks[lane]);
  }

  unsigned char* shared() { return shared_.data(); }
  Fiber& fiber() { return fibers_[warp_number() * kLanes + static_cast<std::size_t>(seat.lane)]; }

  int barrier(int all) {
    all_of_block_ = all_of_block_ && all != 0;
    if (++in_block_ == count_) {
      in_block_ = 0;
      decision_ = std::exchange(all_of_block_, true);
      for (std::size_t i = 0; i < count_of_warps_; ++i) warps_[i].running = warps_[i].present;
    } else {
      stop();
    }
    hand_over();
    return decision_;
  }

  // Of the same warp where one can: their stacks are in the processor's nearest cache. The caller of all goes on if all
  // are over.
  void hand_over() {
    std::size_t at = warp_number();
    int lane = seat.lane;
    for (std::size_t i = 0; i < count_of_warps_; ++i) {
      Warp& warp = warps_[at];
      if (warp.running != 0) return switch_to(warp, next_of(warp.running, lane));
      at = seat.up ? (at + 1 == count_of_warps_ ? 0 : at + 1) : (at == 0 ? count_of_warps_ - 1 : at - 1);
      lane = seat.up ? kLanes - 1 : 0;
    }
    if (over_ != count_) die("threads wait for others that are elsewhere, or gone (a barrier, shuffle or vote)");
    switch_stack(&seat.warp->stacks[seat.lane], caller_);
  }

 private:
  void begin(std::size_t count, std::size_t shared_bytes, const std::function<void()>& thread) {
    while (fibers_.size() < count) add_fiber();
    thread_ = &thread;
    count_ = count;
    count_of_warps_ = (count + kLanes - 1) / kLanes;
    over_ = in_block_ = 0;
    all_of_block_ = true;
    shared_.assign(shared_bytes, 0xFF);
    for (std::size_t i = 0; i < count_of_warps_; ++i) begin_warp(warps_[i], i * kLanes);
  }
  void begin_warp(Warp& warp, std::size_t first) {
    const std::size_t lanes = std::min<std::size_t>(kLanes, count_ - first);
    warp.present = warp.running = lanes == kLanes ? ~0u : (1u << lanes) - 1;
    warp.arrived = 0;
    warp.turn = 0;
    for (std::size_t i = 0; i < lanes; ++i) {
      const auto n = static_cast<unsigned>(first + i);
      warp.indices[i] = {n % place.blockDim.x, n / place.blockDim.x % place.blockDim.y,
                         n / (place.blockDim.x * place.blockDim.y)};
    }
  }

  std::size_t warp_number() const { return static_cast<std::size_t>(seat.warp - warps_.data()); }
  void stop() { seat.warp->running &= ~(1u << seat.lane); }

  // A fiber's life: one thread of a block, and then one of another.
  static void live() {
    for (;;) running->live_once();
  }
  void live_once() {
    (*thread_)();
    if (!fiber().copies.empty() || !fiber().groups.empty()) die("a thread ends while its copies are under way");
    stop();
    ++over_;
    hand_over();
  }

  // Its stack looks as if it had left for another at live()'s beginning, where the address of a caller lies at a
  // multiple of 16.
  void add_fiber() {
    void* stack =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) die("no memory for a fiber's stack");
    const std::size_t number = fibers_.size(), colour = number % kColours * kColourBytes;
    auto* end = reinterpret_cast<void**>(static_cast<std::byte*>(stack) + kStackBytes - colour);
    end[-2] = reinterpret_cast<void*>(&live);
    fibers_.emplace_back().stack = static_cast<std::byte*>(stack);
    if (number % kLanes == 0) warps_.emplace_back();
    warps_.back().stacks[number % kLanes] = end - 2;
  }

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> shared_;
  const std::function<void()>* thread_ = nullptr;
  std::size_t count_ = 0, count_of_warps_ = 0, over_ = 0, in_block_ = 0;
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
void hand_over() { running->hand_over(); }

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
