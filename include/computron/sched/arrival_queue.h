// Requests that have been submitted and have not arrived yet: the future of a replayed job. Of all models together, the
// first to arrive in front.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "computron/sched/waiting_queue.h"

namespace computron {

class ArrivalQueue {
 public:
  explicit ArrivalQueue(std::size_t models) : of_model_(models, 0) {}

  void push(Request request);
  // Both require a request.
  const Request& front() const;
  Request pop();
  bool empty() const { return size() == 0; }
  std::size_t size() const { return in_order_.size() + heap_.size(); }
  std::size_t size(ModelId model) const { return of_model_[model]; }
  std::size_t bytes() const { return bytes_; }  // host memory of prompts and pictures
  double next_arrival_s() const { return front().arrival_s; }
  // As WaitingQueue::take_youngest, of the model's. Looks at every request unless there is none for the model.
  std::vector<Request> take_youngest(ModelId model, std::size_t n, const Accepts& accepts = {});

 private:
  bool heap_is_first() const;
  Request pop_in_order();
  Request pop_heap();
  WaitingQueue take_all(ModelId model);

  std::deque<Request> in_order_;
  std::vector<Request> heap_;          // those that arrive before one that was submitted earlier
  std::vector<std::size_t> of_model_;  // [model] how many
  std::size_t bytes_ = 0;
};

}  // namespace computron
