#include "src/device/cpu/compute_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/processor.h"
#include "computron/base/time.h"
#include "src/device/cpu/futex.h"

namespace computron {
namespace {

// A sleeping caller polls this often. A sleeping worker wakes up this often by itself, though open_round() wakes it.
constexpr int kPollInterval_us = 200;
constexpr int kLongSleep_us = 1000000;

constexpr std::uint32_t number_of(std::uint64_t round) { return static_cast<std::uint32_t>(round); }
constexpr std::uint32_t upper_half(std::uint64_t round) { return static_cast<std::uint32_t>(round >> 32); }

const void* upper_half_of(const std::atomic<std::uint64_t>& round) {
  return reinterpret_cast<const std::byte*>(&round) + 4;
}

}  // namespace

ComputePool::ComputePool(int threads, int spin_us) : spin_us_(spin_us) {
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (const std::system_error& error) {
    stop();
    throw Error(ExitCode::kSystem,
                fmt::format("cannot start compute thread {} of {}: {}", this->threads(), threads - 1, error.what()));
  } catch (...) {
    stop();
    throw;
  }
}

ComputePool::~ComputePool() { stop(); }

// The workers end; who joins them are their destructors.
void ComputePool::stop() {
  stopping_ = true;
  round_.fetch_add(1);
  futex_wake(&round_);
}

double ComputePool::parallel_for(int items, const Body& body, Progress& progress) {
  if (threads() > 1 && items > 1) return fork_join(items, body, progress);
  for (int item = 0; item < items; ++item) {
    body(0, item);
    progress.poll();
  }
  return now_s();
}

double ComputePool::fork_join(int items, const Body& body, Progress& progress) {
  ensure(!in_use_.exchange(true, std::memory_order_acquire), "parallel_for inside parallel_for");
  body_ = &body;
  items_ = items;
  next_item_.store(0, std::memory_order_relaxed);
  open_round();
  take_items(0, [&] { progress.poll(); });
  const double out_of_items_s = now_s();
  join(progress);
  const auto error = std::exchange(error_, nullptr);
  failed_.store(false, std::memory_order_relaxed);
  in_use_.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
  return out_of_items_s;
}

// Either a worker about to sleep sees the new number, or it is counted here and woken: both sides write one word and
// read the other in sequentially consistent order.
void ComputePool::open_round() {
  const auto before = round_.load(std::memory_order_relaxed);
  round_.store(kOpen | static_cast<std::uint32_t>(number_of(before) + 1));
  if (sleepers_.load() > 0) futex_wake(&round_, std::min(items_, threads()) - 1);
}

template <class AfterItem>
void ComputePool::take_items(int thread, AfterItem&& after_item) {
  try {
    for (int item; (item = next_item_.fetch_add(1, std::memory_order_relaxed)) < items_;) {
      (*body_)(thread, item);
      after_item();
    }
  } catch (...) {
    keep_error();
  }
}

// The first error counts; the items not yet taken are dropped.
void ComputePool::keep_error() noexcept {
  if (!failed_.exchange(true)) error_ = std::current_exception();
  next_item_.store(items_, std::memory_order_relaxed);
}

void ComputePool::join(Progress& progress) {
  round_.fetch_and(~kOpen, std::memory_order_relaxed);
  const auto all_left = [this] { return (round_.load(std::memory_order_acquire) & kWorkers) == 0; };
  if (spin_until(all_left)) return;
  bool polling = true;
  while (!all_left()) {
    const auto round = round_.fetch_or(kCallerAsleep, std::memory_order_acquire) | kCallerAsleep;
    if (round & kWorkers) futex_wait(upper_half_of(round_), upper_half(round), kPollInterval_us);
    if (!polling) continue;
    try {
      progress.poll();
    } catch (...) {  // kept: this frame must stay until the workers have left it
      keep_error();
      polling = false;
    }
  }
}

void ComputePool::work(int thread) {
  std::uint32_t number = 0;
  while (true) {
    number = await_round_after(number);
    if (stopping_) return;
    if (!enter(number)) continue;
    take_items(thread, [] {});
    leave();
  }
}

// Returns the number of a round other than `number`.
std::uint32_t ComputePool::await_round_after(std::uint32_t number) {
  const auto changed = [&] { return number_of(round_.load()) != number; };
  if (!spin_until(changed)) {
    ++sleepers_;
    while (!changed()) futex_wait(&round_, number, kLongSleep_us);
    --sleepers_;
  }
  return number_of(round_.load());
}

bool ComputePool::enter(std::uint32_t number) {
  auto round = round_.load(std::memory_order_relaxed);
  while ((round & kOpen) && number_of(round) == number) {
    if (round_.compare_exchange_weak(round, round + kWorker, std::memory_order_acquire)) return true;
  }
  return false;
}

void ComputePool::leave() {
  const auto before = round_.fetch_sub(kWorker, std::memory_order_release);
  if ((before & kCallerAsleep) && (before & kWorkers) == kWorker) futex_wake(upper_half_of(round_), 1);
}

template <class Done>
bool ComputePool::spin_until(Done&& done) const {
  if (done()) return true;
  if (spin_us_ == 0) return false;
  const double end_s = now_s() + 1e-6 * spin_us_;
  while (now_s() < end_s) {
    if (done()) return true;
    spin_pause();
  }
  return false;
}

}  // namespace computron
