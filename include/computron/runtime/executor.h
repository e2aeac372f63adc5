// Executes steps on one rank: the place where the flow of weights (host pages → frames) and the flow of tokens
// (steps → layers → reports) meet.
//
// Tasks and what orders them, for steps n, n + 1 in flight:
//
//   accept(n)    at arrival, also from the progress hook while another step computes: moves of caches and fetches →
//                swapper's queue
//   run(n)       in order: state ← step; layers, each waiting for its own pages; report
//   copy thread  copies of n and n + 1 in order; each waits for its frame's last use (drained) and signals filled
//
// So the copies of n + 1 overlap the compute of n, and a pass trails its own transfer page by page. Frames are the
// double buffer: a fetch goes into a frame whose last use precedes it, never into one that a queued use still needs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "computron/comm/links.h"
#include "computron/comm/mesh.h"
#include "computron/model/transformer.h"
#include "computron/runtime/kv_geometry.h"
#include "computron/runtime/report.h"
#include "computron/runtime/residency.h"
#include "computron/runtime/row_collector.h"

namespace computron {

struct ExecutorOptions {
  int frames = 0;
  std::size_t frame_bytes = 0;
  int host_slots = 0;       // frames' worth of host memory for caches that are moved out
  int max_rows = 0;         // of a step
  int steps_in_flight = 1;  // activations that may be on their way to the next stage
  VerifySwap verify_swap = VerifySwap::kOff;
  bool repeat_passes = true;  // Stream::repeatable, where a pass is; false for tests that compare
  Trace* trace = nullptr;     // borrowed; null: not traced
};

class Executor {
 public:
  // Borrows everything but `links`, which must fit link_sizes(); images[m] and host page numbers must match. `images`
  // are this stage's.
  Executor(const Mesh& mesh, Device& device, Ops& ops, Progress& progress, std::vector<const Image*> images,
           const HostStore& host, Links links, const ExecutorOptions& options);
  ~Executor();  // stops the copy thread before its frames go

  // What an executor of these images needs of its links.
  static LinkSizes link_sizes(const std::vector<const Image*>& images, const ExecutorOptions& options);

  // The step has arrived: starts what fetches may start. Steps are accepted and run in the same order.
  void accept(const Step& step) { residency_.accept(step); }
  // Executes the step and returns this rank's done record.
  Report run(const Step& step);
  // Moves transfers along; called from the progress hook.
  void poll() { links_.transfer->poll(); }

  const StageState& state() const { return residency_.state(); }
  // Passes that the device was given as one piece (Stream::repeatable).
  std::uint64_t passes_repeated() const { return compute_->repeated(); }

 private:
  Batch make_batch(const Step& step);
  void add_sampling(const Step& step, Batch& batch);
  bool is_repeatable(const Step& step) const;
  // The compute stream's so far: for pages and for the stage before.
  double standing_still_s() const { return compute_->exposed_s() + links_.transfer->waited_s(); }
  void run_pass(const Step& step, Report& report);

  const Mesh& mesh_;
  Ops& ops_;
  Progress& progress_;
  std::vector<const Image*> images_;
  const HostStore& host_;
  Trace* trace_;
  bool repeat_passes_;

  std::unique_ptr<Stream> compute_;
  std::unique_ptr<CopyStream> link_;
  Residency residency_;

  std::unique_ptr<Workspace> work_;
  Links links_;
  std::vector<Transformer> transformers_;  // [model]
  std::vector<KvGeometry> geometries_;     // [model]
  RowCollector collector_;
  std::map<SequenceId, SequenceSampling> sampling_;  // on the last stage: of open sequences that draw
};

}  // namespace computron
