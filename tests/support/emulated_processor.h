// A processor of a chosen speed, emulated by the clock: passes take what a profile says, so that ranks that share cores
// behave like ranks with a processor each.
//
//   page use u   begins when use u - 1 is over and its page is there; is over its share of the pass later
//
// A pass's time is shared out by bytes, as VirtualMesh does it. The rank really computes meanwhile, faster than that,
// and is held back where it releases uses: a pass never ends before its time, and what it really took does not count,
// as long as it is less. Held ranks sleep and poll, so that the others have the cores and rank 0 goes on dispatching.
#pragma once

#include <sys/prctl.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "computron/base/time.h"
#include "computron/runtime/executor.h"
#include "computron/sched/cost_model.h"

namespace computron::test {

// Seconds of a pass of `rows` rows over the shard.
using PassProfile = std::function<double(const ShardLayout& layout, int rows)>;

// What the cost model says of a processor that does so many operations a second, and for which memory is no limit.
inline CostOptions costs_of_rate(double flops_per_s, double link_bytes_per_s = 1e18) {
  return {.link_bytes_per_s = link_bytes_per_s, .memory_bytes_per_s = 1e18, .flops_per_s = flops_per_s, .step_s = 0};
}
inline PassProfile profile_of_rate(double flops_per_s) {
  return [costs = costs_of_rate(flops_per_s)](const ShardLayout& layout, int rows) {
    return CostModel({{&layout}}, costs).stage_pass_s(/*model=*/0, /*stage=*/0, rows);
  };
}

// Ranks that compute together take longer than their share of what one takes alone: on a mesh of that tp so many times
// as long. A tp that is not named costs nothing.
inline PassProfile with_overheads(PassProfile profile, std::map<int, double> by_tp) {
  return [profile = std::move(profile), by_tp = std::move(by_tp)](const ShardLayout& layout, int rows) {
    const auto found = by_tp.find(layout.plan.mesh.tp);
    return profile(layout, rows) * (found == by_tp.end() ? 1 : found->second);
  };
}

// Belongs to the thread that owns MPI. For the CPU device's own compute streams, which run work at the call.
class EmulatedProcessor {
 public:
  // Borrows `progress`.
  EmulatedProcessor(PassProfile profile, Progress& progress) : profile_(std::move(profile)), progress_(progress) {
    prctl(PR_SET_TIMERSLACK, 1);  // ns, of this thread: it sleeps for less than the usual slack of 50 us
  }

  // For ExecutorOptions::wrap_pages; borrows this.
  PageSourceWrapper wrapper() {
    return [this](const Step& step, const ShardLayout& layout, Stream& compute, PageSource& pages) {
      const double pass_s = profile_(layout, step.rows());
      busy_s_ += pass_s;
      return std::make_unique<Pages>(*this, layout, pass_s, compute, pages);
    };
  }
  // Of all passes so far, by the profile.
  double busy_s() const { return busy_s_; }
  // Processor time of this thread in which it was held or waited for pages, polling.
  double waiting_cpu_s() const { return waiting_cpu_s_; }

  // Processor time of the calling thread.
  static double thread_cpu_s() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

 private:
  static constexpr double kPollInterval_s = 200e-6;

  // The pages of a pass, which begins when it acquires the first.
  class Pages final : public PageSource {
   public:
    Pages(EmulatedProcessor& processor, const ShardLayout& layout, double pass_s, Stream& compute, PageSource& pages)
        : processor_(processor), layout_(layout), compute_(compute), pages_(pages) {
      double bytes = 0;
      for (const PageId page : layout.uses) bytes += static_cast<double>(layout.used_bytes[page]);
      s_a_byte_ = pass_s / bytes;
    }

    // Uses that were passed over have their share, too.
    ResidentPage acquire(PageUse use) override {
      const ResidentPage page = pages_.acquire(use);
      const Event* const ready = use >= over_s_.size() ? page.ready : nullptr;
      if (over_s_.empty()) free_s_ = now_s();
      while (use > over_s_.size()) compute();
      if (ready != nullptr && !ready->query()) await(*ready);
      if (use == over_s_.size()) compute();
      return page;
    }
    void release_through(PageUse use) override {
      if (use < over_s_.size()) processor_.hold(over_s_[use]);
      pages_.release_through(use);
    }
    bool group_by_group() const override { return pages_.group_by_group(); }
    bool at_rest() const override { return pages_.at_rest(); }

   private:
    // The next use.
    void compute() {
      const PageId page = layout_.uses[over_s_.size()];
      over_s_.push_back(free_s_ += s_a_byte_ * static_cast<double>(layout_.used_bytes[page]));
    }
    // The stream counts what the processor waits, which still computes at first.
    void await(const Event& ready) {
      processor_.hold(free_s_);
      const double cpu_before_s = thread_cpu_s();
      compute_.wait(ready);
      processor_.waiting_cpu_s_ += thread_cpu_s() - cpu_before_s;
      free_s_ = std::max(free_s_, now_s());
    }

    EmulatedProcessor& processor_;
    const ShardLayout& layout_;
    Stream& compute_;
    PageSource& pages_;
    double s_a_byte_ = 0;
    double free_s_ = 0;           // when the use before is over
    std::vector<double> over_s_;  // [use] so far
  };

  void hold(double until_s) {
    const double cpu_before_s = thread_cpu_s();
    for (double left_s = until_s - now_s(); left_s > 0; left_s = until_s - now_s()) {
      progress_.poll();
      sleep(std::min(until_s - now_s(), kPollInterval_s));
    }
    waiting_cpu_s_ += thread_cpu_s() - cpu_before_s;
  }
  static void sleep(double seconds) {
    if (seconds <= 0) return;
    const timespec time{0, static_cast<long>(1e9 * seconds)};
    nanosleep(&time, nullptr);
  }

  PassProfile profile_;
  Progress& progress_;
  double busy_s_ = 0, waiting_cpu_s_ = 0;
};

}  // namespace computron::test
