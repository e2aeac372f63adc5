#include "tests/emulated_gpu/block.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace computron::emulated_gpu {

thread_local Place place;

namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;

enum class State { kRuns, kInWarp, kInBlock, kOver };

struct Copy {
  void* to;
  const void* from;
};

struct Fiber {
  State state = State::kOver;
  uint3 index{};
  jmp_buf self;
  bool begun = false;
  ucontext_t context;
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

// The fibers of an operating system's thread, used for block after block.
class Fibers {
 public:
  void run_block(std::size_t count, std::size_t shared_bytes, const std::function<void()>& thread) {
    begin(count, shared_bytes, thread);
    while (over_ < count) {
      if (!run_each_once(count)) die("threads wait for others that are elsewhere, or gone (a barrier, shuffle or vote)");
    }
  }

  unsigned char* shared() { return shared_.data(); }
  int lane() const { return static_cast<int>(current_ % kLanes); }

  int barrier(int all) {
    all_of_block_ = all_of_block_ && all != 0;
    if (++in_block_ == count_) {
      in_block_ = 0;
      decision_ = all_of_block_;
      all_of_block_ = true;
      release(0, count_);
    } else {
      fiber().state = State::kInBlock;
    }
    leave();
    return decision_;
  }

  const Slot* exchange(const Slot& mine) {
    Warp& warp = warps_[current_ / kLanes];
    const int turn = warp.turn;
    warp.slots[turn][lane()] = mine;
    if (++warp.arrived == warp.present) {
      warp.arrived = 0;
      warp.turn = 1 - turn;
      release(current_ / kLanes * kLanes, static_cast<std::size_t>(warp.present));
    } else {
      fiber().state = State::kInWarp;
    }
    leave();
    return warp.slots[turn];
  }

  Fiber& fiber() { return *fibers_[current_]; }

 private:
  void begin(std::size_t count, std::size_t shared_bytes, const std::function<void()>& thread) {
    while (fibers_.size() < count) add_fiber();
    thread_ = &thread;
    count_ = count;
    over_ = in_block_ = 0;
    all_of_block_ = true;
    shared_.assign(shared_bytes, 0xFF);
    warps_.assign((count + kLanes - 1) / kLanes, {});
    for (std::size_t i = 0; i < count; ++i) {
      const auto n = static_cast<unsigned>(i);
      fibers_[i]->index = {n % place.blockDim.x, n / place.blockDim.x % place.blockDim.y,
                           n / (place.blockDim.x * place.blockDim.y)};
      fibers_[i]->state = State::kRuns;
      ++warps_[i / kLanes].present;
    }
  }

  bool run_each_once(std::size_t count) {
    bool moved = false;
    const std::size_t start = random_() % count, step = random_() % 2 == 0 ? 1 : count - 1;
    for (std::size_t i = 0, at = start; i < count; ++i, at = (at + step) % count) {
      if (fibers_[at]->state != State::kRuns) continue;
      moved = true;
      resume(at);
    }
    return moved;
  }

  void release(std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) fibers_[i]->state = State::kRuns;
  }

  void resume(std::size_t i) {
    current_ = i;
    place.threadIdx = fibers_[i]->index;
    if (_setjmp(scheduler_) != 0) return;
    if (fibers_[i]->begun) _longjmp(fibers_[i]->self, 1);
    fibers_[i]->begun = true;
    setcontext(&fibers_[i]->context);
  }

  // Until the scheduler resumes this fiber.
  void leave() {
    if (_setjmp(fiber().self) == 0) _longjmp(scheduler_, 1);
  }

  // A fiber's life: one thread of a block, and then one of another.
  static void live() {
    for (;;) of_this_thread().live_once();
  }
  void live_once() {
    (*thread_)();
    if (!fiber().copies.empty() || !fiber().groups.empty()) die("a thread ends while its copies are under way");
    fiber().state = State::kOver;
    ++over_;
    leave();
  }

  void add_fiber() {
    auto fiber = std::make_unique<Fiber>();
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber->context.uc_stack.ss_sp == MAP_FAILED) die("no memory for a fiber's stack");
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, live, 0);
    fibers_.push_back(std::move(fiber));
  }

 public:
  static Fibers& of_this_thread() {
    static thread_local Fibers fibers;
    return fibers;
  }
  ~Fibers() {
    for (const auto& fiber : fibers_) munmap(fiber->context.uc_stack.ss_sp, kStackBytes);
  }

 private:
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> shared_;
  const std::function<void()>* thread_ = nullptr;
  std::size_t count_ = 0, over_ = 0, in_block_ = 0, current_ = 0;
  bool all_of_block_ = true, decision_ = true;
  jmp_buf scheduler_;
  std::minstd_rand random_{1};
};

}  // namespace

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& thread) {
  place.gridDim = grid;
  place.blockDim = block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        place.blockIdx = {x, y, z};
        Fibers::of_this_thread().run_block(std::size_t{block.x} * block.y * block.z, shared_bytes, thread);
      }
    }
  }
}

unsigned char* dynamic_shared() { return Fibers::of_this_thread().shared(); }
int barrier(int all) { return Fibers::of_this_thread().barrier(all); }
const Slot* exchange(const Slot& mine) { return Fibers::of_this_thread().exchange(mine); }
int lane() { return Fibers::of_this_thread().lane(); }

void copy_later(void* to, const void* from) { Fibers::of_this_thread().fiber().copies.push_back({to, from}); }

void commit_copies() {
  Fiber& fiber = Fibers::of_this_thread().fiber();
  fiber.groups.push_back(std::exchange(fiber.copies, {}));
}

void wait_for_copies(int open_groups) {
  Fiber& fiber = Fibers::of_this_thread().fiber();
  while (fiber.groups.size() > static_cast<std::size_t>(open_groups)) {
    do_copies(fiber.groups.front());
    fiber.groups.pop_front();
  }
}

}  // namespace computron::emulated_gpu
