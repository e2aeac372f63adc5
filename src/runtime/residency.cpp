#include "computron/runtime/residency.h"

#include <algorithm>

namespace computron {

Residency::Residency(int stage, std::vector<const ShardLayout*> layouts, const HostStore& host, Device& device,
                     const Sizes& sizes, CopyStream& copy_stream, Stream& compute, VerifySwap verify)
    : stage_(stage),
      layouts_(std::move(layouts)),
      compute_(compute),
      pool_(device, sizes.frames, sizes.frame_bytes, sizes.adapter_slots, sizes.adapter_slot_bytes),
      offload_area_(device, sizes.host_slots, sizes.frame_bytes),
      swapper_(host, offload_area_, pool_, copy_stream, compute, verify),
      accepted_caches_(layouts_.size()),
      state_(layouts_, sizes.frames, sizes.host_slots, sizes.adapter_slots),
      fetched_since_pass_(layouts_.size(), false) {}

void Residency::accept(const Step& step) {
  const StagePlan& plan = step.stages[stage_];
  std::vector<Transfer> transfers;
  for (const CacheChange& change : plan.caches) move_cache(step.id, change, transfers);
  for (const Fetch& f : plan.fetches) {
    ensure(f.model < layouts_.size() && static_cast<int>(f.page) < layouts_[f.model]->pages(), "fetch names no page");
    const PageRef page = state_.shared().first({f.model, f.page});
    transfers.push_back({Transfer::kFetch, step.id, f.after, f.frame, page.model, page.page});
  }
  swapper_.submit(transfers);
}

// Checks only what the copies depend on; StageState checks the rest when the change is executed.
void Residency::move_cache(StepId step, const CacheChange& change, std::vector<Transfer>& transfers) {
  ensure(change.model < accepted_caches_.size(), "cache change names no model");
  std::vector<FrameId>& list = accepted_caches_[change.model];
  ensure(change.taken <= list.size(), "more cache frames taken than there are");
  const std::vector<FrameId> left(list.end() - change.taken, list.end());
  list.resize(list.size() - change.taken);
  list.insert(list.end(), change.added.begin(), change.added.end());
  if (change.slots.empty()) return;

  const bool offload = change.kind == CacheChange::kOffload;
  const std::vector<FrameId>& frames = offload ? left : change.added;
  ensure(frames.size() == change.slots.size(), "as many cache frames as slots are moved");
  for (std::size_t i = 0; i < frames.size(); ++i) {
    ensure(static_cast<int>(frames[i]) < pool_.frames() && static_cast<int>(change.slots[i]) < offload_area_.slots(),
           "a cache is moved out of the pool or the offload area");
    transfers.push_back({offload ? Transfer::kOffload : Transfer::kReload, step, change.after, frames[i], change.model,
                         change.slots[i]});
  }
}

// Makes the state the one that the step's pass finds. Fetches enter it in the order of the copy stream. The first one
// that waits for a use of this very step is a refill, and so are all behind it: they enter during the pass, one by one.
void Residency::begin(const Step& step) {
  const StagePlan& plan = step.stages[stage_];
  swapper_.expect_caches_moved(step.id);
  for (const SequenceId id : step.closed) state_.close(id);
  for (const CacheChange& change : plan.caches) {
    state_.change_cache(change);
    for (const FrameId frame : change.added) compute_.wait(pool_.filled(frame));  // reloaded, or no late copy lands
  }
  refills_.assign(plan.fetches.begin(), plan.fetches.end());
  place_until({step.id - 1, ReleasePoint::kEnd});
  for (const SequenceChunk& chunk : step.chunks) state_.extend(step.model_of(chunk), chunk);
}

void Residency::place_until(ReleasePoint point) {
  for (; !refills_.empty() && refills_.front().after <= point; refills_.pop_front()) {
    const Fetch& fetch = refills_.front();
    state_.place(fetch);
    state_.shared().for_each({fetch.model, fetch.page},
                             [this](const PageRef& page) { fetched_since_pass_[page.model] = true; });
  }
}

void Residency::released(ReleasePoint point) {
  place_until(point);
  swapper_.released(point);
}

// What begin() has left in refills_ waits for uses of this step, or is on the copy stream behind a fetch that does.
StepPages::StepPages(Residency& residency, const Step& step)
    : residency_(residency),
      step_(step),
      refilled_(std::any_of(residency.refills_.begin(), residency.refills_.end(),
                            [&](const Fetch& fetch) {
                              return residency.state_.shared().has(step.model, {fetch.model, fetch.page});
                            })),
      at_rest_(!residency.fetched_since_pass_[step.model] && residency.refills_.empty() &&
               residency.state_.resident_pages(step.model) == residency.layouts_[step.model]->pages()) {
  if (!step.chunks.empty()) residency.fetched_since_pass_[step.model] = false;
}

void StepPages::wait_for_all(Stream& compute) {
  for (PageUse use = 0; use < residency_.layouts_[step_.model]->uses.size(); ++use) compute.wait(*fetched(use).ready);
}

// A pass that wants no outputs need not have waited for the head's pages, so to be at rest is not to be there.
ResidentPage StepPages::acquire(PageUse use) {
  const ResidentPage page = fetched(use);
  const bool is_there = held_ || (at_rest_ && page.ready->query());
  return is_there ? ResidentPage{page.data, nullptr} : page;
}

ResidentPage StepPages::fetched(PageUse use) const { return residency_.acquire(step_.model, use); }

ResidentPage Residency::acquire(ModelId model, PageUse use) {
  const PageId page = layouts_[model]->uses[use];
  const FrameId frame = state_.frame_of(model, page);
  ensure(frame != kNoFrame, "step uses a page that has no frame");
  const PageRef held = state_.shared().first({model, page});
  return {pool_.frame(frame), &swapper_.ready(held.model, held.page, frame)};
}

RiderPages::RiderPages(Residency& residency, ModelId model) : residency_(residency), model_(model) {
  ensure(residency.state_.resident_pages(model) == residency.layouts_[model]->pages(), "a rider's page is not there");
}

ResidentPage RiderPages::acquire(PageUse use) { return residency_.acquire(model_, use); }

}  // namespace computron
