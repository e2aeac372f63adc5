#include "computron/sched/cache_allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "computron/base/size.h"

namespace computron {

CacheAllocator::CacheAllocator(SchedulerState& state, const std::vector<std::string>& names)
    : state_(state), sums_(state.families) {
  for (const StagePool& pool : state_.pools) pinned_pages_.push_back(pool.counts().pinned_pages());
  for (const ModelId model : state_.work.with_running()) state_.work.note_cache(model);
  for (ModelId model = 0; model < state_.models.size(); ++model) {
    for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
      check_slots(model, stage, names);
      const int weights = fewest_pages(model, stage), blocks = cache(model, stage).frames_for(1);
      const int pinned = state_.options.frames - room(model, stage);  // of other models
      if (weights + blocks + pinned <= state_.options.frames) continue;
      const std::size_t page_bytes = state_.layout(model, stage).page_bytes;
      throw ConfigError(
          fmt::format("model {}: on stage {} a pass needs {} ({} pages at a time, {} of cache, {} of pinned models), "
                      "but the pool has {} frames of {}",
                      names[model], stage, format_size((weights + blocks + pinned) * page_bytes), weights, blocks,
                      pinned, state_.options.frames, format_size(page_bytes)));
    }
  }
}

// All of an adapter's pages are in slots during its passes.
void CacheAllocator::check_slots(ModelId model, std::size_t stage, const std::vector<std::string>& names) const {
  const StagePool& pool = state_.pools[stage];
  const int pages = pool.pages(model, FrameKind::kSlot), pinned = pool.counts().pinned_pages(FrameKind::kSlot);
  const int own = state_.models[model].pinned ? 0 : pages;
  if (pages == 0 || own + pinned <= state_.options.adapter_slots) return;
  const std::size_t slot_bytes = state_.layout(model, stage).slot_bytes;
  throw ConfigError(
      fmt::format("model {}: on stage {} its adapter needs {} slots of {} ({} of them for pinned models), but "
                  "the pool has {}",
                  names[model], stage, own + pinned, format_size(slot_bytes), pinned, state_.options.adapter_slots));
}

// --- Room -------------------------------------------------------------------------------------------------------

// Frames that the pages of other, pinned models never take, but for those that it has, too.
int CacheAllocator::room(ModelId model, std::size_t stage) const {
  const StagePool& pool = state_.pools[stage];
  const int its_own = state_.models[model].pinned ? pool.pages(model) : pool.counts().staying_pages(model);
  return state_.options.frames - (pinned_pages_[stage] - its_own);
}

// With which a pass of the model can run.
int CacheAllocator::fewest_pages(ModelId model, std::size_t stage) const {
  const StagePool& pool = state_.pools[stage];
  return state_.models[model].pinned ? pool.pages(model) : pool.fewest_frames(model);
}

bool CacheAllocator::can_ever_fit(ModelId model, int blocks) const {
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    if (fewest_pages(model, stage) + cache(model, stage).frames_for(blocks) > room(model, stage)) return false;
  }
  return true;
}

bool CacheAllocator::exceeds_pool(ModelId model, int blocks) const {
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const int frames = cache(model, stage).frames_for(blocks);
    if (state_.pools[stage].pages(model) > room(model, stage) - frames) return true;
  }
  return false;
}

int CacheAllocator::blocks_beside_others(ModelId model) const {
  int blocks = std::numeric_limits<int>::max();
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const StagePool& pool = state_.pools[stage];
    const KvGeometry& geometry = cache(model, stage);
    const int room = this->room(model, stage), others = caches_that_stay(model, stage);
    const int used = geometry.frames_for(state_.work[model].cache().end_of_used());
    const bool too_large = pool.pages(model) + used > room;
    const int most = too_large ? (room - others - pool.fewest_frames(model)) / 2 : room - others - pool.pages(model);
    blocks = std::min(blocks, geometry.blocks_in(std::max(most, 0)));
  }
  return blocks;
}

int CacheAllocator::blocks_in_reach(ModelId model, std::optional<ModelId> beside,
                                    std::optional<std::int32_t> urgency) const {
  int blocks = std::numeric_limits<int>::max();
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const StagePool& pool = state_.pools[stage];
    int reserved = beside ? frames_to_come(*beside, stage) : 0;
    if (urgency) reserved += sums().to_come_beside(model, state_.agenda.run_order().front(), stage, *urgency);
    const int more = std::max(pool.available(state_.agenda.evictable_for(model, stage)) - reserved, 0);
    blocks = std::min(blocks, cache(model, stage).blocks_in(pool.cache_frames(model) + more));
  }
  return blocks;
}

int CacheAllocator::blocks_to_spare(ModelId model, ModelId first) const {
  int blocks = std::numeric_limits<int>::max();
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const StagePool& pool = state_.pools[stage];
    const int wanted = pool.missing_pages(first, FrameKind::kWhole) + frames_to_come(first, stage);
    const int more = std::max(pool.free_frames() - wanted, 0);
    blocks = std::min(blocks, cache(model, stage).blocks_in(pool.cache_frames(model) + more));
  }
  return blocks;
}

int CacheAllocator::blocks_in_free_frames(ModelId model) const {
  int blocks = std::numeric_limits<int>::max();
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const StagePool& pool = state_.pools[stage];
    blocks = std::min(blocks, cache(model, stage).blocks_in(pool.cache_frames(model) + pool.free_frames()));
  }
  return blocks;
}

// With so many sequences, those that run first.
int CacheAllocator::frames_to_come(ModelId model, std::size_t stage, int sequences) const {
  const StagePool& pool = state_.pools[stage];
  const int wanted = cache(model, stage).frames_for(state_.work[model].blocks_expected(sequences));
  const int most = std::max(room(model, stage) - pool.pages(model), 0);
  return std::max(std::min(wanted, most) - pool.cache_frames(model), 0);
}

// Frames of the model's cache up to the end of the used blocks: what is left of it when the rest is given back.
int CacheAllocator::frames_in_use(ModelId model, std::size_t stage) const {
  const int held = cache(model, stage).frames_for(state_.work[model].cache().end_of_used());
  return std::min(held, state_.pools[stage].cache_frames(model));
}

// Frames in use of the caches of other models with running sequences.
int CacheAllocator::caches_beside(ModelId model, std::size_t stage) const {
  int frames = 0;
  for (const ModelId other : state_.work.with_running()) {
    if (other != model) frames += frames_in_use(other, stage);
  }
  return frames;
}

// But for those of which all sequences are certain to end with what is in flight, and those that are less urgent.
int CacheAllocator::caches_that_stay(ModelId model, std::size_t stage) const {
  return sums().in_use_beside(model, stage, state_.work[model].urgency());
}

// What pools have of a model's cache changes with an edit of its work, or is noted there.
const CacheSums& CacheAllocator::sums() const {
  state_.work.visit_edited(WorkTable::Reader::kCaches, [this](ModelId model) {
    const ModelWork& work = state_.work[model];
    const int running = work.sequences().running();
    CacheSums::Part part{.goes_on = work.sequences().sums().totals().unfinished > 0, .urgency = work.urgency()};
    for (std::size_t stage = 0; running > 0 && stage < state_.stages(); ++stage) {
      part.in_use.push_back(frames_in_use(model, stage));
      part.to_come.push_back(frames_to_come(model, stage, running));
    }
    sums_.set(model, std::move(part));
  });
  return sums_;
}

// Frames of the caches of others that must be evicted for the model's pass.
int CacheAllocator::frames_short(ModelId model, int blocks, std::size_t stage) const {
  const StagePool& pool = state_.pools[stage];
  const int all = pool.pages(model);
  const int weights = exceeds_pool(model, blocks) ? std::min(2 * pool.fewest_frames(model), all) : all;
  const int frames = cache(model, stage).frames_for(blocks), room = this->room(model, stage);
  return std::min(weights, room - frames) + frames - (room - caches_beside(model, stage));
}

// --- Allocating -------------------------------------------------------------------------------------------------

bool CacheAllocator::allocate(ModelId model, int blocks) {
  const std::optional<std::vector<ModelId>> displaced = caches_to_evict(model, blocks);
  if (!displaced) return false;
  if (!keeps_cached_blocks(model, blocks)) trim_all_but(model);
  for (const ModelId other : *displaced) evict(other);
  place(model, blocks);
  return true;
}

bool CacheAllocator::allocate_in_reach(ModelId model, int blocks) {
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const StagePool& pool = state_.pools[stage];
    const int more = cache(model, stage).frames_for(blocks) - pool.cache_frames(model);
    if (pool.offloaded(model) || more > pool.available(state_.agenda.evictable_for(model, stage))) return false;
  }
  state_.work.edit(model, [blocks](ModelWork& work) { work.set_blocks(blocks); });
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    auto evictable = state_.agenda.evictable_for(model, stage);
    state_.pools[stage].grow_cache(model, cache(model, stage).frames_for(blocks), evictable);
  }
  return true;
}

// Nothing while one of them is in flight.
std::optional<std::vector<ModelId>> CacheAllocator::caches_to_evict(ModelId model, int blocks) const {
  std::vector<int> missing;
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) missing.push_back(frames_short(model, blocks, stage));
  const auto enough = [&missing] { return std::ranges::all_of(missing, [](int frames) { return frames <= 0; }); };
  std::vector<ModelId> displaced;
  if (enough()) return displaced;
  for (const ModelId other : evictable_caches(model)) {
    if (enough()) break;
    if (state_.work[other].any_in_flight()) return std::nullopt;
    for (std::size_t stage = 0; stage < state_.stages(); ++stage) missing[stage] -= frames_in_use(other, stage);
    displaced.push_back(other);
  }
  return displaced;
}

// Models whose caches could be evicted for this one's; those that run last first.
std::vector<ModelId> CacheAllocator::evictable_caches(ModelId model) const {
  std::vector<ModelId> others;
  for (const ModelId other : state_.work.with_running()) {
    if (other != model && state_.pools.front().cache_frames(other) > 0) others.push_back(other);
  }
  const RunOrder& order = state_.agenda.run_order();
  std::ranges::sort(others, [&order](ModelId a, ModelId b) {
    return order.place(a) != order.place(b) ? order.place(a) > order.place(b) : a < b;
  });
  return others;
}

void CacheAllocator::evict(ModelId model) {
  const bool offload = cheaper_to_offload(model);
  if (!offload) {
    const auto restart = [this](ModelWork& work) { return work.restart_running(state_.last_sequence); };
    for (const SequenceId id : state_.work.edit(model, restart)) state_.close(id);
  }
  state_.work.note_cache(model);
  for (StagePool& pool : state_.pools) offload ? pool.offload_cache(model) : pool.release_cache(model);
}

// Offloading the model's cache and reloading it over the host link, against computing its tokens again.
bool CacheAllocator::cheaper_to_offload(ModelId model) const {
  double move_s = 0;
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const int frames = state_.pools[stage].cache_frames(model);
    if (frames > state_.pools[stage].free_slots()) return false;
    move_s = std::max(move_s, 2 * state_.costs.transfer_s(stage, frames * state_.layout(model, stage).page_bytes));
  }
  const int tokens = state_.work[model].sequences().computed_tokens(), most = state_.options.max_batch_tokens;
  return move_s < ceil_div(tokens, most) * state_.costs.pass_s(model, std::min(tokens, most));
}

// The cache is reloaded if it was offloaded.
void CacheAllocator::place(ModelId model, int blocks) {
  state_.work.edit(model, [blocks](ModelWork& work) { work.set_blocks(blocks); });
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    StagePool& pool = state_.pools[stage];
    // Its own last pages, if it comes to that.
    auto evictable = state_.agenda.evictable_for(model, stage, /*and_itself=*/true);
    if (pool.offloaded(model)) pool.reload_cache(model, evictable);
    pool.grow_cache(model, cache(model, stage).frames_for(blocks), evictable);
  }
}

void CacheAllocator::trim(std::optional<ModelId> runs) {
  if (!keeps_cached_blocks(runs, /*blocks=*/0)) trim_all_but(runs);
}

void CacheAllocator::trim_all_but(std::optional<ModelId> runs) {
  const std::span<const ModelId> with_cache = state_.work.with_cache();
  std::vector<ModelId> models(with_cache.begin(), with_cache.end());
  std::ranges::sort(models);
  for (const ModelId model : models) {
    if (model != runs) trim_cache(model);
  }
}

void CacheAllocator::trim_cache(ModelId model) {
  const ModelWork& work = state_.work[model];
  const bool idle = work.sequences().running() == 0;
  const int held = idle ? 0 : work.cache().end_of_used();
  if (!idle && state_.pools.front().offloaded(model)) return;
  int blocks = work.cache().count();
  bool less = false;
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const int frames = cache(model, stage).frames_for(held);
    less |= frames < state_.pools[stage].cache_frames(model);
    blocks = std::min(blocks, cache(model, stage).blocks_in(frames));
  }
  if (!less && !idle) return;
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    state_.pools[stage].shrink_cache(model, cache(model, stage).frames_for(held));
  }
  state_.work.edit(model, [blocks](ModelWork& edited) { edited.set_blocks(blocks); });
}

// Whether caches keep the frames of cached blocks: as long as the model that runs, or comes next, finds frames without
// them, for what its cache is expected to want and for `blocks` of it, which a pass takes whatever was expected.
bool CacheAllocator::keeps_cached_blocks(std::optional<ModelId> runs, int blocks) const {
  const RunOrder& order = state_.agenda.run_order();
  if (!state_.options.prefix_caching || (!runs && order.empty())) return state_.options.prefix_caching;
  const ModelId next = runs ? *runs : order.front();
  for (std::size_t stage = 0; stage < state_.stages(); ++stage) {
    const StagePool& pool = state_.pools[stage];
    const int taken = cache(next, stage).frames_for(blocks) - pool.cache_frames(next);
    const int more = std::max(taken, frames_to_come(next, stage));
    if (pool.free_frames() < pool.missing_pages(next, FrameKind::kWhole) + more) return false;
  }
  return true;
}

}  // namespace computron
