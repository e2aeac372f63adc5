// Rounds of the page benchmark: every rank computes with the same shard, as replicas of one model on one node would.
//
//   memory   what the host pages of all ranks take while they load and afterwards: the sum of their proportional shares
//            (Pss), in which memory that n processes map counts 1/n in each
//   copies   the shard's pages, one after the other, into frames of the device, each of them from pages of the rank's
//            own, from shared ones, and from shared ones that are no huge pages
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "computron/comm/mpi.h"
#include "computron/device/device.h"
#include "computron/runtime/host_store.h"

namespace computron {

// Of all ranks together.
struct PagesMemory {
  std::size_t most_bytes = 0;     // while they loaded, buffers of the load included
  std::size_t settled_bytes = 0;  // afterwards
  std::size_t huge_bytes = 0;     // of all shared pages, mapped as huge ones, counted in every rank
  double load_s = 0;              // of the slowest rank
};

// 10^9 bytes a second, of the slowest rank: the upper quartile of its pages.
struct CopyRates {
  double own = 0, shared = 0, shared_small = 0;
};

class PageRounds {
 public:
  // Collective. Borrows all but the shards; they are of the whole model.
  PageRounds(const Communicator& world, Device& device, ShardSource shard, int threads);

  // Collective; the same on every rank. In this order, once each: each keeps its pages.
  PagesMemory load_own();
  PagesMemory load_shared();
  // With transparent huge pages turned off for this process meanwhile.
  PagesMemory load_shared_small();
  // Collective. The ranks copy all at once, or this rank alone while the others sleep.
  CopyRates copy_together();
  CopyRates copy_alone();

  std::size_t one_copy_bytes() const { return HostStore::bytes_of(*shard_.layout); }

 private:
  template <class Load>
  PagesMemory measure(const Load& load);
  std::unique_ptr<HostStore> load(HostPages pages);
  double copy(const HostStore& host, PageId page);
  CopyRates copy_in_turns(bool takes_part);
  double slowest_s(double seconds) const;

  const Communicator& world_;
  Device& device_;
  const ShardSource shard_;
  const int threads_;
  std::unique_ptr<HostStore> own_, shared_, shared_small_;
  std::unique_ptr<CopyStream> copy_stream_;
  std::unique_ptr<DeviceBuffer> frames_;
  std::size_t next_frame_ = 0;
};

}  // namespace computron
