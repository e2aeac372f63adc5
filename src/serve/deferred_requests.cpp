#include "computron/serve/deferred_requests.h"

#include <algorithm>

namespace computron {
namespace {

bool comes_later(const DeferredLine& a, const DeferredLine& b) {
  return std::tie(a.arrival_s, a.place.line) > std::tie(b.arrival_s, b.place.line);
}

bool is_served_later(const DeferredLine& a, const DeferredLine& b) {
  return a.priority != b.priority ? a.priority > b.priority : comes_later(a, b);
}

using Order = bool (*)(const DeferredLine&, const DeferredLine&);

void push_into(std::deque<DeferredLine>& heap, const DeferredLine& line, Order order) {
  heap.push_back(line);
  std::push_heap(heap.begin(), heap.end(), order);
}

DeferredLine pop_from(std::deque<DeferredLine>& heap, Order order) {
  std::pop_heap(heap.begin(), heap.end(), order);
  const DeferredLine line = heap.back();
  heap.pop_back();
  return line;
}

}  // namespace

DeferredRequests::DeferredRequests(const std::vector<int>& priorities, std::size_t ahead) : ahead_(ahead) {
  for (const int priority : priorities) queues_.insert(queues_.end(), 2, Queue{.model_priority = priority});
}

void DeferredRequests::push(const DeferredLine& line) {
  push_into(later_, line, comes_later);
  ++size_;
}

std::optional<DeferredLine> DeferredRequests::take(double now_s) {
  arrive(now_s);
  if (!turns_.empty()) return pop(std::get<5>(*turns_.begin()));
  if (later_.empty()) return std::nullopt;
  --size_;
  return pop_from(later_, comes_later);
}

std::optional<DeferredLine> DeferredRequests::take_ahead(double now_s, bool one_a_queue) {
  arrive(now_s);
  if (turns_ahead_.empty()) return std::nullopt;
  const bool not_the_first = std::get<0>(*turns_ahead_.begin());
  const std::size_t queue = std::get<5>(*turns_ahead_.begin());
  if (one_a_queue && not_the_first) return std::nullopt;
  ++queues_[queue].ahead;
  return pop(queue);
}

void DeferredRequests::begun(ModelId model, std::int32_t priority) {
  const std::size_t queue = queue_of(model, priority);
  --queues_[queue].ahead;
  list(queue);
}

void DeferredRequests::arrive(double now_s) {
  while (!later_.empty() && later_.front().arrival_s <= now_s) {
    const DeferredLine line = pop_from(later_, comes_later);
    const std::size_t queue = queue_of(line.model, line.priority);
    push_into(queues_[queue].lines, line, is_served_later);
    if (queues_[queue].lines.front().place.line == line.place.line) list(queue);
  }
}

// Of a queue that has one.
DeferredLine DeferredRequests::pop(std::size_t queue) {
  const DeferredLine line = pop_from(queues_[queue].lines, is_served_later);
  --size_;
  list(queue);
  return line;
}

// To be called whenever the queue's first line, or what it has ahead, has changed.
void DeferredRequests::list(std::size_t queue) {
  Queue& of = queues_[queue];
  const auto relist = [](std::set<Turn>& turns, std::optional<Turn>& listed, std::optional<Turn> turn) {
    if (listed == turn) return;
    if (listed) turns.erase(*listed);
    if (turn) turns.insert(*turn);
    listed = turn;
  };
  const auto turn = [&](bool not_the_first) {
    const DeferredLine& first = of.lines.front();
    return Turn{not_the_first,   first.priority,   -static_cast<std::int64_t>(of.model_priority),
                first.arrival_s, first.place.line, queue};
  };
  const bool any = !of.lines.empty();
  relist(turns_, of.turn, any ? std::optional(turn(false)) : std::nullopt);
  relist(turns_ahead_, of.turn_ahead, any && of.ahead < ahead_ ? std::optional(turn(of.ahead > 0)) : std::nullopt);
}

}  // namespace computron
