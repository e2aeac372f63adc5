// Rank 0's picture of one stage's pool as it will be after everything planned, and how frames are found.
//
//   free frames first, those whose last use is longest ago foremost; then pages are evicted, of the models in the order
//   given, each model's last page first: a model that loses pages keeps its first ones and can start at once
//
// A page that several models have (runtime/shared_pages.h) is counted once wherever frames are counted, is missing from
// all of them or from none, and is evicted for something only when all of them may lose pages for it: at the turn of
// the one that comes last.
//
// Pages of adapters that lie in slots (ShardLayout::kind_of) are fetched and evicted the same way, among slots: small
// frames, of which the pool has some beside its frames. They are counted apart, and none of a model that runs rotates.
//
// A model larger than its part of the pool runs out-of-core: some of its pages stay resident, evenly spread over the
// pass, and the others rotate through the frames left over, each fetched behind the use of an earlier one while the
// resident ones between them are computed with.
//
// Every method that changes something also writes it into plan(), the stage's part of the step that is being planned:
// what is planned here is what the ranks do. It owns this bookkeeping only; frames are numbers, and no memory of a
// device is touched. Error{kInternal} wherever frames are not to be had.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "computron/runtime/stage_state.h"
#include "computron/sched/page_counts.h"

namespace computron {

class StagePool;

inline std::size_t index_of(FrameKind kind) { return static_cast<std::size_t>(kind); }

// Uses that may have to be resident together: from the first not over before some use, to that use.
int uses_together(const ShardLayout& layout);

// Models whose pages may be evicted for something, the first to lose some first. Of the pages of several models only
// those count that no other model has.
class Evictable {
 public:
  virtual ~Evictable() = default;
  // Of theirs that are resident in frames of a kind.
  virtual int pages(const StagePool& pool, FrameKind kind) const = 0;
  // The frame of that kind of the first page to go.
  virtual std::optional<FrameId> first(const StagePool& pool, FrameKind kind) = 0;
};

// Those of a list.
class EvictableModels : public Evictable {
 public:
  explicit EvictableModels(std::vector<ModelId> models);
  int pages(const StagePool& pool, FrameKind kind) const override;
  std::optional<FrameId> first(const StagePool& pool, FrameKind kind) override;

 private:
  // [model] Its place in models_; behind all of them where it is not there.
  std::size_t place(ModelId model) const;
  std::vector<ModelId> models_;
  std::unordered_map<ModelId, std::size_t> places_;
};

class StagePool {
 public:
  // `layouts`: [model], borrowed. `host_slots`: frames of host memory that offloaded caches may take. `pinned`:
  // [model], or empty if none is. `adapter_slots`: beside the frames. What is shared is kept up to date by set of
  // models (SharedPages).
  StagePool(const std::vector<const ShardLayout*>& layouts, int frames, int host_slots = 0,
            const std::vector<bool>& pinned = {}, int adapter_slots = 0);

  // In frames; in frames or slots.
  int pages(ModelId model) const { return pages(model, FrameKind::kWhole); }
  int pages(ModelId model, FrameKind kind) const { return state_.layout(model).pages(kind); }
  int missing_pages(ModelId model, FrameKind kind) const {
    return pages(model, kind) - counts_.resident_pages(model, kind);
  }
  // Of both.
  int missing_pages(ModelId model) const { return state_.layout(model).pages() - state_.resident_pages(model); }
  // What is resident and what is missing, by model and over models.
  const PageCounts& counts() const { return counts_; }
  int cache_frames(ModelId model) const { return static_cast<int>(state_.cache(model).size()); }
  bool offloaded(ModelId model) const { return !state_.offloaded(model).empty(); }
  int free_slots() const { return static_cast<int>(free_slots_.size()); }
  // Fewest frames of weights that a pass of the model can run with: what one operation binds, and no lookahead, beside
  // pages that are pinned for other models.
  int fewest_frames(ModelId model) const {
    return std::min(spans_[model] + counts_.staying_pages(model), pages(model));
  }
  // The frame, of a kind, of the model's last resident page that it may lose where the models may lose pages that
  // `may_lose` says: all others that have the page. kNoFrame: there is none.
  template <class MayLose>
  FrameId last_page(ModelId model, FrameKind kind, const MayLose& may_lose) const;
  int free_frames(FrameKind kind = FrameKind::kWhole) const { return static_cast<int>(free_[index_of(kind)].size()); }
  // Frames of a kind that something new could take: free ones and those of evictable pages.
  int available(const Evictable& evictable, FrameKind kind = FrameKind::kWhole) const {
    return free_frames(kind) + evictable.pages(*this, kind);
  }

  // What has been planned since the last take_plan().
  const StagePlan& plan() const { return plan_; }
  StagePlan take_plan() { return std::exchange(plan_, {}); }

  // The cache of a model, for a step whose pass has not been planned yet.
  void grow_cache(ModelId model, int frames, Evictable& evictable);
  // Frames beyond the first `frames` are given back; where `frames` is 0, so is what has been offloaded.
  void shrink_cache(ModelId model, int frames);
  // All of it, offloaded or not; its contents are lost.
  void release_cache(ModelId model);
  // To host memory; needs cache_frames() free slots.
  void offload_cache(ModelId model);
  // Back into frames, which may be taken from evictable pages; its slots become free.
  void reload_cache(ModelId model, Evictable& evictable);

  // What a pass of `model` in step `step` needs, in the order of its uses. `again`: another pass will follow, so pages
  // that it lacks may come in behind this one. Needs fewest_frames() at least.
  void plan_pass(StepId step, ModelId model, Evictable& evictable, bool again);
  // The pass that step `step` has been planned with has a rider of this model, which misses no page: its pages and its
  // cache are used until the step's end.
  void ride_along(StepId step, ModelId model);
  // Pages that the model misses, in order, until they take `bytes` over the host link or but `reserve` frames are left
  // to take.
  void prefetch(ModelId model, Evictable& evictable, std::size_t bytes, int reserve);

  // Sequences are begun, extended and closed here: they take no frames.
  StageState& state() { return state_; }
  const StageState& state() const { return state_; }

 private:
  // Of one out-of-core pass: which pages stay resident, and in which order the others' frames become free.
  struct Rotation {
    std::int64_t resident = 0;   // pages that stay, of pages()
    std::deque<PageUse> over;    // uses of this pass whose pages rotate, the first to end first
    std::int64_t farthest = -1;  // pages of later uses have been evicted or stay
    std::int64_t pages = 0;      // that are not pinned for other models
    // `resident` of `pages` stay, evenly spread. `number`: the page's among them; below 0 for one that is pinned.
    bool rotates(std::int64_t number) const {
      return number >= 0 && (number + 1) * resident / pages == number * resident / pages;
    }
  };

  FrameId find_frame(Evictable& evictable, FrameKind kind);
  FrameId find_rotating_frame(StepId step, ModelId model, PageUse use, Evictable& evictable, Rotation& rotation);
  void fetch_behind(StepId step, ModelId model, Rotation& rotation);
  void fetch(ModelId model, PageId page, FrameId frame);
  void free_cache_frames(ModelId model, int from = 0);
  void evict_page(FrameId frame);

  StageState state_;
  StagePlan plan_;
  PageCounts counts_;
  std::vector<int> spans_;                     // [model] page uses that must be resident together
  mutable std::vector<PageId> last_resident_;  // [model] no page behind it is resident
  std::vector<ReleasePoint> last_use_;         // [frame] of what it holds, or held
  std::vector<ReleasePoint> cache_use_;        // [model] of its cache
  StepId last_step_ = 0;                       // whose pass has been planned
  std::array<std::deque<FrameId>, 2> free_;    // [FrameKind] used from the front
  std::deque<HostSlot> free_slots_;
};

template <class MayLose>
FrameId StagePool::last_page(ModelId model, FrameKind kind, const MayLose& may_lose) const {
  if (counts_.resident_pages(model, kind) == 0) return kNoFrame;
  const SharedPages& shared = state_.shared();
  int candidates = counts_.pages_alone(model, kind);
  std::vector<int> kept;  // sets whose pages another model keeps
  for (const int set : shared.sets_of(model)) {
    if (shared.kind_of(set) != kind) continue;
    const bool lost =
        std::ranges::all_of(shared.models_of(set), [&](ModelId other) { return other == model || may_lose(other); });
    if (lost) {
      candidates += counts_.resident_pages_of(set);
    } else {
      kept.push_back(set);
    }
  }
  if (candidates == 0) return kNoFrame;
  PageId& last = last_resident_[model];
  while (state_.frame_of(model, last) == kNoFrame) --last;
  for (PageId page = last;; --page) {
    const FrameId frame = state_.frame_of(model, page);
    if (frame == kNoFrame || state_.kind_of(frame) != kind) continue;
    if (kept.empty() || std::ranges::find(kept, shared.set_of({model, page})) == kept.end()) return frame;
  }
}

}  // namespace computron
