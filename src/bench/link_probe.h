// What the links of a job give while nothing computes: the yardstick of every measurement of swapping.
//
// Each round copies a model's shard on all ranks at once, in three ways, and takes the models in turn, so that a source
// has left the caches when it comes again:
//
//   plain   the whole shard as one copy through a copy stream of the device
//   fetch   the same pages one by one through the swapper, as a swap does
//   memory  as plain, but past an emulated link: what the machine's memory and cores give
#pragma once

#include <memory>
#include <vector>

#include "computron/runtime/swapper.h"
#include "computron/serve/job.h"
#include "src/bench/link_rates.h"

namespace computron {

class LinkProbe {
 public:
  // Takes device memory for the largest shard beside the job's pool. OutOfDeviceMemory.
  explicit LinkProbe(Job& job);

  // Collective, with no step in flight; the links are this function's alone.
  void measure(int rounds);
  // Collective: everybody's rates, by rank.
  std::vector<LinkRates> gather() const;

 private:
  double copy_plain(CopyStream& stream, ModelId model);
  double fetch(ModelId model);

  Job& job_;
  std::vector<const Image*> images_;  // of this rank's stage
  std::unique_ptr<CopyStream> link_;
  std::unique_ptr<Device> plain_device_;  // without a link; like the next only where one is emulated
  std::unique_ptr<CopyStream> memory_;
  std::unique_ptr<Stream> compute_;
  FramePool pool_;
  SpillArea spill_;  // none
  Swapper swapper_;
  ModelId next_ = 0;
  LinkRates rates_;
};

}  // namespace computron
