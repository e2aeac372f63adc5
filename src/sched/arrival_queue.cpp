#include "computron/sched/arrival_queue.h"

#include <algorithm>
#include <utility>

namespace computron {
namespace {

bool arrives_later(const Request& a, const Request& b) { return arrives_earlier(b, a); }

}  // namespace

// Almost all are submitted in the order of their arrival; only the others are put in order, which moves many of them.
void ArrivalQueue::push(Request request) {
  bytes_ += request.bytes();
  ++of_model_[request.model];
  if (in_order_.empty() || !arrives_earlier(request, in_order_.back())) {
    in_order_.push_back(std::move(request));
  } else {
    heap_.push_back(std::move(request));
    std::push_heap(heap_.begin(), heap_.end(), arrives_later);
  }
}

const Request& ArrivalQueue::front() const { return heap_is_first() ? heap_.front() : in_order_.front(); }

bool ArrivalQueue::heap_is_first() const {
  return !heap_.empty() && (in_order_.empty() || arrives_earlier(heap_.front(), in_order_.front()));
}

Request ArrivalQueue::pop() {
  Request request = heap_is_first() ? pop_heap() : pop_in_order();
  bytes_ -= request.bytes();
  --of_model_[request.model];
  return request;
}

Request ArrivalQueue::pop_in_order() {
  Request request = std::move(in_order_.front());
  in_order_.pop_front();
  return request;
}

Request ArrivalQueue::pop_heap() {
  std::pop_heap(heap_.begin(), heap_.end(), arrives_later);
  Request request = std::move(heap_.back());
  heap_.pop_back();
  return request;
}

std::vector<Request> ArrivalQueue::take_youngest(ModelId model, std::size_t n, const Accepts& accepts) {
  if (n == 0 || of_model_[model] == 0) return {};
  WaitingQueue all = take_all(model);
  std::vector<Request> taken = all.take_youngest(n, accepts);
  std::vector<Request> left;
  while (!all.empty()) left.push_back(all.pop());
  std::ranges::sort(left, arrives_earlier);
  for (Request& request : left) push(std::move(request));
  return taken;
}

// Those of other models are pushed anew, in the order of their arrival.
WaitingQueue ArrivalQueue::take_all(ModelId model) {
  WaitingQueue all(/*block_tokens=*/1);
  for (ArrivalQueue old = std::exchange(*this, ArrivalQueue(of_model_.size())); !old.empty();) {
    Request request = old.pop();
    request.model == model ? all.push(std::move(request)) : push(std::move(request));
  }
  return all;
}

}  // namespace computron
