#include "computron/runtime/residency.h"

namespace computron {

Residency::Residency(int stage, std::vector<const Image*> images, const HostStore& host, Device& device, int frames,
                     std::size_t frame_bytes, CopyStream& link, Stream& compute, VerifySwap verify)
    : stage_(stage),
      images_(std::move(images)),
      compute_(compute),
      pool_(device, frames, frame_bytes),
      swapper_(host, pool_, link, compute, verify),
      state_(images_, frames) {}

// The state as the step's pass finds it. Fetches enter it in the order of the link: from the first one on that waits
// for a use of this very step, they are refills, and come later, one by one.
void Residency::begin(const Step& step) {
  const StagePlan& plan = step.stages[stage_];
  for (const SequenceId id : step.closed) state_.close(id);
  for (const CacheChange& change : plan.caches) {
    state_.change_cache(change);
    for (const FrameId frame : change.added) compute_.wait(pool_.filled(frame));  // no late copy may land in it
  }
  refills_.assign(plan.fetches.begin(), plan.fetches.end());
  place_until({step.id - 1, UsePoint::kEnd});
  for (const SequenceChunk& chunk : step.chunks) state_.extend(step.model, chunk);
}

void Residency::place_until(UsePoint point) {
  for (; !refills_.empty() && refills_.front().after <= point; refills_.pop_front()) state_.place(refills_.front());
}

void Residency::passed(UsePoint point) {
  place_until(point);
  swapper_.passed(point);
}

ResidentPage StepPages::acquire(PageUse use) {
  const PageId page = residency_.images_[step_.model]->uses[use];
  const FrameId frame = residency_.state_.frame_of(step_.model, page);
  ensure(frame != kNoFrame, "step uses a page that has no frame");
  return {residency_.pool_.frame(frame), &residency_.swapper_.ready(step_.model, page, frame)};
}

}  // namespace computron
