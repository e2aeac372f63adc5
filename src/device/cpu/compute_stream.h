// The CPU compute stream: work runs at the call.
#pragma once

#include <vector>

#include "src/device/cpu/compute_pool.h"
#include "src/device/cpu/event.h"

namespace computron {

// Runs work at the call, on the calling thread, so it never has work pending. A call throws the error of its own work.
class InlineComputeStream final : public CpuComputeStream, private CpuContext {
 public:
  // Borrows all three; `trace` may be null.
  InlineComputeStream(ComputePool& pool, Progress& progress, Trace* trace = nullptr);

  void launch(Work work) override { work(*this); }
  void record(Event& event) override;
  void wait(const Event& event) override { wait(0, mark_of(&event)); }
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    copy_to_device(destination, source, bytes);  // one memory
  }
  void copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    copy_to_device(destination, source, bytes);
  }
  void synchronize() override {}
  double exposed_s() const override { return exposed_s_; }

 private:
  // A thread's wait for an event, in now_s().
  struct Interval {
    double begin_s = 0;
    double end_s = 0;
    const Event* event = nullptr;
    double seconds() const { return end_s - begin_s; }
  };

  int threads() const override { return pool_.threads(); }
  void parallel_for(int items, const std::function<void(int, int)>& body) override;
  void wait(int thread, const CpuEventMark& mark) override;
  void poll() override { progress_.poll(); }
  // Counts, as a stall, the longest part of last_wait_ that lies behind `out_of_items_s`, when thread 0 had no item
  // left.
  void count_waits_after(double out_of_items_s);
  void count(const Interval& wait);

  ComputePool& pool_;
  Progress& progress_;
  Trace* trace_;
  double exposed_s_ = 0;
  std::vector<Interval> last_wait_;  // [thread] of the round in progress: each written by its thread
};

}  // namespace computron
