#include "computron/sched/stage_pool.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace computron {

int uses_together(const ShardLayout& layout) {
  std::int64_t span = 1;
  for (std::size_t use = 0; use < layout.uses.size(); ++use) {
    span = std::max(span, static_cast<std::int64_t>(use) - layout.over_before[use]);
  }
  return static_cast<int>(span);
}

namespace {

PageUse first_use(const ShardLayout& layout, PageId page) {
  return static_cast<PageUse>(std::find(layout.uses.begin(), layout.uses.end(), page) - layout.uses.begin());
}

// Neighbours side by side, so that a device may read their pages as one (WeightFormat::joins_pages). Frames that have
// been idle for some steps come first; those that are still in use follow by runs of neighbours that become free one
// after the other, the earliest run first, so that copies wait for as little as possible.
void put_in_order(std::vector<FrameId>& frames, std::span<const ReleasePoint> last_use, StepId last_step) {
  constexpr StepId kStepsUnderWay = 8;  // more than a pipeline usually has
  std::ranges::sort(frames);
  const auto in_use = std::stable_partition(
      frames.begin(), frames.end(), [&](FrameId frame) { return last_use[frame].step + kStepsUnderWay < last_step; });
  std::vector<std::span<const FrameId>> runs;
  for (const FrameId& frame : std::span(in_use, frames.end())) {
    const FrameId* const before = runs.empty() ? nullptr : &runs.back().back();
    if (before != nullptr && frame == *before + 1 && last_use[*before] <= last_use[frame]) {
      runs.back() = {runs.back().data(), runs.back().size() + 1};
    } else {
      runs.emplace_back(&frame, 1);
    }
  }
  std::ranges::stable_sort(runs, {}, [&](std::span<const FrameId> run) { return last_use[run.front()]; });
  std::vector<FrameId> ordered(frames.begin(), in_use);
  for (const std::span<const FrameId> run : runs) ordered.insert(ordered.end(), run.begin(), run.end());
  frames = std::move(ordered);
}

}  // namespace

EvictableModels::EvictableModels(std::vector<ModelId> models) : models_(std::move(models)) {
  for (std::size_t i = 0; i < models_.size(); ++i) places_.emplace(models_[i], i);
}

std::size_t EvictableModels::place(ModelId model) const {
  const auto found = places_.find(model);
  return found == places_.end() ? models_.size() : found->second;
}

int EvictableModels::pages(const StagePool& pool, FrameKind kind) const {
  const SharedPages& shared = pool.state().shared();
  const auto others = [&](ModelId model) { return place(model) == models_.size(); };
  int count = 0;
  for (const ModelId model : models_) count += pool.counts().pages_alone(model, kind);
  pool.counts().visit_sets(models_, [&](int set) {
    if (shared.kind_of(set) != kind) return;
    if (std::ranges::none_of(shared.models_of(set), others)) count += pool.counts().resident_pages_of(set);
  });
  return count;
}

std::optional<FrameId> EvictableModels::first(const StagePool& pool, FrameKind kind) {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const auto no_later = [&](ModelId model) { return place(model) <= i; };
    const FrameId frame = pool.last_page(models_[i], kind, no_later);
    if (frame != kNoFrame) return frame;
  }
  return std::nullopt;
}

StagePool::StagePool(const std::vector<const ShardLayout*>& layouts, int frames, int host_slots,
                     const std::vector<bool>& pinned, int adapter_slots)
    : state_(layouts, frames, host_slots, adapter_slots),
      counts_(layouts, pinned),
      last_resident_(layouts.size(), 0),
      last_use_(static_cast<std::size_t>(frames) + static_cast<std::size_t>(adapter_slots)),
      cache_use_(layouts.size()) {
  for (const ShardLayout* layout : layouts) spans_.push_back(uses_together(*layout));
  for (int f = 0; f < frames + adapter_slots; ++f) {
    free_[index_of(f < frames ? FrameKind::kWhole : FrameKind::kSlot)].push_back(static_cast<FrameId>(f));
  }
  for (int s = 0; s < host_slots; ++s) free_slots_.push_back(static_cast<HostSlot>(s));
}

// --- Caches -----------------------------------------------------------------------------------------------------

// Taken one by one, so that the next search no longer sees the frame.
void StagePool::grow_cache(ModelId model, int frames, Evictable& evictable) {
  CacheChange change{.model = model};
  while (cache_frames(model) < frames) {
    const FrameId frame = find_frame(evictable, FrameKind::kWhole);
    evict_page(frame);
    state_.change_cache({.model = model, .added = {frame}});
    change.added.push_back(frame);
  }
  if (!change.added.empty()) plan_.caches.push_back(std::move(change));
}

void StagePool::free_cache_frames(ModelId model, int from) {
  for (const FrameId frame : std::span(state_.cache(model)).subspan(static_cast<std::size_t>(from))) {
    last_use_[frame] = cache_use_[model];
    free_[index_of(FrameKind::kWhole)].push_back(frame);
  }
}

void StagePool::shrink_cache(ModelId model, int frames) {
  if (frames == 0) return release_cache(model);
  if (frames >= cache_frames(model)) return;
  CacheChange change{.model = model, .taken = static_cast<std::uint32_t>(cache_frames(model) - frames)};
  free_cache_frames(model, frames);
  state_.change_cache(change);
  plan_.caches.push_back(std::move(change));
}

void StagePool::release_cache(ModelId model) {
  if (cache_frames(model) == 0 && !offloaded(model)) return;
  CacheChange change{.model = model, .taken = static_cast<std::uint32_t>(cache_frames(model))};
  if (offloaded(model)) {
    change.kind = CacheChange::kDropOffloaded;
    const std::vector<HostSlot>& slots = state_.offloaded(model);
    free_slots_.insert(free_slots_.end(), slots.begin(), slots.end());
  }
  free_cache_frames(model);
  state_.change_cache(change);
  plan_.caches.push_back(std::move(change));
}

void StagePool::offload_cache(ModelId model) {
  CacheChange change{.model = model,
                     .taken = static_cast<std::uint32_t>(cache_frames(model)),
                     .kind = CacheChange::kOffload,
                     .after = cache_use_[model]};
  change.slots.assign(free_slots_.begin(), free_slots_.begin() + cache_frames(model));
  free_slots_.erase(free_slots_.begin(), free_slots_.begin() + cache_frames(model));
  free_cache_frames(model);
  state_.change_cache(change);
  plan_.caches.push_back(std::move(change));
}

void StagePool::reload_cache(ModelId model, Evictable& evictable) {
  CacheChange change{.model = model, .kind = CacheChange::kReload, .slots = state_.offloaded(model)};
  for (std::size_t i = 0; i < change.slots.size(); ++i) {
    const FrameId frame = find_frame(evictable, FrameKind::kWhole);
    change.after = std::max(change.after, last_use_[frame]);
    evict_page(frame);
    change.added.push_back(frame);
  }
  free_slots_.insert(free_slots_.end(), change.slots.begin(), change.slots.end());
  state_.change_cache(change);
  plan_.caches.push_back(std::move(change));
}

FrameId StagePool::find_frame(Evictable& evictable, FrameKind kind) {
  std::deque<FrameId>& free = free_[index_of(kind)];
  if (!free.empty()) {
    const FrameId frame = free.front();
    free.pop_front();
    return frame;
  }
  if (const std::optional<FrameId> frame = evictable.first(*this, kind)) return *frame;
  throw Error(ExitCode::kInternal, kind == FrameKind::kWhole
                                       ? "internal: the plan needs more frames than the pool has"
                                       : "internal: the plan needs more slots for adapters than the pool has");
}

// The page that the frame holds, if any, is missing from now on.
void StagePool::evict_page(FrameId frame) {
  const StageState::Owner owner = state_.owner(frame);
  if (owner.kind != StageState::Owner::kPage) return;
  state_.evict(frame);
  counts_.remove({owner.model, owner.index});
}

void StagePool::fetch(ModelId model, PageId page, FrameId frame) {
  evict_page(frame);
  const Fetch fetch{.model = model, .page = page, .frame = frame, .after = last_use_[frame]};
  state_.place(fetch);
  const PageRef fetched{model, page};
  counts_.add(fetched);
  state_.shared().for_each(fetched, [&](const PageRef& alias) {
    last_resident_[alias.model] = std::max(last_resident_[alias.model], alias.page);
  });
  plan_.fetches.push_back(fetch);
}

void StagePool::prefetch(ModelId model, Evictable& evictable, std::size_t bytes, int reserve) {
  if (missing_pages(model) == 0) return;
  const ShardLayout& layout = state_.layout(model);
  std::vector<PageId> missing;
  std::array<std::vector<FrameId>, 2> frames;  // [FrameKind]
  std::size_t planned = 0;
  for (PageId page = 0; page < static_cast<PageId>(layout.pages()) && planned < bytes; ++page) {
    if (state_.frame_of(model, page) != kNoFrame) continue;
    const FrameKind kind = layout.kind_of(page);
    if (available(evictable, kind) <= (kind == FrameKind::kWhole ? reserve : 0)) break;
    missing.push_back(page);
    frames[index_of(kind)].push_back(find_frame(evictable, kind));
    evict_page(frames[index_of(kind)].back());  // the next search no longer sees it
    planned += layout.page_link_bytes(page);
  }
  std::array<std::size_t, 2> next{};
  for (std::vector<FrameId>& of_kind : frames) put_in_order(of_kind, last_use_, last_step_);
  for (const PageId page : missing) {
    const std::size_t kind = index_of(layout.kind_of(page));
    fetch(model, page, frames[kind][next[kind]++]);
  }
}

void StagePool::plan_pass(StepId step, ModelId model, Evictable& evictable, bool again) {
  const ShardLayout& layout = state_.layout(model);
  const int room = counts_.resident_pages(model, FrameKind::kWhole) + available(evictable);
  const bool out_of_core = room < pages(model);
  // Frames that rotate: two operations' worth where there is room for that beside as many that stay.
  const int pinned = counts_.staying_pages(model), fewest = fewest_frames(model) - pinned;
  const int rotating = std::clamp((room - pinned) / 4, fewest, 2 * fewest);
  Rotation rotation{.resident = std::max(room - pinned - rotating, 0),
                    .over = {},
                    .farthest = static_cast<std::int64_t>(layout.uses.size()) - 1,
                    .pages = pages(model) - pinned};
  if (!out_of_core) prefetch(model, evictable, std::numeric_limits<std::size_t>::max(), /*reserve=*/0);
  for (PageUse use = 0; use < layout.uses.size(); ++use) {
    const PageId page = layout.uses[use];
    if (state_.frame_of(model, page) == kNoFrame) {
      fetch(model, page, find_rotating_frame(step, model, use, evictable, rotation));
    }
    last_use_[state_.frame_of(model, page)] = {step, use};
    if (out_of_core && rotation.rotates(counts_.number_among_unpinned({model, page}))) rotation.over.push_back(use);
  }
  cache_use_[model] = {step, ReleasePoint::kEnd};
  last_step_ = step;
  if (out_of_core && again) fetch_behind(step, model, rotation);
}

// Pages of the base, which the pass's own model has, too, are used by that alone. Those of adapters are used behind its
// last use of them, even where both have one.
void StagePool::ride_along(StepId step, ModelId model) {
  ensure(missing_pages(model) == 0, "a rider misses a page");
  for (const FrameId frame : state_.page_table(model)) {
    if (last_use_[frame].step < step) last_use_[frame] = {step, ReleasePoint::kEnd};
  }
  for (const PageId page : state_.layout(model).adapter_pages) {
    last_use_[state_.frame_of(model, page)] = {step, ReleasePoint::kEnd};
  }
  cache_use_[model] = {step, ReleasePoint::kEnd};
}

// Evicts a page that rotates: one whose use in this pass is over before `use` begins, or else the one whose use is
// farthest.
FrameId StagePool::find_rotating_frame(StepId step, ModelId model, PageUse use, Evictable& evictable,
                                       Rotation& rotation) {
  const ShardLayout& layout = state_.layout(model);
  const FrameKind kind = layout.kind_of(layout.uses[use]);
  if (kind == FrameKind::kSlot || available(evictable) > 0) return find_frame(evictable, kind);
  while (!rotation.over.empty() && rotation.over.front() <= layout.over_before[use]) {
    const PageUse over = rotation.over.front();
    rotation.over.pop_front();
    const FrameId frame = state_.frame_of(model, layout.uses[over]);
    if (frame != kNoFrame && last_use_[frame] == ReleasePoint{step, over}) return frame;
  }
  for (; rotation.farthest > use; --rotation.farthest) {
    const PageId page = layout.uses[static_cast<std::size_t>(rotation.farthest)];
    const FrameId frame = state_.frame_of(model, page);
    if (frame != kNoFrame && last_use_[frame].step < step &&
        rotation.rotates(counts_.number_among_unpinned({model, page}))) {
      return frame;
    }
  }
  throw Error(ExitCode::kInternal, "internal: a pass needs more frames than its model can have");
}

// The first pages of the next pass, into frames of pages that it comes to later. What this pass ends with may be what
// the next begins with, as an embedding that is also the head.
void StagePool::fetch_behind(StepId step, ModelId model, Rotation& rotation) {
  const ShardLayout& layout = state_.layout(model);
  for (PageUse use = 0; use < layout.uses.size() && !rotation.over.empty(); ++use) {
    const PageId page = layout.uses[use];
    if (state_.frame_of(model, page) != kNoFrame) continue;
    FrameId frame = kNoFrame;
    for (; frame == kNoFrame && !rotation.over.empty(); rotation.over.pop_front()) {
      const PageUse over = rotation.over.front();
      const FrameId held = state_.frame_of(model, layout.uses[over]);
      const bool later = first_use(layout, layout.uses[over]) > use;
      if (later && held != kNoFrame && last_use_[held] == ReleasePoint{step, over}) frame = held;
    }
    if (frame == kNoFrame) return;
    fetch(model, page, frame);
  }
}

}  // namespace computron
