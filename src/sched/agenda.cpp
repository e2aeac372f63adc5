#include "computron/sched/agenda.h"

#include <algorithm>
#include <utility>

namespace computron {

Agenda::Agenda(std::size_t models, std::size_t stages, std::unique_ptr<Policy> policy)
    : policy_(std::move(policy)),
      views_(models),
      run_order_(models),
      eviction_orders_(stages),
      kept_pages_(stages),
      expected_(models) {
  for (ModelId model = 0; model < models; ++model) views_[model].model = model;
}

void Agenda::show(const ModelView& view) {
  views_[view.model] = view;
  expected_.set(view.model, !view.has_work() && view.arrival_gap_s > 0);
}

void Agenda::decide(std::span<const ModelId> with_work, const ActiveModel& active, bool expects_more, double now_s) {
  now_s_ = now_s;
  expects_more_ = expects_more;
  keyed_.clear();
  for (const ModelId model : with_work) {
    keyed_.push_back({views_[model].urgency, policy_->run_key(views_[model], active, now_s), model});
  }
  std::ranges::sort(keyed_, [](const Keyed& a, const Keyed& b) {
    return a.urgency != b.urgency ? a.urgency < b.urgency : a.key < b.key;
  });
  run_order_.clear();
  for (const Keyed& keyed : keyed_) run_order_.push_back(keyed.model);
  for (EvictionOrder& order : eviction_orders_) order.reset();
  for (UnpinnedPrefix& kept : kept_pages_) kept.reset();
}

// --- Who loses pages --------------------------------------------------------------------------------------------

Agenda::EvictableFor::EvictableFor(Agenda& agenda, ModelId model, std::size_t stage, bool and_itself)
    : agenda_(agenda), model_(model), stage_(stage), and_itself_(and_itself) {}

int Agenda::EvictableFor::pages(const StagePool& pool, FrameKind kind) const {
  const RunOrder& order = agenda_.run_order_;
  const std::size_t sooner = std::min(order.place(model_), order.size() - 1) + 1;
  const std::span<const ModelId> keep = order.models().first(sooner);
  const PageCounts& counts = pool.counts();
  if (!and_itself_) return counts.unpinned_pages(kind) - agenda_.kept_pages_[stage_].pages(counts, keep, kind);
  std::vector<ModelId> others(keep.begin(), keep.end());
  std::erase(others, model_);
  return counts.unpinned_pages(kind) - counts.unpinned_pages(others, kind);
}

std::optional<FrameId> Agenda::EvictableFor::first(const StagePool& pool, FrameKind kind) {
  const RunOrder& order = agenda_.run_order_;
  EvictionOrder& evictions = agenda_.eviction_orders_[stage_];
  const auto found =
      evictions.first(pool, kind, *agenda_.policy_, agenda_.views_, order, order.place(model_), agenda_.now_s_);
  if (found || !and_itself_ || agenda_.views_[model_].pinned) return found;
  const FrameId own = pool.last_page(model_, kind, [&](ModelId other) {
    return EvictionOrder::may_lose(other, order, order.place(model_), agenda_.views_);
  });
  return own == kNoFrame ? std::nullopt : std::optional(own);
}

// --- Candidates -------------------------------------------------------------------------------------------------

bool Agenda::any_candidate(const std::function<bool(ModelId)>& is) {
  for (std::size_t i = expects_more_ ? expected_.size() : 0; i > 0; --i) {
    const ModelId model = expected_.models()[i - 1];
    if (!still_expected(model)) continue;
    if (is(model)) return true;
  }
  return false;
}

// Who is expected no longer is not until a request has come. Its place in the list is taken by one that stood behind
// it.
bool Agenda::still_expected(ModelId model) {
  const bool expected = policy_->is_expected(views_[model], now_s_);
  if (!expected) expected_.erase(model);
  return expected;
}

std::optional<ModelId> Agenda::first_candidate() {
  std::optional<Candidate> first;
  any_candidate([&](ModelId model) {
    const Candidate candidate{policy_->silence_s(views_[model], now_s_), model};
    if (!first || candidate < *first) first = candidate;
    return false;
  });
  return first ? std::optional(first->model) : std::nullopt;
}

void Agenda::visit_candidates(const StagePool& pool, const std::function<bool(ModelId, Evictable&)>& visit) {
  std::vector<Candidate> heap;
  for (std::size_t i = expects_more_ ? expected_.size() : 0; i > 0; --i) {
    const ModelId model = expected_.models()[i - 1];
    if (pool.missing_pages(model) == 0 || !still_expected(model)) continue;
    heap.push_back({policy_->silence_s(views_[model], now_s_), model});
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  for (; !heap.empty(); heap.pop_back()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    EvictableModels evictable = evictable_for(heap.back(), pool);
    if (!visit(heap.back().model, evictable)) return;
  }
}

EvictableModels Agenda::evictable_for(const Candidate& candidate, const StagePool& pool) const {
  constexpr double kLater = 2;
  std::vector<Candidate> later;
  for (const ModelId model : pool.counts().resident_models()) {
    if (views_[model].has_work() || views_[model].pinned) continue;
    const double silence_s = policy_->silence_s(views_[model], now_s_);
    if (silence_s > kLater * candidate.silence_s) later.push_back({silence_s, model});
  }
  std::sort(later.begin(), later.end(), std::greater<>());
  std::vector<ModelId> models;
  for (const Candidate& other : later) models.push_back(other.model);
  return EvictableModels(std::move(models));
}

}  // namespace computron
