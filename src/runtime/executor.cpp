#include "computron/runtime/executor.h"

#include <algorithm>

#include "computron/base/time.h"

namespace computron {

namespace {

std::unique_ptr<Workspace> make_workspace(Device& device, const Ops& ops,
                                          const std::vector<const ShardLayout*>& layouts, int max_rows) {
  Workspace::Sizes sizes;
  for (const ShardLayout* layout : layouts) sizes = sizes.max(Workspace::Sizes::of(layout->plan, ops, max_rows));
  return std::make_unique<Workspace>(device, sizes);
}

// Floats of the longest row that is summed over ranks or sent to the next stage.
std::size_t widest_row(const std::vector<const ShardLayout*>& layouts) {
  int hidden = 0;
  for (const ShardLayout* layout : layouts) {
    const ModelConfig& config = layout->plan.config;
    hidden = std::max({hidden, config.hidden, config.token_columns(), config.heads + config.kv_heads});
  }
  return static_cast<std::size_t>(hidden);
}

std::size_t largest_vocab(const std::vector<const ShardLayout*>& layouts) {
  int vocab = SliceSample::kCandidates;
  for (const ShardLayout* layout : layouts) vocab = std::max(vocab, layout->plan.vocab);
  return static_cast<std::size_t>(vocab);
}

// Appends the rows of the chunk, whose first is `row`, that lead to outputs.
void add_outputs(const SequenceChunk& chunk, int row, Batch& batch) {
  const auto add = [&](std::size_t i, TokenId target) {
    batch.output_rows.push_back(row + static_cast<int>(i));
    batch.top.push_back(std::max<int>(chunk.top, 1));
    batch.targets.push_back(target);
  };
  const std::size_t last = chunk.tokens.size() - 1;
  switch (chunk.output) {
    case SequenceChunk::kNone:
      return;
    case SequenceChunk::kLast:
      return add(last, -1);
    case SequenceChunk::kAll:
      for (std::size_t i = 0; i < last; ++i) add(i, chunk.tokens[i + 1]);
      return add(last, chunk.after_last);
    case SequenceChunk::kPooledEmbedding:
    case SequenceChunk::kScores:
      return add(0, -1);
  }
}

// The host arrays that the last stage's pass writes its outputs to: a decoder's top logits and samples
// [output rows × vocabulary slices], or an encoder's vectors [sequences, hidden] and scores [sequences, classes].
struct HostOutputs {
  HostOutputs(const ShardPlan& plan, const Batch& batch)
      : hidden(static_cast<std::size_t>(plan.config.hidden)), classes(static_cast<std::size_t>(plan.config.classes)) {
    if (!plan.has_head()) return;
    const std::size_t count = batch.output_rows.size();
    if (plan.config.causal) {
      logits.resize(count * plan.k_slices);
      if (!batch.sampling.empty()) samples.resize(count * plan.k_slices);
    } else {
      pooled_embeddings.resize(count * hidden);
      scores.resize(count * classes);
    }
  }

  Outputs pointers() { return {logits.data(), samples.data(), pooled_embeddings.data(), scores.data()}; }

  // [chunk] The vector or the scores that the step's chunk asked for.
  std::vector<std::vector<float>> encoded(const Step& step) const {
    std::vector<std::vector<float>> rows;
    for (const SequenceChunk& chunk : step.chunks) {
      const bool vector = chunk.output == SequenceChunk::kPooledEmbedding;
      const std::size_t width = vector ? hidden : classes;
      ensure(chunk.values == width, "an encoder gives another number of values than the step says");
      const auto begin =
          (vector ? pooled_embeddings : scores).begin() + static_cast<std::ptrdiff_t>(rows.size() * width);
      rows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(width));
    }
    return rows;
  }

  std::size_t hidden, classes;
  std::vector<TopLogits> logits;
  std::vector<SliceSample> samples;
  std::vector<float> pooled_embeddings, scores;
};

}  // namespace

Executor::Executor(const Mesh& mesh, Device& device, Ops& ops, Progress& progress,
                   std::vector<const ShardLayout*> layouts, const HostStore& host, Communicators communicators,
                   const ExecutorOptions& options)
    : mesh_(mesh),
      ops_(ops),
      progress_(progress),
      layouts_(std::move(layouts)),
      host_(host),
      wrap_pages_(options.wrap_pages),
      trace_(options.trace),
      use_graphs_(options.use_graphs),
      compute_(device.make_compute_stream(progress)),
      copy_stream_(device.make_copy_stream(host.coding() == PageCoding::kCoded ? options.frame_bytes : 0)),
      residency_(mesh.stage, layouts_, host, device, options.frames, options.frame_bytes, options.host_slots,
                 *copy_stream_, *compute_, options.verify_swap),
      work_(make_workspace(device, ops, layouts_, options.max_rows)),
      communicators_(std::move(communicators)),
      collector_(mesh, progress, trace_, largest_vocab(layouts_)) {
  for (const ShardLayout* layout : layouts_) {
    transformers_.emplace_back(*layout, mesh.t);
    geometries_.push_back(KvGeometry::make(*layout));
  }
}

Executor::~Executor() { copy_stream_.reset(); }

CommunicatorSizes Executor::communicator_sizes(const std::vector<const ShardLayout*>& layouts,
                                               const ExecutorOptions& options) {
  return {.max_count = widest_row(layouts) * static_cast<std::size_t>(options.max_rows),
          .buffers = options.steps_in_flight};
}

Report Executor::run(const Step& step) {
  const TraceSpan span(trace_, TraceTrack::kCompute, "step", host_.name(step.model), {"step", step.id},
                       {"rows", static_cast<std::uint64_t>(step.rows())});
  Report report;
  report.step = step.id;
  report.received = step.digest;
  residency_.begin(step);
  for (const SequenceId id : step.closed) sampling_.erase(id);
  if (!step.chunks.empty()) {
    run_pass(step, report);
  } else {
    StepPages(residency_, step).end();
  }
  report.digest = residency_.state().digest_after(step);
  const CopyStatistics copied = copy_stream_->statistics();
  report.link_bytes = copied.bytes;
  report.frame_bytes = copied.frame_bytes;
  report.busy_s = copied.busy_s;
  report.pages_verified = copied.pages_verified;
  report.pages_refetched = copied.pages_refetched;
  report.exposed_s = compute_->exposed_s();
  return report;
}

Batch Executor::make_batch(const Step& step) {
  Batch batch;
  const bool has_long_factors = layouts_[step.model]->plan.config.rope_scaling == RopeScaling::kLongRope;
  for (const SequenceChunk& chunk : step.chunks) {
    const int row = batch.rows(), rows = static_cast<int>(chunk.tokens.size());
    batch.sequences.push_back(
        {row, rows, static_cast<int>(chunk.start), residency_.state().sequence(chunk.sequence).blocks});
    batch.tokens.insert(batch.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
    batch.patches.insert(batch.patches.end(), chunk.patches.begin(), chunk.patches.end());
    batch.token_type_ids.insert(batch.token_type_ids.end(), chunk.token_type_ids.begin(), chunk.token_type_ids.end());
    batch.token_type_ids.resize(batch.tokens.size(), 0);
    if (has_long_factors) batch.long_factors.push_back(chunk.long_factors ? 1 : 0);
    for (int i = 0; i < rows; ++i) batch.positions.push_back(static_cast<std::int32_t>(chunk.start) + i);
    add_outputs(chunk, row, batch);
  }
  if (mesh_.last_stage()) add_sampling(step, batch);
  return batch;
}

// Sets batch.sampling [output row] for the rows that tokens are sampled from: each is its chunk's last output row.
void Executor::add_sampling(const Step& step, Batch& batch) {
  std::size_t row = 0;
  for (const SequenceChunk& chunk : step.chunks) {
    if (chunk.sampling) sampling_.insert_or_assign(chunk.sequence, SequenceSampling(*chunk.sampling));
    const auto found = sampling_.find(chunk.sequence);
    if (found != sampling_.end()) found->second.append(chunk.start, chunk.tokens);
    row += chunk.output == SequenceChunk::kAll ? chunk.tokens.size() : chunk.output == SequenceChunk::kNone ? 0 : 1;
    if (found == sampling_.end() || chunk.output == SequenceChunk::kNone) continue;
    batch.sampling.resize(batch.output_rows.size());
    const auto position = chunk.start + static_cast<std::uint32_t>(chunk.tokens.size());
    batch.sampling[row - 1] = found->second.row(position, layouts_[step.model]->plan.k_slices * mesh_.shape.tp == 1);
  }
}

// A pass that only decodes comes again with other tokens and one more position, so it is worth a graph. A pass with
// sums over ranks is not capturable, since NcclWorld watches each sum from outside of the stream; nor is one of a
// mixture of experts, whose router's choice the host reads.
bool Executor::is_capturable(const Step& step) const {
  const ModelConfig& config = layouts_[step.model]->plan.config;
  return use_graphs_ && compute_->captures_graphs() && mesh_.shape.ranks() == 1 && config.causal &&
         config.experts == 0 && std::all_of(step.chunks.begin(), step.chunks.end(), [](const SequenceChunk& chunk) {
           return chunk.tokens.size() == 1;
         });
}

// The order on the compute stream: receive from the stage before, the layers, send to the stage after. Pages are
// released while the layers are enqueued, so refills may land in frames that this pass has left. When the stream has
// been synchronized, no use of the step is in flight any more.
void Executor::run_pass(const Step& step, Report& report) {
  const Batch batch = make_batch(step);
  const KvCacheView cache = geometries_[step.model].view(residency_.pool().base(), residency_.pool().frame_bytes(),
                                                         residency_.state().cache(step.model));
  const Activations hidden = work_->hidden(batch.rows(), layouts_[step.model]->plan.config.hidden);
  const std::size_t count = static_cast<std::size_t>(hidden.rows) * hidden.columns;
  auto* values = reinterpret_cast<float*>(hidden.data);
  HostOutputs out(layouts_[step.model]->plan, batch);

  const double begin_s = now_s(), stalled_before_s = stalled_s();
  const std::uint64_t graphs_before = compute_->graph_launches();
  StepPages pages(residency_, step);
  const std::unique_ptr<PageSource> wrapped =
      wrap_pages_ ? wrap_pages_(step, *layouts_[step.model], *compute_, pages) : nullptr;
  PageSource& given = wrapped ? *wrapped : pages;
  Pass pass{*compute_, ops_, *communicators_.all_reduce, given, *work_, batch, cache, trace_};
  const auto forward = [&] { transformers_[step.model].forward(pass, hidden, out.pointers()); };
  if (!mesh_.first_stage()) communicators_.transfer->receive(*compute_, values, count);
  if (is_capturable(step) && pages.at_rest()) {
    compute_->run_capturable(forward);
  } else {
    forward();
  }
  if (!mesh_.last_stage()) communicators_.transfer->send(*compute_, values, count);
  report.launched_as_graph = compute_->graph_launches() > graphs_before;
  pages.end();
  compute_->synchronize();
  residency_.finished(step);
  // A part of the stall may lie before this pass: a step without a pass does not wait for its device.
  report.compute_s = std::max(0.0, now_s() - begin_s - (stalled_s() - stalled_before_s));
  if (!mesh_.last_stage()) return;
  if (layouts_[step.model]->plan.config.causal) {
    report.rows =
        collector_.collect(batch, layouts_[step.model]->plan.k_slices, std::move(out.logits), std::move(out.samples));
  } else if (mesh_.t == 0) {
    report.encoded = out.encoded(step);
  }
}

}  // namespace computron
