// The device of a rank: chosen, made, placed among those of the other ranks, and measured.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "computron/base/memory.h"
#include "computron/base/trace.h"
#include "computron/comm/communicators.h"
#include "computron/comm/mesh.h"
#include "computron/device/device.h"
#include "computron/device/progress.h"
#include "computron/ops/ops.h"
#include "computron/runtime/host_store.h"
#include "computron/serve/copy_costs.h"
#include "computron/serve/job_options.h"
#include "computron/serve/serve_hooks.h"
#include "computron/serve/topology.h"

namespace computron {

// Owns the device, its operations and how the rank's thread waits; everything that computes for a job borrows these.
class RankDevice {
 public:
  // Collective; each phase ends in a vote. A choice of the program's gives way where it does not fit; one of the user's
  // is an error there (Error{kUsage}, {kDevice}). Borrows `mesh`, and `trace`, which may be null.
  RankDevice(const JobOptions& options, const Mesh& mesh, Trace* trace, ServeHooks& hooks);

  Device& device() const { return *device_; }
  Ops& ops() const { return *ops_; }
  Progress& progress() const { return *progress_; }
  int threads() const { return threads_; }
  VerifySwap verify_swap() const { return verify_swap_; }
  // The same on all ranks.
  TransportKind transport_kind() const;
  PageCoding page_coding() const { return page_coding_; }

  // The ranks of this rank's node, and the cores that they may run on together.
  const Communicator& node() const { return node_; }
  int cores_on_node() const { return cores_; }
  // Of memory that only the device has, what this rank may take; nothing where it computes in host memory.
  const std::optional<MemoryLimit>& own_memory() const { return own_memory_; }
  // Of the slowest rank, the same on all; only where the size of pages is to be chosen by it.
  const std::optional<MeasuredCosts>& costs() const { return costs_; }

 private:
  bool every_rank_has_gpu() const;
  void make_and_place(Trace* trace, ServeHooks& hooks);
  void make(Trace* trace, ServeHooks& hooks);
  void make_gpu();
  void make_cpu(Trace* trace, ServeHooks& hooks);
  void show_places() const;
  void measure();
  void measure_copies(ServeHooks& hooks);
  PageCoding choose_coding() const;
  VerifySwap choose_verification() const;
  std::string kind() const;

  const JobOptions& options_;
  const Mesh& mesh_;
  Communicator node_;
  int cores_ = 1;
  int threads_ = 1;
  bool gpu_ = false;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  VerifySwap verify_swap_ = VerifySwap::kOff;
  PageCoding page_coding_ = PageCoding::kRaw;
  std::vector<RankPlace> places_;  // [rank]
  std::optional<MemoryLimit> own_memory_;
  std::optional<MeasuredCosts> costs_;
};

}  // namespace computron
