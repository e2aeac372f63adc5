#include "computron/sched/waiting_queue.h"

#include <algorithm>
#include <utility>

namespace computron {
namespace {

constexpr double kLatestWeight = 0.1;  // of the latest time between two arrivals

}  // namespace

void ArrivalStatistics::observe(double arrival_s) {
  const double gap_s = std::max(arrival_s - last_s_, 0.0);
  if (count_ > 0) {
    const double weight = std::max(kLatestWeight, 1.0 / static_cast<double>(count_));
    gap_s_ += weight * (gap_s - gap_s_);
    gap2_s2_ += weight * (gap_s * gap_s - gap2_s2_);
  }
  ++count_;
  last_s_ = std::max(last_s_, arrival_s);
}

WaitingQueue::Load WaitingQueue::load_of(const Request& request) const {
  const auto generated = static_cast<std::size_t>(request.encodes() ? 1 : std::max(request.max_tokens, 1));
  return {.backlog = {request.prompt.size(), generated, request.arrival_s},
          .cache = cache_need(request, static_cast<int>(request.prompt.size()), block_tokens_),
          .bytes = request.bytes()};
}

void WaitingQueue::push(Request request) {
  const Load load = load_of(request);
  sum_.backlog += load.backlog;
  sum_.cache += load.cache;
  sum_.bytes += load.bytes;
  const auto place = std::upper_bound(requests_.begin(), requests_.end(), request, arrives_earlier);
  requests_.insert(place, std::move(request));
}

Request WaitingQueue::pop() {
  Request request = std::move(requests_.front());
  requests_.pop_front();
  const Load load = load_of(request);
  sum_.backlog -= load.backlog;
  sum_.cache -= load.cache;
  sum_.bytes -= load.bytes;
  return request;
}

}  // namespace computron
