#include "src/bench/resident_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "computron/base/parallel.h"
#include "computron/base/time.h"
#include "computron/checkpoint/index_helper.h"
#include "computron/device/cpu/cpu_stream.h"
#include "computron/model/checkpoint_check.h"
#include "computron/ops/cpu_probe.h"
#include "computron/runtime/host_store.h"

namespace computron {
namespace {

constexpr std::size_t kReadPieceBytes = std::size_t{256} << 10;  // of one thread's turn at the plain read
constexpr std::size_t kFillPieceBytes = std::size_t{16} << 20;
constexpr std::size_t kCopyBytes = std::size_t{2} << 30;  // several times what any device's caches hold
// Of every second byte, which is the higher of a plain type: 0.0078 to 0.031 in bfloat16 and float32, 1 to 1.25 in
// float16.
constexpr std::uint8_t kModerate = 0x3c, kModerateNegative = 0xbc;
constexpr TokenId kFirstToken = 4;  // below it: padding, begin, end and unknown in the vocabularies we know

// Products of equal numbers take less power than those of random ones, and may be faster.
std::vector<std::byte> random_numbers(std::size_t bytes) {
  std::mt19937_64 random(1);
  std::vector<std::byte> numbers(bytes);
  for (std::size_t i = 0; i < bytes; i += 2) {
    const std::uint64_t bits = random();
    numbers[i] = static_cast<std::byte>(bits);
    if (i + 1 < bytes) numbers[i + 1] = std::byte{(bits >> 63) != 0 ? kModerateNegative : kModerate};
  }
  return numbers;
}

ShardLayout make_layout(const CheckpointIndex& index, const Device& device, const Ops& ops) {
  const ModelConfig config = ModelConfig::from_json(index.config_json);
  check_tensors(config, index);
  if (config.pools()) {
    throw ConfigError(index.path + ": is an encoder or embedder; only other decoders have a prefill and a decode");
  }
  const WeightTypes types = WeightTypes(config, index).kept_by(ops);
  const ShardPlan plan = ShardPlan::make(config, {.tp = 1, .pp = 1}, /*stage=*/0);
  const std::size_t page = default_page_bytes(device.default_page_bytes(),
                                              ShardLayout::largest_block_bytes(plan, ops.weight_format(), types),
                                              ShardLayout::common_block_bytes(plan, ops.weight_format(), types));
  return ShardLayout::make(plan, ops.weight_format(), types, page);
}

}  // namespace

// Every page is there.
class ResidentModel::Frames final : public PageSource {
 public:
  explicit Frames(const ResidentModel& model) : model_(model) {}
  ResidentPage acquire(PageUse use) override {
    return {model_.frames_->data() + model_.layout_.uses[use] * model_.layout_.page_bytes, nullptr};
  }
  void release_through(PageUse) override {}
  bool group_by_group() const override { return false; }
  bool at_rest() const override { return true; }

 private:
  const ResidentModel& model_;
};

ResidentModel::ResidentModel(const std::string& file, const std::string& device, int threads, int max_rows,
                             int sequences, int tokens, int prompt)
    : progress_(device == "cpu" ? IdlePolicy{} : IdlePolicy{.kind = IdlePolicy::Kind::kSpin}),
      device_(device == "cpu" ? make_cpu_device({.threads = threads}) : make_cuda_device(/*local_rank=*/0)),
      ops_(device == "cpu" ? make_cpu_ops(*device_) : make_cuda_ops(*device_)) {
  const CheckpointIndex index = read_index_apart(file);
  layout_ = make_layout(index, *device_, *ops_);
  ops_->choose_kernels(layout_.types.all());
  if (const int most = std::max(tokens, prompt); most > config().max_positions) {
    throw Error(ExitCode::kUsage, fmt::format("{} has only {} positions, not {}", file, config().max_positions, most));
  }
  stream_ = device_->make_compute_stream(progress_);
  load(index);
  make_cache(sequences, tokens, prompt);
  work_ = std::make_unique<Workspace>(*device_, Workspace::Sizes::of(layout_.plan, *ops_, max_rows));
  all_reduce_ = make_local_all_reduce();
  transformer_.emplace(layout_, /*t=*/0);
}

void ResidentModel::load(const CheckpointIndex& index) {
  HostStore host(*device_);
  const ModelId model = host.load(index, index.path, layout_, /*t=*/0, ops_->weight_format(), usable_cores());
  frames_ = device_->allocate(static_cast<std::size_t>(layout_.pages()) * layout_.page_bytes, "pages");
  for (PageId page = 0; page < static_cast<PageId>(layout_.pages()); ++page) {
    stream_->copy_to_device(frames_->data() + page * layout_.page_bytes, host.page(model, page).data,
                            host.page_used_bytes(model, page));
  }
  stream_->synchronize();
}

void ResidentModel::make_cache(int sequences, int tokens, int prompt) {
  geometry_ = KvGeometry::make(layout_);
  blocks_a_sequence_ = ceil_div(tokens, geometry_.block_tokens);
  blocks_.resize(std::max(static_cast<std::size_t>(sequences) * blocks_a_sequence_,
                          static_cast<std::size_t>(ceil_div(prompt, geometry_.block_tokens))));
  std::iota(blocks_.begin(), blocks_.end(), 0u);
  cache_frames_.resize(static_cast<std::size_t>(geometry_.frames_for(static_cast<int>(blocks_.size()))));
  std::iota(cache_frames_.begin(), cache_frames_.end(), FrameId{0});
  cache_ = filled(cache_frames_.size() * layout_.page_bytes, "cache");
}

std::unique_ptr<DeviceBuffer> ResidentModel::filled(std::size_t bytes, std::string_view what) {
  auto buffer = device_->allocate(bytes, what);
  const std::vector<std::byte> piece = random_numbers(std::min(bytes, kFillPieceBytes));
  for (std::size_t at = 0; at < bytes; at += piece.size()) {
    stream_->copy_to_device(buffer->data() + at, piece.data(), std::min(piece.size(), bytes - at));
  }
  stream_->synchronize();
  return buffer;
}

Batch ResidentModel::batch(int sequences, int start, int rows) const {
  const TokenId vocabulary = config().vocab - kFirstToken;
  Batch batch;
  for (int s = 0; s < sequences; ++s) {
    const auto blocks = std::span(blocks_).subspan(static_cast<std::size_t>(s) * blocks_a_sequence_,
                                                   ceil_div(start + rows, geometry_.block_tokens));
    batch.sequences.push_back({s * rows, rows, start, blocks});
    for (int row = 0; row < rows; ++row) {
      batch.tokens.push_back(kFirstToken + (s * 8191 + row * 127) % vocabulary);
      batch.positions.push_back(start + row);
    }
    batch.output_rows.push_back(s * rows + rows - 1);
  }
  batch.token_type_ids.assign(batch.tokens.size(), 0);
  batch.top.assign(batch.output_rows.size(), 1);
  batch.targets.assign(batch.output_rows.size(), -1);
  return batch;
}

ResidentModel::PassTimes ResidentModel::run_pass(Ops& ops, const Batch& batch) {
  const KvCacheView cache = geometry_.view(cache_->data(), layout_.page_bytes, cache_frames_);
  Frames pages(*this);
  std::vector<TopLogits> logits(static_cast<std::size_t>(batch.output_count()));
  Pass pass{*stream_, ops, *all_reduce_, pages, *work_, batch, cache};
  const Outputs out{.logits = logits.data()};
  const auto forward = [&] { transformer_->forward(pass, work_->hidden(batch.rows(), config().hidden), out); };
  // As a server does (Executor::is_capturable); other operations than the model's own may wait for the device.
  const bool decodes =
      batch.rows() == batch.output_count() && (config().experts == 0 || ops.routes_experts()) && &ops == ops_.get();
  const double begin_s = now_s();
  const std::string graph = fmt::format("{} rows, {}", batch.rows(), transformer_->begin_pass(pass, out));
  const double prepare_s = now_s() - begin_s;
  decodes ? stream_->run_capturable(graph, forward, /*agree=*/{}) : forward();
  const double enqueue_s = now_s() - begin_s;
  stream_->synchronize();
  ops.end_pass();
  return {now_s() - begin_s, prepare_s, enqueue_s};
}

double ResidentModel::plain_read_bytes_per_s() {
  if (device_->own_memory()) return 2.0 * static_cast<double>(kCopyBytes) / copy_on_device_s();
  return static_cast<double>(frames_->bytes()) / read_by_threads_s();
}

double ResidentModel::read_by_threads_s() {
  const std::size_t bytes = frames_->bytes();
  const double begin_s = now_s();
  cpu(*stream_).launch([&](CpuContext& context) {
    context.parallel_for(static_cast<int>(ceil_div(bytes, kReadPieceBytes)), [&](int, int item) {
      const std::size_t at = static_cast<std::size_t>(item) * kReadPieceBytes;
      read_memory(frames_->data() + at, std::min(kReadPieceBytes, bytes - at));
    });
  });
  stream_->synchronize();
  return now_s() - begin_s;
}

double ResidentModel::copy_on_device_s() {
  if (!copied_) copied_ = filled(2 * kCopyBytes, "plain copies");
  const double begin_s = now_s();
  stream_->copy_on_device(copied_->data() + kCopyBytes, copied_->data(), kCopyBytes);
  stream_->synchronize();
  return now_s() - begin_s;
}

double ResidentModel::cache_bytes(const Batch& batch) const {
  double tokens = 0;
  for (const SequenceRows& s : batch.sequences) tokens += s.start + s.rows;
  return tokens * geometry_.layers * static_cast<double>(geometry_.slot_bytes) / geometry_.block_tokens;
}

}  // namespace computron
