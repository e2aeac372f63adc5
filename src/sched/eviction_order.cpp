#include "computron/sched/eviction_order.h"

#include <algorithm>

namespace computron {

// The longest silent first; of equally silent ones the least recently used.
bool EvictionOrder::Rank::operator<(const Rank& other) const {
  if (silence_s != other.silence_s) return silence_s < other.silence_s;
  if (last_used != other.last_used) return last_used > other.last_used;
  return model > other.model;
}

void EvictionOrder::rank(const StagePool& pool, const Policy& policy, std::span<const ModelView> views,
                         const RunOrder& order, double now_s) {
  for (const ModelId model : ordered_) turn_[model] = kNone;
  turn_.resize(views.size(), kNone);
  heap_.clear();
  ordered_.clear();
  passed_ = 0;
  const bool all = !policy.spares_run_order();
  for (const ModelId model : pool.counts().resident_models()) {
    const ModelView& view = views[model];
    const std::size_t place = order.place(model);
    if (view.pinned || place == 0 || (place != RunOrder::kNotInIt && !all)) continue;
    heap_.push_back({policy.silence_s(view, now_s), view.last_used, model});
  }
  std::make_heap(heap_.begin(), heap_.end());
  ranked_ = true;
}

std::optional<FrameId> EvictionOrder::first(const StagePool& pool, FrameKind kind, const Policy& policy,
                                            std::span<const ModelView> views, const RunOrder& order, std::size_t place,
                                            double now_s) {
  if (!ranked_) rank(pool, policy, views, order, now_s);
  if (const auto found = first_ranked(pool, kind, order, place)) return found;
  if (!policy.spares_run_order()) return std::nullopt;
  const std::size_t sooner = place == RunOrder::kNotInIt ? order.size() : place + 1;
  for (std::size_t i = order.size(); i > sooner; --i) {
    const ModelId model = order.models()[i - 1];
    if (views[model].pinned) continue;
    const FrameId frame =
        pool.last_page(model, kind, [&](ModelId other) { return !views[other].pinned && order.place(other) >= i - 1; });
    if (frame != kNoFrame) return frame;
  }
  return std::nullopt;
}

std::optional<FrameId> EvictionOrder::first_ranked(const StagePool& pool, FrameKind kind, const RunOrder& order,
                                                   std::size_t place) {
  for (std::size_t i = passed_;; ++i) {
    if (i == ordered_.size()) {
      if (heap_.empty()) return std::nullopt;
      std::pop_heap(heap_.begin(), heap_.end());
      turn_[heap_.back().model] = ordered_.size();
      ordered_.push_back(heap_.back().model);
      heap_.pop_back();
    }
    const ModelId model = ordered_[i];
    if (pool.state().resident_pages(model) == 0) {
      passed_ += i == passed_ ? 1 : 0;
      continue;
    }
    if (!is_behind(order.place(model), place)) continue;
    const FrameId frame = pool.last_page(
        model, kind, [&](ModelId other) { return turn_[other] <= i && is_behind(order.place(other), place); });
    if (frame != kNoFrame) return frame;
  }
}

}  // namespace computron
