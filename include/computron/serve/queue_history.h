// How many requests waited and ran in the course of a run, at some 120 to 240 evenly spaced times however long it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "computron/sched/request.h"

namespace computron {

// Requests of a model.
struct QueueDepth {
  std::uint64_t waiting = 0;  // no step has begun them
  std::uint64_t running = 0;
  std::uint64_t unfinished() const { return waiting + running; }
};

class QueueHistory {
 public:
  static constexpr std::size_t kMostTimes = 240;

  explicit QueueHistory(std::size_t models, double interval_s = 0.005) : unfinished_(models), interval_s_(interval_s) {}

  // Whether note() would note anything; times are seconds of the job's clock.
  bool due(double now_s) const { return now_s >= next_s(); }
  // For the times up to `now_s` that have none yet. When there are too many, every second one is given up.
  void note(double now_s, std::span<const QueueDepth> depths);

  double interval_s() const { return interval_s_; }
  // [i] at i × interval_s.
  const std::vector<std::uint64_t>& waiting() const { return waiting_; }  // of all models
  const std::vector<std::uint64_t>& unfinished(ModelId model) const {
    return unfinished_.at(model);
  }  // waiting and running

 private:
  double next_s() const { return interval_s_ * static_cast<double>(waiting_.size()); }
  void thin_out();

  std::vector<std::uint64_t> waiting_;
  std::vector<std::vector<std::uint64_t>> unfinished_;  // [model]
  double interval_s_;
};

}  // namespace computron
