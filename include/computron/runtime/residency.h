// Which pages are in which frames of this rank, now and for the steps to come.
//
//   accept(step)   when the step arrives: its cache moves and its fetches join the swapper's queue, and may start while
//                  earlier steps compute
//   begin(step)    in the order of execution: the state becomes the one that the step's pass finds
//   StepPages      during the pass: pages are acquired in the order of their uses; as uses are released, refills
//                  become due
//   finished(step) after the pass: copies no longer wait for what it used
//
// Two views of time live here, and must not be mixed: what has been *accepted* (accepted_caches_, the swapper's queue)
// runs ahead of what is being *executed* (state_). state_ is the one that digests are taken of; what a step uses is
// looked up there and nowhere else.
//
// A refill is a fetch whose frame is released by a use of the very step it is ordered by: it enters the state during
// the pass, when that use is released. All other fetches of a step enter the state in begin().
//
// Belongs to the thread that owns the compute stream.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "computron/model/pass.h"
#include "computron/runtime/frame_pool.h"
#include "computron/runtime/host_store.h"
#include "computron/runtime/stage_state.h"
#include "computron/runtime/swapper.h"

namespace computron {

class Residency {
 public:
  // How much of the device's and the host's memory.
  struct Sizes {
    int frames = 0;
    std::size_t frame_bytes = 0;
    int host_slots = 0;  // of the offload area, a frame each
    int adapter_slots = 0;
    std::size_t adapter_slot_bytes = 0;  // ShardLayout::slot_bytes
  };
  // Borrows layouts (this stage's), host pages and streams; owns the pool and the offload area.
  Residency(int stage, std::vector<const ShardLayout*> layouts, const HostStore& host, Device& device,
            const Sizes& sizes, CopyStream& copy_stream, Stream& compute, VerifySwap verify = VerifySwap::kOff);

  void accept(const Step& step);
  void begin(const Step& step);
  // The compute stream has been synchronized behind the step's pass.
  void finished(const Step& step) { swapper_.finished(step.id); }

  const StageState& state() const { return state_; }
  const FramePool& pool() const { return pool_; }

 private:
  friend class StepPages;
  friend class RiderPages;
  ResidentPage acquire(ModelId model, PageUse use);
  // Appends the copies that the change needs to `transfers`, and applies the change to accepted_caches_.
  void move_cache(StepId step, const CacheChange& change, std::vector<Transfer>& transfers);
  // Refills whose frames are released by `point` or before it enter the state.
  void place_until(ReleasePoint point);
  // Every use up to `point` is on the compute stream: refills that waited for one of them are due.
  void released(ReleasePoint point);

  int stage_;
  std::vector<const ShardLayout*> layouts_;
  Stream& compute_;
  FramePool pool_;
  OffloadArea offload_area_;
  Swapper swapper_;
  std::vector<std::vector<FrameId>> accepted_caches_;  // [model] cache lists as after the last accepted step
  StageState state_;                                   // as after the last begun step, without refills_
  std::deque<Fetch> refills_;                          // of the begun step: not in the state yet
  std::vector<bool> fetched_since_pass_;               // [model] a page has been placed since the last pass began
};

// The pages of one step's model during its pass; lives as long as the pass.
class StepPages : public PageSource {
 public:
  // Borrows both. To be made after residency.begin(step).
  StepPages(Residency& residency, const Step& step);

  ResidentPage acquire(PageUse use) override;
  void release_through(PageUse use) override {
    if (!held_) residency_.released({step_.id, use});
  }
  bool group_by_group() const override { return refilled_; }
  // Every page is where the model's last pass found it, and this step fetches into none of their frames. Then pages
  // that are there have no events, and the pass may be called more than once (Stream::run_capturable).
  bool at_rest() const override { return at_rest_; }
  // What `compute` is given next finds every page there. Requires at_rest().
  void wait_for_all(Stream& compute);
  // From here on uses are released by end() alone, since work that is called before it is launched
  // (Stream::run_capturable) would release them too early, and no page has an event. Requires wait_for_all().
  void hold_until_end() { held_ = true; }
  // All work of the step is on the compute stream: releases its last uses.
  void end() { residency_.released({step_.id, ReleasePoint::kEnd}); }

 private:
  ResidentPage fetched(PageUse use) const;  // with the event of its copy

  Residency& residency_;
  const Step& step_;
  const bool refilled_;  // the model exceeds the pool: pages of this pass are fetched into frames that it releases
  const bool at_rest_;
  bool held_ = false;
};

// The pages of a rider (step.h) during the pass that it is in. They stay until the pass's end, when StepPages::end()
// releases them with the rest.
class RiderPages : public PageSource {
 public:
  // Borrows. To be made after residency.begin(step). Error{kInternal} where a page is not there.
  RiderPages(Residency& residency, ModelId model);

  ResidentPage acquire(PageUse use) override;
  void release_through(PageUse) override {}
  bool group_by_group() const override { return false; }

 private:
  Residency& residency_;
  ModelId model_;
};

}  // namespace computron
