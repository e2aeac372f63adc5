// Which pages are in which frames of this rank, now and for the steps to come.
//
//   accept(step)   at arrival: its moves of caches and its fetches join the swapper's queue (they may start while
//                  earlier steps compute)
//   begin(step)    in order of execution: the state becomes the one the step's pass finds
//   StepPages      during the pass: pages are acquired in order of use; as uses end, refills become due
//   finished(step) after the pass: copies need not wait any longer for what it used
//
// Used by the thread that owns the compute stream.
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
  // Borrows images (this stage's), host pages and streams; owns the pool and `host_slots` slots of spill area.
  Residency(int stage, std::vector<const Image*> images, const HostStore& host, Device& device, int frames,
            std::size_t frame_bytes, int host_slots, CopyStream& link, Stream& compute,
            VerifySwap verify = VerifySwap::kOff);

  void accept(const Step& step);
  void begin(const Step& step);
  // The compute stream has been synchronized behind the step's pass.
  void finished(const Step& step) { swapper_.finished(step.id); }

  const StageState& state() const { return state_; }
  const FramePool& pool() const { return pool_; }

 private:
  friend class StepPages;
  // Adds the copies that the change needs, and follows it in accepted_caches_.
  void move_cache(StepId step, const CacheChange& change, std::vector<Transfer>& transfers);
  void place_until(UsePoint point);
  // Everything up to `point` is on the compute stream: refills that waited for it are due.
  void passed(UsePoint point);

  int stage_;
  std::vector<const Image*> images_;
  Stream& compute_;
  FramePool pool_;
  SpillArea spill_;
  Swapper swapper_;
  std::vector<std::vector<FrameId>> accepted_caches_;  // [model] lists as after the last step accepted
  StageState state_;
  std::deque<Fetch> refills_;  // of the step begun, not in the state yet
};

// The pages of one step's model during its pass.
class StepPages : public PageSource {
 public:
  // Borrows both; after residency.begin(step).
  StepPages(Residency& residency, const Step& step);

  ResidentPage acquire(PageUse use) override;
  void uses_over(PageUse use) override { residency_.passed({step_.id, use}); }
  bool group_by_group() const override { return refilled_; }
  // Every page is there, and nothing waits for uses of the step: it makes no difference when they end, and the pass may
  // be worked through more than once.
  bool at_rest() const;
  // Everything of the step is on the compute stream.
  void end() { residency_.passed({step_.id, UsePoint::kEnd}); }

 private:
  Residency& residency_;
  const Step& step_;
  const bool refilled_;  // fetches of the pass's own pages wait for its uses
};

}  // namespace computron
