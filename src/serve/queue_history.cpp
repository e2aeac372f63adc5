#include "computron/serve/queue_history.h"

#include "computron/base/error.h"

namespace computron {
namespace {

void keep_every_second(std::vector<std::uint64_t>& values) {
  for (std::size_t i = 0; 2 * i < values.size(); ++i) values[i] = values[2 * i];
  values.resize((values.size() + 1) / 2);
}

}  // namespace

void QueueHistory::note(double now_s, std::span<const QueueDepth> depths) {
  ensure(depths.size() == unfinished_.size(), "the queues of other models");
  while (due(now_s)) {
    std::uint64_t waiting = 0;
    for (std::size_t model = 0; model < depths.size(); ++model) {
      waiting += depths[model].waiting;
      unfinished_[model].push_back(depths[model].unfinished());
    }
    waiting_.push_back(waiting);
    if (waiting_.size() == kMostTimes) thin_out();
  }
}

void QueueHistory::thin_out() {
  keep_every_second(waiting_);
  for (auto& of_model : unfinished_) keep_every_second(of_model);
  interval_s_ *= 2;
}

}  // namespace computron
