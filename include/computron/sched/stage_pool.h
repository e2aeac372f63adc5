// Rank 0's picture of one stage's pool as it will be after everything planned, and how frames are found.
//
//   free frames first, those whose last use is longest ago foremost; then pages are evicted, of the models in the order
//   given, each model's last page first: a model that loses pages keeps its first ones and can start at once
//
// A model larger than its part of the pool runs out-of-core: some of its pages stay resident, evenly spread over the
// pass, and the others rotate through the frames left over, each fetched behind the use of an earlier one while the
// resident ones between them are computed with.
//
// Every method that changes something also writes it into plan(), the stage's part of the step that is being planned:
// what is planned here is what the ranks do. It owns this bookkeeping only; frames are numbers, and no memory of a
// device is touched. Error{kInternal} wherever frames are not to be had.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "computron/runtime/stage_state.h"
#include "computron/sched/model_list.h"

namespace computron {

class StagePool;

// Uses that may have to be resident together: from the first not over before some use, to that use.
int uses_together(const ShardLayout& layout);

// Models whose pages may be evicted for something, the first to lose some first.
class Evictable {
 public:
  virtual ~Evictable() = default;
  // Of theirs that are resident.
  virtual int pages(const StagePool& pool) const = 0;
  // The first of them that has a page resident.
  virtual std::optional<ModelId> first(const StagePool& pool) = 0;
};

// Those of a list.
class EvictableModels : public Evictable {
 public:
  explicit EvictableModels(std::vector<ModelId> models) : models_(std::move(models)) {}
  int pages(const StagePool& pool) const override;
  std::optional<ModelId> first(const StagePool& pool) override;

 private:
  std::vector<ModelId> models_;
};

class StagePool {
 public:
  // `layouts`: [model], borrowed. `host_slots`: frames of host memory that offloaded caches may take. `pinned`:
  // [model], or empty if none is.
  StagePool(const std::vector<const ShardLayout*>& layouts, int frames, int host_slots = 0,
            const std::vector<bool>& pinned = {});

  int pages(ModelId model) const { return state_.layout(model).pages(); }
  int missing_pages(ModelId model) const { return pages(model) - state_.resident_pages(model); }
  // What it would take over the host link (ShardLayout::link_bytes).
  std::size_t missing_bytes(ModelId model) const { return missing_bytes_[model]; }
  int cache_frames(ModelId model) const { return static_cast<int>(state_.cache(model).size()); }
  bool offloaded(ModelId model) const { return !state_.offloaded(model).empty(); }
  int free_slots() const { return static_cast<int>(free_slots_.size()); }
  // Fewest frames of weights that a pass of the model can run with: what one operation binds, and no lookahead.
  int fewest_frames(ModelId model) const { return std::min(spans_[model], pages(model)); }
  // Models that have pages resident, in no order.
  std::span<const ModelId> resident_models() const { return resident_models_.models(); }
  int resident_pages(ModelId model) const { return state_.resident_pages(model); }
  // Resident pages of all models that are not pinned.
  int unpinned_pages() const { return unpinned_pages_; }
  int free_frames() const { return static_cast<int>(free_.size()); }
  // Frames that something new could take: free ones and those of evictable pages.
  int available(const Evictable& evictable) const { return free_frames() + evictable.pages(*this); }

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
    // `resident` of `pages` pages stay, evenly spread.
    bool rotates(std::int64_t page, std::int64_t pages) const {
      return (page + 1) * resident / pages == page * resident / pages;
    }
  };

  FrameId find_frame(Evictable& evictable);
  FrameId find_rotating_frame(StepId step, ModelId model, PageUse use, Evictable& evictable, Rotation& rotation);
  void fetch_behind(StepId step, ModelId model, Rotation& rotation);
  void fetch(ModelId model, PageId page, FrameId frame);
  void free_cache_frames(ModelId model, int from = 0);
  FrameId last_page(ModelId model);
  void evict_page(FrameId frame);

  StageState state_;
  StagePlan plan_;
  std::vector<bool> pinned_;  // [model]
  ModelList resident_models_;
  int unpinned_pages_ = 0;
  std::vector<int> spans_;                  // [model] page uses that must be resident together
  std::vector<std::size_t> missing_bytes_;  // [model] over the host link
  std::vector<PageId> last_resident_;       // [model] no page behind it is resident
  std::vector<ReleasePoint> last_use_;      // [frame] of what it holds, or held
  std::vector<ReleasePoint> cache_use_;     // [model] of its cache
  std::deque<FrameId> free_;                // used from the front
  std::deque<HostSlot> free_slots_;
};

}  // namespace computron
