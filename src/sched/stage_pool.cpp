#include "computron/sched/stage_pool.h"

namespace computron {

StagePool::StagePool(std::vector<const Image*> images, int frames) : state_(std::move(images), frames) {
  for (int f = frames - 1; f >= 0; --f) free_.push_back(static_cast<FrameId>(f));
}

void StagePool::resize_cache(ModelId model, int frames, std::span<const ModelId> coldest_first, StagePlan& plan) {
  CacheChange change{.model = model, .added = {}};
  const std::vector<FrameId>& list = state_.cache(model);
  for (int i = cache_frames(model); i > frames; --i) {
    ++change.taken;
    free_.push_back(list[i - 1]);
  }
  for (int i = cache_frames(model); i < frames; ++i) {
    // Placed one by one, so that the next search no longer sees the frame.
    const CacheChange one{.model = model, .added = {find_frame(coldest_first)}};
    change.added.push_back(one.added.front());
    state_.change_cache(one);
  }
  if (change.taken > 0) state_.change_cache({.model = model, .taken = change.taken, .added = {}});
  if (change.taken > 0 || !change.added.empty()) plan.caches.push_back(std::move(change));
}

void StagePool::fetch_missing(ModelId model, std::span<const ModelId> coldest_first, StagePlan& plan) {
  for (PageId page = 0; page < static_cast<PageId>(pages(model)); ++page) {
    if (state_.frame_of(model, page) != kNoFrame) continue;
    const Fetch fetch{.model = model, .page = page, .frame = find_frame(coldest_first), .after = {.step = 0}};
    state_.place(fetch);
    plan.fetches.push_back(fetch);
  }
}

FrameId StagePool::find_frame(std::span<const ModelId> coldest_first) {
  if (!free_.empty()) {
    const FrameId frame = free_.back();
    free_.pop_back();
    return frame;
  }
  for (const ModelId victim : coldest_first) {
    if (state_.resident_pages(victim) == 0) continue;
    for (auto page = static_cast<PageId>(pages(victim)); page-- > 0;) {
      if (const FrameId frame = state_.frame_of(victim, page); frame != kNoFrame) return frame;
    }
  }
  throw Error(ExitCode::kInternal, "internal: the plan needs more frames than the pool has");
}

}  // namespace computron
