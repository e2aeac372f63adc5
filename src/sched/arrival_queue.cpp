#include "computron/sched/arrival_queue.h"

#include <algorithm>
#include <utility>

namespace computron {
namespace {

bool arrives_later(const Request& a, const Request& b) { return arrives_earlier(b, a); }

}  // namespace

void ArrivalQueue::push(Request request) {
  bytes_ += request.bytes();
  ++of_model_[request.model];
  heap_.push_back(std::move(request));
  std::push_heap(heap_.begin(), heap_.end(), arrives_later);
}

Request ArrivalQueue::pop() {
  std::pop_heap(heap_.begin(), heap_.end(), arrives_later);
  Request request = std::move(heap_.back());
  heap_.pop_back();
  bytes_ -= request.bytes();
  --of_model_[request.model];
  return request;
}

std::vector<Request> ArrivalQueue::take_youngest(ModelId model, std::size_t n) {
  if (n == 0 || of_model_[model] == 0) return {};
  WaitingQueue all = take_all(model);
  std::vector<Request> taken = all.take_youngest(n);
  while (!all.empty()) push(all.pop());
  return taken;
}

WaitingQueue ArrivalQueue::take_all(ModelId model) {
  const auto taken = std::partition(heap_.begin(), heap_.end(), [model](const Request& r) { return r.model != model; });
  std::sort(taken, heap_.end(), arrives_earlier);
  WaitingQueue all(/*block_tokens=*/1);
  for (auto request = taken; request != heap_.end(); ++request) {
    bytes_ -= request->bytes();
    all.push(std::move(*request));
  }
  heap_.erase(taken, heap_.end());
  std::make_heap(heap_.begin(), heap_.end(), arrives_later);
  of_model_[model] = 0;
  return all;
}

}  // namespace computron
