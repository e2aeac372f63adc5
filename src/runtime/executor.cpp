#include "computron/runtime/executor.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "computron/base/bytes.h"
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

bool is_pooled(const SequenceChunk& chunk) {
  return chunk.output == SequenceChunk::kPooledEmbedding || chunk.output == SequenceChunk::kScores;
}

// Embeddings that are the mean of rows which several passes may compute.
bool sums_over_passes(const ModelConfig& config) { return config.embeds && config.pooling == Pooling::kMean; }

// As torch.nn.functional.normalize.
void divide_by_length(std::span<float> vector) {
  double squares = 0;
  for (const float value : vector) squares += static_cast<double>(value) * value;
  const double length = std::max(std::sqrt(squares), 1e-12);
  for (float& value : vector) value = static_cast<float>(value / length);
}

// Appends the rows of the chunk, whose first is `row`, that lead to logits.
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
      return;
  }
}

// A few classes of rows are enough graphs for all batches. As in vLLM: 1, 2, 4, and multiples of 8.
int row_class(int rows, int most) {
  constexpr int kStep = 8;
  const auto few = static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
  return std::max(rows, std::min(rows <= kStep ? few : round_up(rows, kStep), most));
}

// The host arrays that the last stage's pass writes its outputs to: a decoder's top logits and samples
// [output rows × vocabulary slices], or embeddings [outputs, embedding size] and scores [outputs, classes], and the
// sums of rows [sequences, hidden] that other passes will add to.
struct HostOutputs {
  HostOutputs(const ShardPlan& plan, const Batch& batch)
      : width(static_cast<std::size_t>(plan.config.embedding_size())),
        classes(static_cast<std::size_t>(plan.config.classes)),
        normalize(plan.config.normalize_embedding) {
    if (!plan.has_head()) return;
    const std::size_t count = batch.output_rows.size();
    if (!plan.config.pools()) {
      logits.resize(count * plan.k_slices);
      if (!batch.sampling.empty()) samples.resize(count * plan.k_slices);
    } else {
      pooled_embeddings.resize(count * width);
      scores.resize(count * classes);
      if (sums_over_passes(plan.config)) sums.resize(batch.sequences.size() * plan.config.hidden);
    }
  }

  Outputs pointers() {
    return {logits.data(), samples.data(), pooled_embeddings.data(), scores.data(),
            sums.empty() ? nullptr : sums.data()};
  }

  // Forgets what padding has been given.
  void keep(std::size_t outputs, int slices) {
    if (!logits.empty()) logits.resize(outputs * static_cast<std::size_t>(slices));
    if (!samples.empty()) samples.resize(logits.size());
  }

  // The vector or the scores of each chunk that asked for one.
  std::vector<std::vector<float>> encoded(const Step& step) const {
    std::vector<std::vector<float>> rows;
    for (const SequenceChunk& chunk : step.chunks) {
      if (!is_pooled(chunk)) continue;
      const bool vector = chunk.output == SequenceChunk::kPooledEmbedding;
      const std::size_t values = vector ? width : classes;
      ensure(chunk.values == values, "an encoder gives another number of values than the step says");
      const auto begin =
          (vector ? pooled_embeddings : scores).begin() + static_cast<std::ptrdiff_t>(rows.size() * values);
      rows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(values));
      if (vector && normalize) divide_by_length(rows.back());
    }
    return rows;
  }

  std::size_t width, classes;  // of an embedding, of scores
  bool normalize;
  std::vector<TopLogits> logits;
  std::vector<SliceSample> samples;
  std::vector<float> pooled_embeddings, scores, sums;
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
      max_rows_(options.max_rows),
      compute_(device.make_compute_stream(progress)),
      copy_stream_(device.make_copy_stream(
          {.coded = host.coding() == PageCoding::kCoded ? options.memory.frame_bytes : 0,
           .verified = options.verify_swap != VerifySwap::kOff ? options.memory.frame_bytes : 0})),
      residency_(mesh.stage, layouts_, host, device, options.memory, *copy_stream_, *compute_, options.verify_swap),
      work_(make_workspace(device, ops, layouts_, options.max_rows)),
      communicators_(std::move(communicators)),
      collector_(mesh, progress, trace_, largest_vocab(layouts_)),
      guides_(
          [this, texts = options.token_texts](ModelId model) {
            ensure(texts != nullptr, "an answer is guided where no tokens have texts");
            return TokenTrie(texts(model), static_cast<std::size_t>(layouts_[model]->plan.config.vocab));
          },
          GuideCompiler::kept_of(options.guide_bytes)) {
  for (const ShardLayout* layout : layouts_) {
    transformers_.emplace_back(*layout, mesh.t);
    adapters_.emplace_back(*layout);
    geometries_.push_back(KvGeometry::make(*layout));
  }
  communicators_.all_reduce->before_abort([this] { compute_->drop_graphs(); });
}

Executor::~Executor() {
  copy_stream_.reset();
  compute_->drop_graphs();  // which hold operations of the communicators
}

CommunicatorSizes Executor::communicator_sizes(const std::vector<const ShardLayout*>& layouts,
                                               const ExecutorOptions& options) {
  return {.max_count = widest_row(layouts) * static_cast<std::size_t>(options.max_rows),
          .buffers = options.steps_in_flight};
}

// What a sequence is guided by is compiled while earlier steps compute.
void Executor::accept(const Step& step) {
  residency_.accept(step);
  if (!mesh_.last_stage()) return;
  for (const SequenceChunk& chunk : step.chunks) {
    if (chunk.sampling && chunk.sampling->guide) guides_.want(step.model_of(chunk), chunk.sampling->guide);
  }
}

Report Executor::run(const Step& step) {
  const TraceSpan span(trace_, TraceTrack::kCompute, "step", host_.name(step.model), {"step", step.id},
                       {"rows", static_cast<std::uint64_t>(step.rows())});
  Report report;
  report.step = step.id;
  report.received = step.digest;
  residency_.begin(step);
  for (const SequenceId id : step.closed) {
    sampling_.erase(id);
    sums_.erase(id);
  }
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
  if (mesh_.last_stage()) {
    layouts_[step.model]->plan.config.pools() ? add_pooling(step, batch) : add_sampling(step, batch);
  }
  return batch;
}

// Which of the batch's sequences come to an embedding, and what has been summed up of each so far.
void Executor::add_pooling(const Step& step, Batch& batch) const {
  const ModelConfig& config = layouts_[step.model]->plan.config;
  for (std::size_t i = 0; i < step.chunks.size(); ++i) {
    if (is_pooled(step.chunks[i])) batch.add_pooled(config.pooling, i);
  }
  if (config.pooling != Pooling::kMean) return;
  batch.sum_sequences();
  if (!sums_over_passes(config)) return;
  const auto hidden = static_cast<std::size_t>(config.hidden);
  batch.means.carried.resize(step.chunks.size() * hidden);
  for (std::size_t i = 0; i < step.chunks.size(); ++i) {
    if (step.chunks[i].start == 0) continue;
    const auto found = sums_.find(step.chunks[i].sequence);
    ensure(found != sums_.end(), "a sequence whose rows are summed up begins in its middle");
    std::ranges::copy(found->second, batch.means.carried.begin() + static_cast<std::ptrdiff_t>(i * hidden));
  }
}

// sums: [chunks, hidden], empty where none are carried on.
void Executor::keep_sums(const Step& step, std::span<const float> sums) {
  if (sums.empty()) return;
  const std::size_t hidden = sums.size() / step.chunks.size();
  for (std::size_t i = 0; i < step.chunks.size(); ++i) {
    const std::span<const float> own = sums.subspan(i * hidden, hidden);
    if (is_pooled(step.chunks[i])) {
      sums_.erase(step.chunks[i].sequence);
    } else {
      sums_.insert_or_assign(step.chunks[i].sequence, std::vector<float>(own.begin(), own.end()));
    }
  }
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
    if (found->second.params().guide) guide(step.model_of(chunk), found->second);
    batch.sampling.resize(batch.output_rows.size());
    const auto position = chunk.start + static_cast<std::uint32_t>(chunk.tokens.size());
    batch.sampling[row - 1] = found->second.row(position, layouts_[step.model]->plan.k_slices * mesh_.shape.tp == 1);
  }
}

// Finds out what the sequence's next token may be, when its guide has been compiled; once more where others have taken
// its place since the last token.
void Executor::guide(ModelId model, SequenceSampling& sampling) {
  const auto& text = sampling.params().guide;
  std::shared_ptr<Guide> guide = guides_.find(model, text);
  if (!guide) {
    progress_.wait_until([&] {
      guides_.want(model, text);
      return (guide = guides_.find(model, text)) != nullptr;
    });
  }
  sampling.allow_tokens(*guide);
}

// A pass that only decodes comes again with other tokens and one more position, so it is worth a graph. One with riders
// has them in other places each time.
bool Executor::is_decode(const Step& step) const {
  return !layouts_[step.model]->plan.config.pools() && std::ranges::all_of(step.chunks, [](const SequenceChunk& chunk) {
    return chunk.tokens.size() == 1 && !chunk.rider;
  });
}

// No part of it may need the host, as sums over ranks and mixtures of experts do on some devices.
bool Executor::is_capturable(const Step& step) const {
  return use_graphs_ && compute_->captures_graphs() && communicators_.all_reduce->is_capturable() &&
         (layouts_[step.model]->plan.config.experts == 0 || ops_.routes_experts()) && is_decode(step);
}

// Decoding is padded to classes where there may be graphs, captured or not, so that no bit depends on that.
std::optional<Batch> Executor::padded(const Step& step, const Batch& batch) const {
  if (!compute_->captures_graphs() || !is_decode(step)) return std::nullopt;
  return batch.padded_to(row_class(batch.rows(), max_rows_), row_class(batch.output_count(), max_rows_));
}

// All that the launches of a pass follow from, where its pages are at rest: the model, the frames that hold its pages,
// numbers of rows, and `arrays`, which says where the rest lies.
std::string Executor::graph_key(const Step& step, const Batch& batch, const std::string& arrays) const {
  ByteWriter key;
  key.put(step.model);
  key.put(batch.rows());
  key.put(batch.output_count());
  key.put(batch.sampling.empty());
  key.put_list(residency_.state().page_table(step.model));
  key.put_string(arrays);
  const std::span<const std::byte> bytes = key.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Gives the stream the layers, as a graph where that may be. Whether it may, and whether a graph is captured or
// launched, follows from the steps, so the ranks of a stage do the same.
void Executor::launch(const Step& step, const Batch& batch, StepPages& pages, const std::string& arrays,
                      const std::function<void()>& forward) {
  if (arrays.empty() || !pages.at_rest() || !is_capturable(step)) return forward();
  pages.hold_until_end();
  pages.wait_for_all(*compute_);
  const auto agree = [this](bool mine) {
    const auto wait = [this](const std::function<bool()>& done) { progress_.wait_until(done); };
    return mesh_.shape.tp == 1 ? mine : all_agree(mesh_.tensor, wait, mine);
  };
  const std::uint64_t graphs_before = compute_->graph_launches();
  compute_->run_capturable(graph_key(step, batch, arrays), forward, agree);
  if (compute_->graph_launches() > graphs_before) communicators_.all_reduce->watch_graph(*compute_);
}

KvCacheView Executor::cache_of(ModelId model) const {
  const FramePool& pool = residency_.pool();
  return geometries_[model].view(pool.base(), pool.frame_bytes(), residency_.state().cache(model));
}

// `list` points into the others.
struct Executor::Riders {
  std::vector<KvCacheView> caches;
  std::vector<RiderPages> pages;
  std::vector<Rider> list;
};

Executor::Riders Executor::riders_of(const Step& step) {
  Riders riders;
  const std::vector<ModelChunks> models = step.by_model();
  riders.caches.reserve(models.size());
  riders.pages.reserve(models.size());
  int row = 0;
  std::size_t sequence = 0;
  for (const auto& [model, chunks] : models) {
    int rows = 0;
    for (const SequenceChunk& chunk : chunks) rows += static_cast<int>(chunk.tokens.size());
    if (sequence > 0) {
      const std::optional<Digest128>& family = layouts_[step.model]->family;
      ensure(model < layouts_.size() && family && layouts_[model]->family == family,
             "a rider is no model of the pass's family");
      riders.list.push_back({.row = row,
                             .rows = rows,
                             .first_sequence = sequence,
                             .sequences = chunks.size(),
                             .cache = &riders.caches.emplace_back(cache_of(model)),
                             .adapter = adapters_[model].any() ? &adapters_[model] : nullptr,
                             .pages = &riders.pages.emplace_back(residency_, model)});
    }
    row += rows;
    sequence += chunks.size();
  }
  return riders;
}

// The order on the compute stream: receive from the stage before, the layers, send to the stage after. Pages are
// released while the layers are enqueued, so refills may land in frames that this pass has left. When the stream has
// been synchronized, no use of the step is in flight any more.
void Executor::run_pass(const Step& step, Report& report) {
  const ShardPlan& plan = layouts_[step.model]->plan;
  const Batch batch = make_batch(step);
  const std::optional<Batch> with_padding = padded(step, batch);
  const Batch& given = with_padding ? *with_padding : batch;
  const KvCacheView cache = cache_of(step.model);
  const Activations hidden = work_->hidden(given.rows(), plan.config.hidden);
  const std::size_t count = static_cast<std::size_t>(hidden.rows) * hidden.columns;
  auto* values = reinterpret_cast<float*>(hidden.data);
  HostOutputs out(plan, given);

  const double begin_s = now_s(), stalled_before_s = stalled_s();
  const std::uint64_t graphs_before = compute_->graph_launches();
  StepPages pages(residency_, step);
  const std::unique_ptr<PageSource> wrapped =
      wrap_pages_ ? wrap_pages_(step, *layouts_[step.model], *compute_, pages) : nullptr;
  const Riders riders = riders_of(step);
  Pass pass{*compute_, ops_,       *communicators_.all_reduce, wrapped ? *wrapped : pages, *work_, given, cache,
            trace_,    riders.list};
  Transformer& transformer = transformers_[step.model];
  const std::string arrays = transformer.begin_pass(pass, out.pointers());
  if (!mesh_.first_stage()) communicators_.transfer->receive(*compute_, values, count);
  launch(step, given, pages, arrays, [&] { transformer.forward(pass, hidden, out.pointers()); });
  if (!mesh_.last_stage()) communicators_.transfer->send(*compute_, values, count);
  report.launched_as_graph = compute_->graph_launches() > graphs_before;
  pages.end();
  compute_->synchronize();
  ops_.end_pass();
  residency_.finished(step);
  // A part of the stall may lie before this pass: a step without a pass does not wait for its device.
  report.compute_s = std::max(0.0, now_s() - begin_s - (stalled_s() - stalled_before_s));
  if (!mesh_.last_stage()) return;
  if (plan.config.pools()) {
    keep_sums(step, out.sums);
    if (mesh_.t == 0) report.encoded = out.encoded(step);
  } else {
    out.keep(batch.output_rows.size(), plan.k_slices);
    report.rows = collector_.collect(batch, plan.k_slices, std::move(out.logits), std::move(out.samples));
  }
}

}  // namespace computron
