#include "computron/runtime/executor.h"

#include <algorithm>

#include "computron/base/time.h"

namespace computron {

namespace {

std::unique_ptr<Workspace> make_workspace(Device& device, const Ops& ops, const std::vector<const Image*>& images,
                                          int max_rows) {
  Workspace::Sizes sizes;
  for (const Image* image : images) sizes = sizes.max(Workspace::Sizes::of(image->plan, ops, max_rows));
  return std::make_unique<Workspace>(device, sizes);
}

// Floats of the longest row that is summed over ranks or sent to the next stage.
std::size_t widest_row(const std::vector<const Image*>& images) {
  int hidden = 0;
  for (const Image* image : images) {
    hidden = std::max({hidden, image->plan.config.hidden, image->plan.config.token_columns()});
  }
  return static_cast<std::size_t>(hidden);
}

std::size_t largest_vocab(const std::vector<const Image*>& images) {
  int vocab = Draw::kCandidates;
  for (const Image* image : images) vocab = std::max(vocab, image->plan.vocab);
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
    case SequenceChunk::kVector:
    case SequenceChunk::kScores:
      return add(0, -1);
  }
}

// Where the last stage's outputs go: of a decoder's rows, or of an encoder's.
struct HostOutputs {
  HostOutputs(const ShardPlan& plan, const Batch& batch)
      : hidden(static_cast<std::size_t>(plan.config.hidden)), classes(static_cast<std::size_t>(plan.config.classes)) {
    if (!plan.has_head()) return;
    const std::size_t count = batch.output_rows.size();
    if (plan.config.causal) {
      logits.resize(count * plan.chunks);
      if (!batch.sampling.empty()) draws.resize(count * plan.chunks);
    } else {
      vectors.resize(count * hidden);
      scores.resize(count * classes);
    }
  }

  Outputs pointers() { return {logits.data(), draws.data(), vectors.data(), scores.data()}; }

  // What each chunk of the step wanted.
  std::vector<std::vector<float>> encoded(const Step& step) const {
    std::vector<std::vector<float>> rows;
    for (const SequenceChunk& chunk : step.chunks) {
      const bool vector = chunk.output == SequenceChunk::kVector;
      const std::size_t width = vector ? hidden : classes;
      ensure(chunk.values == width, "an encoder gives another number of values than the step says");
      const auto begin = (vector ? vectors : scores).begin() + static_cast<std::ptrdiff_t>(rows.size() * width);
      rows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(width));
    }
    return rows;
  }

  std::size_t hidden, classes;
  std::vector<LogitSummary> logits;
  std::vector<Draw> draws;
  std::vector<float> vectors, scores;
};

}  // namespace

Executor::Executor(const Mesh& mesh, Device& device, Ops& ops, Progress& progress, std::vector<const Image*> images,
                   const HostStore& host, Links links, const ExecutorOptions& options)
    : mesh_(mesh),
      ops_(ops),
      progress_(progress),
      images_(std::move(images)),
      host_(host),
      trace_(options.trace),
      repeat_passes_(options.repeat_passes),
      compute_(device.make_compute_stream(progress)),
      link_(device.make_copy_stream()),
      residency_(mesh.stage, images_, host, device, options.frames, options.frame_bytes, options.host_slots, *link_,
                 *compute_, options.verify_swap),
      work_(make_workspace(device, ops, images_, options.max_rows)),
      links_(std::move(links)),
      collector_(mesh, progress, trace_, largest_vocab(images_)) {
  for (const Image* image : images_) {
    transformers_.emplace_back(*image, mesh.t);
    geometries_.push_back(KvGeometry::make(*image));
  }
}

Executor::~Executor() { link_.reset(); }

LinkSizes Executor::link_sizes(const std::vector<const Image*>& images, const ExecutorOptions& options) {
  return {.max_count = widest_row(images) * static_cast<std::size_t>(options.max_rows),
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
  const LinkStatistics link = link_->statistics();
  report.link_bytes = link.bytes;
  report.busy_s = link.busy_s;
  report.pages_verified = link.pages_verified;
  report.pages_refetched = link.pages_refetched;
  report.exposed_s = compute_->exposed_s();
  return report;
}

Batch Executor::make_batch(const Step& step) {
  Batch batch;
  for (const SequenceChunk& chunk : step.chunks) {
    const int row = batch.rows(), rows = static_cast<int>(chunk.tokens.size());
    batch.sequences.push_back(
        {row, rows, static_cast<int>(chunk.start), residency_.state().sequence(chunk.sequence).blocks});
    batch.tokens.insert(batch.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
    batch.patches.insert(batch.patches.end(), chunk.patches.begin(), chunk.patches.end());
    batch.types.insert(batch.types.end(), chunk.types.begin(), chunk.types.end());
    batch.types.resize(static_cast<std::size_t>(row + rows), 0);
    for (int i = 0; i < rows; ++i) batch.positions.push_back(static_cast<std::int32_t>(chunk.start) + i);
    add_outputs(chunk, row, batch);
  }
  if (mesh_.last_stage()) add_sampling(step, batch);
  return batch;
}

// A chunk's last row is the one a token is drawn from.
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
    batch.sampling[row - 1] = found->second.row(position, images_[step.model]->plan.chunks * mesh_.shape.tp == 1);
  }
}

// Decoding, which comes again with other tokens and one more position. Sums over ranks are watched from outside of the
// stream, and which experts are chosen is for the host to know: those passes are not.
bool Executor::is_repeatable(const Step& step) const {
  const ModelConfig& config = images_[step.model]->plan.config;
  return repeat_passes_ && compute_->repeats() && mesh_.shape.ranks() == 1 && config.causal && config.experts == 0 &&
         std::all_of(step.chunks.begin(), step.chunks.end(),
                     [](const SequenceChunk& chunk) { return chunk.tokens.size() == 1; });
}

void Executor::run_pass(const Step& step, Report& report) {
  const Batch batch = make_batch(step);
  const KvCacheView cache = geometries_[step.model].view(residency_.pool().base(), residency_.pool().frame_bytes(),
                                                         residency_.state().cache(step.model));
  const Activations hidden = work_->hidden(batch.rows(), images_[step.model]->plan.config.hidden);
  const std::size_t count = static_cast<std::size_t>(hidden.rows) * hidden.columns;
  auto* values = reinterpret_cast<float*>(hidden.data);
  HostOutputs out(images_[step.model]->plan, batch);

  const double begin_s = now_s(), still_s = standing_still_s();
  const std::uint64_t repeated = compute_->repeated();
  StepPages pages(residency_, step);
  Pass pass{*compute_, ops_, *links_.all_reduce, pages, *work_, batch, cache, trace_};
  const auto forward = [&] { transformers_[step.model].forward(pass, hidden, out.pointers()); };
  if (!mesh_.first_stage()) links_.transfer->receive(*compute_, values, count);
  if (is_repeatable(step) && pages.at_rest()) {
    compute_->repeatable(forward);
  } else {
    forward();
  }
  if (!mesh_.last_stage()) links_.transfer->send(*compute_, values, count);
  report.repeated = compute_->repeated() > repeated;
  pages.end();
  compute_->synchronize();
  residency_.finished(step);
  // Of what stood still some may lie before this pass: a step without one does not wait for its device.
  report.compute_s = std::max(0.0, now_s() - begin_s - (standing_still_s() - still_s));
  if (!mesh_.last_stage()) return;
  if (images_[step.model]->plan.config.causal) {
    report.rows =
        collector_.collect(batch, images_[step.model]->plan.chunks, std::move(out.logits), std::move(out.draws));
  } else if (mesh_.t == 0) {
    report.encoded = out.encoded(step);
  }
}

}  // namespace computron
