// How many frames of the pool a model's cache may have, and how they come to it: what is free, pages of models that run
// later, and the caches of other models, which are offloaded to host memory or dropped.
//
//   frames of a stage   pinned models | the model's own pages, or some of them | its cache | caches of others | the
//   rest
//
// Changes pools and the blocks of models' caches; sequences whose cache is dropped begin again. It never looks at
// models that have neither running sequences nor cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "computron/sched/cache_sums.h"
#include "computron/sched/scheduler_state.h"

namespace computron {

class CacheAllocator {
 public:
  // Borrows the state. ConfigError when a model and one block of its cache can never run in the pool of some stage
  // beside the pinned models; `names`: [model], for its message.
  CacheAllocator(SchedulerState& state, const std::vector<std::string>& names);

  // Whether a pass of the model fits every pool with so many blocks, beside the pinned models, whatever is evicted.
  bool can_ever_fit(ModelId model, int blocks) const;
  // Whether the model is to run out-of-core with so many blocks: its pages do not fit beside them and the pinned
  // models, whatever else is evicted.
  bool exceeds_pool(ModelId model, int blocks) const;

  // Blocks that the model may have without evicting a cache that is still wanted, or its own pages. A model that
  // exceeds the pool anyway, by its size or with a single sequence's cache, may have half of what it could.
  int blocks_beside_others(ModelId model) const;
  // Blocks that it can have from free frames and pages of models that run later, beside what the cache of another one
  // will want, if one is given. `urgency`: and beside what those of other running models of its family will grow by,
  // the first one of the run order and those that are less urgent aside.
  int blocks_in_reach(ModelId model, std::optional<ModelId> beside = {},
                      std::optional<std::int32_t> urgency = {}) const;
  // Blocks that it can have from free frames that `first`, which is still being fetched, will not want.
  int blocks_to_spare(ModelId model, ModelId first) const;
  // Blocks that it can have from free frames.
  int blocks_in_free_frames(ModelId model) const;
  // Frames that the model's cache will want when it runs, beyond what it has.
  int frames_to_come(ModelId model, std::size_t stage) const {
    return frames_to_come(model, stage, state_.options.max_seqs);
  }

  // For a pass: the model's cache is in frames and has so many blocks from now on. Caches of other models are evicted
  // for it, those that run last first, as many as it takes, and frames that caches do not need are given back. False,
  // and nothing is changed, while one of those is in flight: which of its sequences go on is known when it is not.
  bool allocate(ModelId model, int blocks);
  // For a rider: the same, of frames in reach alone. False, and nothing is changed, where it takes more, or its cache
  // is offloaded.
  bool allocate_in_reach(ModelId model, int blocks);
  // Frees the frames that caches do not need at the moment, but for the cache of the model that runs, if one does. With
  // prefix caching, only where that one, or the next, finds no frames without them.
  void trim(std::optional<ModelId> runs);

 private:
  int frames_to_come(ModelId model, std::size_t stage, int sequences) const;
  void check_slots(ModelId model, std::size_t stage, const std::vector<std::string>& names) const;
  const KvGeometry& cache(ModelId model, std::size_t stage) const { return state_.models[model].caches[stage]; }
  int room(ModelId model, std::size_t stage) const;
  int fewest_pages(ModelId model, std::size_t stage) const;
  int frames_in_use(ModelId model, std::size_t stage) const;
  int caches_beside(ModelId model, std::size_t stage) const;
  int caches_that_stay(ModelId model, std::size_t stage) const;
  const CacheSums& sums() const;
  int frames_short(ModelId model, int blocks, std::size_t stage) const;
  std::optional<std::vector<ModelId>> caches_to_evict(ModelId model, int blocks) const;
  std::vector<ModelId> evictable_caches(ModelId model) const;
  void evict(ModelId model);
  bool cheaper_to_offload(ModelId model) const;
  void place(ModelId model, int blocks);
  void trim_all_but(std::optional<ModelId> runs);
  void trim_cache(ModelId model);
  bool keeps_cached_blocks(std::optional<ModelId> runs, int blocks) const;

  SchedulerState& state_;
  std::vector<int> pinned_pages_;  // [stage] of all pinned models
  mutable CacheSums sums_;         // as models were when sums() was called last
};

}  // namespace computron
