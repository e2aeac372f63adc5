// Requests for which the schedulers have no room, in the order in which they are to be had once there is some: of each
// line of the input a few numbers, by which it is read again. Pure; used by one thread.
//
//   push() ──> not arrived ──> in its queue, by (priority, arrival, line) ──┬── take(): there is room
//                                                                           └── take_ahead(): there is none ──> begun()
//
// With room the first of all is taken: by the request's priority (the lowest first), the model's (the highest first),
// then arrival, then line. Each model has two queues, of interactive lines (of a priority below 0) and of the others.
// So that nothing urgent waits unseen behind a mass, nor what ages behind urgent ones, the first lines of each queue
// that have arrived are taken ahead of their turn, room or not: as many as it may have ahead and not begun. A scheduler
// sees every model that has requests, and its first ones of both kinds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "computron/requests/request_reader.h"

namespace computron {

struct DeferredLine {
  LinePlace place;
  double arrival_s = 0;     // of the job's clock
  std::uint64_t bytes = 0;  // host memory that its requests take when they wait in a scheduler
  ModelId model = 0;
  std::int32_t priority = 0;  // the requests', Request::priority
};
static_assert(sizeof(DeferredLine) <= 64, "ten million of them are to fit");

class DeferredRequests {
 public:
  // `priorities` by ModelId. A queue has at most `ahead` lines taken ahead that have not begun; 1 at least.
  DeferredRequests(const std::vector<int>& priorities, std::size_t ahead);

  void push(const DeferredLine& line);
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }

  // There is room: the first of those that have arrived by `now_s`, or else of the others. `now_s` never decreases.
  std::optional<DeferredLine> take(double now_s);
  // There is none: the first that may go ahead. `one_a_queue`: memory is short, too, so a queue has no more than one.
  std::optional<DeferredLine> take_ahead(double now_s, bool one_a_queue);
  // One of the model's lines of this priority that were taken ahead has begun, or will not.
  void begun(ModelId model, std::int32_t priority = 0);

 private:
  using Heap = std::deque<DeferredLine>;  // the first in front
  // Not the first ahead, the request's priority, the model's (the highest is the least), arrival, line, queue.
  using Turn = std::tuple<bool, std::int32_t, std::int64_t, double, RequestId, std::size_t>;
  struct Queue {
    int model_priority = 0;
    Heap lines = {};  // arrived; by (priority, arrival, line)
    std::size_t ahead = 0;
    std::optional<Turn> turn = {}, turn_ahead = {};  // as they stand in the sets below
  };
  static std::size_t queue_of(ModelId model, std::int32_t priority) { return 2 * std::size_t{model} + (priority < 0); }

  void arrive(double now_s);
  DeferredLine pop(std::size_t queue);
  void list(std::size_t queue);

  std::size_t ahead_;
  Heap later_;                  // not arrived; by (arrival, line)
  std::vector<Queue> queues_;   // [queue_of()]
  std::set<Turn> turns_;        // of queues with lines that have arrived
  std::set<Turn> turns_ahead_;  // of those of them that may have one more ahead
  std::size_t size_ = 0;
};

}  // namespace computron
