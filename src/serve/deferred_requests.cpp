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
  for (const int priority : priorities) models_.push_back({.priority = priority});
}

void DeferredRequests::push(const DeferredLine& line) {
  push_into(later_, line, comes_later);
  ++size_;
}

std::optional<DeferredLine> DeferredRequests::take(double now_s) {
  arrive(now_s);
  if (!turns_.empty()) return pop(std::get<ModelId>(*turns_.begin()));
  if (later_.empty()) return std::nullopt;
  --size_;
  return pop_from(later_, comes_later);
}

std::optional<DeferredLine> DeferredRequests::take_ahead(double now_s, bool one_a_model) {
  arrive(now_s);
  if (turns_ahead_.empty()) return std::nullopt;
  const bool not_the_first = std::get<0>(*turns_ahead_.begin());
  const auto model = std::get<ModelId>(*turns_ahead_.begin());
  if (one_a_model && not_the_first) return std::nullopt;
  ++models_[model].ahead(models_[model].lines.front().priority);
  return pop(model);
}

void DeferredRequests::begun(ModelId model, std::int32_t priority) {
  --models_[model].ahead(priority);
  list(model);
}

void DeferredRequests::arrive(double now_s) {
  while (!later_.empty() && later_.front().arrival_s <= now_s) {
    const DeferredLine line = pop_from(later_, comes_later);
    push_into(models_[line.model].lines, line, is_served_later);
    if (models_[line.model].lines.front().place.line == line.place.line) list(line.model);
  }
}

// Of a model that has one.
DeferredLine DeferredRequests::pop(ModelId model) {
  const DeferredLine line = pop_from(models_[model].lines, is_served_later);
  --size_;
  list(model);
  return line;
}

// To be called whenever the model's first line, or what it has ahead, has changed.
void DeferredRequests::list(ModelId model) {
  OfModel& of = models_[model];
  const auto relist = [](std::set<Turn>& turns, std::optional<Turn>& listed, std::optional<Turn> turn) {
    if (listed == turn) return;
    if (listed) turns.erase(*listed);
    if (turn) turns.insert(*turn);
    listed = turn;
  };
  const auto turn = [&](bool not_the_first) {
    const DeferredLine& first = of.lines.front();
    return Turn{not_the_first,   first.priority,   -static_cast<std::int64_t>(of.priority),
                first.arrival_s, first.place.line, model};
  };
  const bool any = !of.lines.empty();
  const std::size_t ahead = any ? of.ahead(of.lines.front().priority) : 0;
  relist(turns_, of.turn, any ? std::optional(turn(false)) : std::nullopt);
  relist(turns_ahead_, of.turn_ahead, any && ahead < ahead_ ? std::optional(turn(ahead > 0)) : std::nullopt);
}

}  // namespace computron
