// Executes steps on one rank: the place where the flow of weights (host pages → frames) and the flow of tokens
// (steps → layers → reports) meet.
//
// The tasks and what orders them, for steps n, n + 1 in flight:
//
//   accept(n)    when the step arrives, also from the progress hook while another step computes: cache moves and
//                fetches join the swapper's queue
//   run(n)       in the order of steps: the state follows the step; the layers compute, each waiting for its own pages;
//                the report is made
//   copy stream  copies of n and n + 1 in order; each waits for its frame's release point (the drained event) and
//                records the frame's filled event
//
// Therefore the copies of n + 1 overlap the compute of n, and a pass trails its own transfer page by page. The frames
// are the double buffer: a fetch goes into a frame whose release point precedes it, never into one that an enqueued use
// still needs.
//
// Everything here belongs to the thread that owns MPI and the compute stream. accept() may be called while run() is on
// the stack, since run() polls; run() is never entered twice.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "computron/comm/communicators.h"
#include "computron/comm/mesh.h"
#include "computron/model/transformer.h"
#include "computron/runtime/guide_compiler.h"
#include "computron/runtime/kv_geometry.h"
#include "computron/runtime/report.h"
#include "computron/runtime/residency.h"
#include "computron/runtime/row_collector.h"

namespace computron {

// Returns the pages that a pass gets in place of `pages`. All four outlive what it returns.
using PageSourceWrapper = std::function<std::unique_ptr<PageSource>(const Step& step, const ShardLayout& layout,
                                                                    Stream& compute, PageSource& pages)>;

struct ExecutorOptions {
  Residency::Sizes memory = {};
  int max_rows = 0;         // tokens of a step
  int steps_in_flight = 1;  // activations that may be on their way to the next stage
  VerifySwap verify_swap = VerifySwap::kOff;
  // Of a model: what each of its tokens adds to a text. Called beside serving, by another thread, once a model whose
  // answers are guided; empty: none are.
  std::function<std::vector<std::string>(ModelId)> token_texts = {};
  std::size_t guide_bytes = GuideCompiler::kMaxBytes;  // of guides, beside vocabularies
  bool use_graphs = true;  // capturable passes go through Stream::run_capturable; false for tests that compare
  PageSourceWrapper wrap_pages = {};  // empty: passes get the pages themselves
  Trace* trace = nullptr;             // borrowed; null: not traced
};

class Executor {
 public:
  // Borrows everything but `communicators`, which must fit communicator_sizes(); layouts[m] and host page numbers must
  // match. `layouts` are this stage's.
  Executor(const Mesh& mesh, Device& device, Ops& ops, Progress& progress, std::vector<const ShardLayout*> layouts,
           const HostStore& host, Communicators communicators, const ExecutorOptions& options);
  ~Executor();  // ends the copy stream before its frames go

  // What an executor of these layouts needs of its communicators.
  static CommunicatorSizes communicator_sizes(const std::vector<const ShardLayout*>& layouts,
                                              const ExecutorOptions& options);

  // The step has arrived: enqueues the fetches that wait for nothing. Steps are accepted and run in the same order.
  // Error{kInternal} for copies that no right scheduler orders.
  void accept(const Step& step);
  // Executes the step and returns this rank's done record. Returns when the compute stream has run the step's pass, so
  // that only copies are in flight. Error{kInternal} where the step does not fit the state.
  Report run(const Step& step);
  // Moves sent activations along; called from the progress hook.
  void poll() { communicators_.transfer->poll(); }

  const StageState& state() const { return residency_.state(); }
  // Passes that were launched as graphs (Stream::run_capturable).
  std::uint64_t graph_launches() const { return compute_->graph_launches(); }

 private:
  Batch make_batch(const Step& step);
  void add_sampling(const Step& step, Batch& batch);
  void add_pooling(const Step& step, Batch& batch) const;
  void keep_sums(const Step& step, std::span<const float> sums);
  void guide(ModelId model, SequenceSampling& sampling);
  bool is_decode(const Step& step) const;
  bool is_capturable(const Step& step) const;
  std::optional<Batch> padded(const Step& step, const Batch& batch) const;
  std::string graph_key(const Step& step, const Batch& batch, const std::string& arrays) const;
  void launch(const Step& step, const Batch& batch, StepPages& pages, const std::string& arrays,
              const std::function<void()>& forward);
  KvCacheView cache_of(ModelId model) const;
  struct Riders;
  Riders riders_of(const Step& step);
  // Seconds that the compute stream has stalled so far, on pages and on the stage before.
  double stalled_s() const { return compute_->exposed_s() + communicators_.transfer->waited_s(); }
  void run_pass(const Step& step, Report& report);

  // Borrowed, and what the options say.
  const Mesh& mesh_;
  Ops& ops_;
  Progress& progress_;
  std::vector<const ShardLayout*> layouts_;  // [model]
  const HostStore& host_;
  PageSourceWrapper wrap_pages_;
  Trace* trace_;
  bool use_graphs_;
  int max_rows_;

  // The flow of weights. The streams go last, since residency_ enqueues on them.
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<CopyStream> copy_stream_;
  Residency residency_;

  // The flow of tokens.
  std::unique_ptr<Workspace> work_;
  Communicators communicators_;
  std::vector<Transformer> transformers_;  // [model]
  std::vector<LowRanks> adapters_;         // [model]
  std::vector<KvGeometry> geometries_;     // [model]
  RowCollector collector_;
  std::map<SequenceId, SequenceSampling> sampling_;  // on the last stage: of running sequences that draw tokens
  // On the last stage: of running sequences whose embedding is a mean, the sum of the rows of their passes, [hidden].
  std::map<SequenceId, std::vector<float>> sums_;
  GuideCompiler guides_;  // there, too
};

}  // namespace computron
