// A checkpoint loaded over a mesh and computed with, without a job around it: all logits, an encoder's vectors and
// scores.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "computron/comm/stage_transfer.h"
#include "computron/model/checkpoint_check.h"
#include "computron/model/transformer.h"
#include "computron/runtime/host_store.h"
#include "computron/runtime/kv_geometry.h"
#include "kernels/cpu/quantised_panel.h"
#include "tests/support/family_fixture.h"
#include "tests/support/test_device.h"

namespace computron::test {

// Of logits and vectors of size 1: float32 throughout, or float16 weights times float16 activations, which a GPU
// multiplies (2^-11 a number; 0.005 after three layers). Between them codes that a CPU multiplies as integers, by
// activations of 15 bits a chunk (kernels/cpu/gemm_integers.h; 0.0023 after three layers).
inline constexpr double kTolerance = 1e-4, kF16Tolerance = 1e-2, kIntegersTolerance = 5e-3;
inline constexpr int kMaxRows = 168;  // a long prompt and its continuation

// All pages of a model in host memory, where a CPU device can compute with them, or in `frames`, for any other.
class AllPages : public PageSource {
 public:
  AllPages(const ShardLayout& layout, const HostStore& host, const std::byte* frames, bool group_by_group)
      : layout_(layout), host_(host), frames_(frames), group_by_group_(group_by_group) {}
  ResidentPage acquire(PageUse use) override {
    const PageId page = layout_.uses[use];
    return {frames_ == nullptr ? host_.page(0, page).data : frames_ + page * layout_.page_bytes, nullptr};
  }
  void release_through(PageUse) override {}
  bool group_by_group() const override { return group_by_group_; }

 private:
  const ShardLayout& layout_;
  const HostStore& host_;
  const std::byte* frames_;
  bool group_by_group_;
};

// A checkpoint loaded over a mesh, its pages so small that most tensors lie in several, and a cache for one sequence.
class Model {
 public:
  Model(MeshShape shape, const std::string& path, const Communicator& world)
      : Model(shape, read_checkpoint_index(path), world) {}
  Model(MeshShape shape, CheckpointIndex index, const Communicator& world)
      : mesh_(shape, world.split(0, world.rank())),
        index_(std::move(index)),
        config_(ModelConfig::from_json(index_.config_json)),
        layout_(make_layout()),
        host_(*device_),
        stream_(device_->make_compute_stream(progress_)),
        all_reduce_(shape.tp == 1 ? make_local_all_reduce()
                                  : make_mpi_all_reduce(mesh_.tensor, progress_, max_floats(), nullptr)),
        transfer_(make_mpi_stage_transfer(mesh_, progress_, max_floats(), /*buffers=*/1)),
        work_(*device_, Workspace::Sizes::of(layout_.plan, *ops_, kMaxRows * std::max(config_.vocab, 1))),
        transformer_(layout_, mesh_.t) {
    host_.load(index_, "model", layout_, mesh_.t, ops_->weight_format(), /*threads=*/1);
    if (!on_cpu()) fetch_all();
    const KvGeometry geometry = KvGeometry::make(layout_);
    blocks_.resize(static_cast<std::size_t>(ceil_div(kMaxRows, geometry.block_tokens)));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    frames_.resize(static_cast<std::size_t>(geometry.frames_for(static_cast<int>(blocks_.size()))));
    std::iota(frames_.begin(), frames_.end(), 0);
    pool_ = device_->allocate(frames_.size() * layout_.page_bytes, "cache");
    cache_ = geometry.view(pool_->data(), layout_.page_bytes, frames_);
  }

  ~Model() {
    mesh_.job.barrier();  // what was sent has been received
    transfer_->poll();
  }

  const ModelConfig& config() const { return config_; }
  double tolerance() const {
    if (layout_.cache_dtype == DType::kF16) return kF16Tolerance;
    return multiplies_integers() ? kIntegersTolerance : kTolerance;
  }
  // Whether some of its codes are.
  bool multiplies_integers() const {
    return on_cpu() && std::ranges::any_of(layout_.types.all(), kernels::multiplies_integers);
  }

  // What the model's weights are multiplied as.
  DType multiplied_as() const { return layout_.types.most().values; }

  // Logits [rows of the second chunk, vocab] on t 0 of the last stage, nothing elsewhere: the tokens in two chunks.
  std::vector<float> logits(const std::vector<TokenId>& tokens, int first_row) {
    if (first_row > 0) run(token_batch(tokens, 0, first_row, /*outputs=*/0));
    return run(token_batch(tokens, first_row, static_cast<int>(tokens.size()), /*outputs=*/16));
  }

  struct Encoded {
    std::vector<float> vector, scores;
  };
  Encoded encode(Batch batch) {
    batch.sequences = {{0, batch.rows(), 0, blocks_}};
    batch.token_type_ids.resize(static_cast<std::size_t>(batch.rows()));
    return pooled(batch);
  }
  // An embedder's, of a sequence that is computed in chunks of so many tokens.
  Encoded embed(const std::vector<TokenId>& tokens, int chunk) {
    std::vector<float> sums(static_cast<std::size_t>(config_.hidden));
    const int count = static_cast<int>(tokens.size());
    for (int begin = 0;; begin += chunk) {
      Batch batch = token_batch(tokens, begin, std::min(begin + chunk, count), /*outputs=*/0);
      batch.means.carried = sums;
      if (begin + chunk >= count) return pooled(batch);
      batch.sum_sequences();
      forward(batch, {nullptr, nullptr, nullptr, nullptr, sums.data()});
    }
  }

  bool reports() const { return mesh_.last_stage() && mesh_.t == 0; }

 private:
  Encoded pooled(Batch& batch) {
    batch.add_pooled(config_.pooling, 0);
    batch.sum_sequences();
    Encoded out{std::vector<float>(static_cast<std::size_t>(config_.embedding_size())),
                std::vector<float>(static_cast<std::size_t>(config_.classes))};
    forward(batch, {nullptr, nullptr, out.vector.data(), out.scores.data()});
    return out;
  }

  ShardLayout make_layout() {
    check_tensors(config_, index_);
    const ShardPlan plan = ShardPlan::make(config_, mesh_.shape, mesh_.stage);
    const WeightTypes types = WeightTypes(config_, index_).kept_by(*ops_);
    const std::size_t least = 16384;  // a page holds a slot of the cache, too, where blocks of rows are small
    const std::size_t page = round_up(
        std::max(ShardLayout::largest_block_bytes(plan, ops_->weight_format(), types), least), std::size_t{4096});
    return ShardLayout::make(plan, ops_->weight_format(), types, page);
  }

  void fetch_all() {
    frames_of_all_ = device_->allocate(static_cast<std::size_t>(layout_.pages()) * layout_.page_bytes, "pages");
    for (PageId page = 0; page < static_cast<PageId>(layout_.pages()); ++page) {
      stream_->copy_to_device(frames_of_all_->data() + page * layout_.page_bytes, host_.page(0, page).data,
                              host_.page_used_bytes(0, page));
    }
    stream_->synchronize();
  }

  std::size_t max_floats() const {
    return static_cast<std::size_t>(kMaxRows) * std::max({config_.hidden, config_.heads + config_.kv_heads, 64});
  }

  // Each of the chunk's last rows once for each token of the vocabulary, since that is how all logits can be had.
  Batch token_batch(const std::vector<TokenId>& tokens, int begin, int end, int outputs) {
    Batch batch;
    for (int i = begin; i < end; ++i) {
      batch.tokens.push_back(tokens[static_cast<std::size_t>(i)]);
      batch.positions.push_back(i);
      batch.token_type_ids.push_back(0);
      for (TokenId token = 0; token < config_.vocab && i >= end - outputs; ++token) {
        batch.output_rows.push_back(i - begin);
        batch.top.push_back(1);
        batch.targets.push_back(token);
      }
    }
    batch.sequences = {{0, end - begin, begin, blocks_}};
    if (config_.rope_scaling == RopeScaling::kLongRope) {
      batch.long_factors = {config_.takes_long_factors(tokens.size()) ? std::uint8_t{1} : std::uint8_t{0}};
    }
    return batch;
  }

  std::vector<float> run(const Batch& batch) {
    std::vector<TopLogits> summaries(batch.targets.size());
    forward(batch, {summaries.data()});
    return mesh_.last_stage() ? gather(summaries) : std::vector<float>{};
  }

  void forward(const Batch& batch, const Outputs& out) {
    AllPages pages(layout_, host_, frames_of_all_ ? frames_of_all_->data() : nullptr,
                   /*group_by_group=*/mesh_.shape.ranks() == 1);
    const Activations hidden = work_.hidden(batch.rows(), config_.hidden);
    const std::size_t count = static_cast<std::size_t>(hidden.rows) * hidden.columns;
    Pass pass{*stream_, *ops_, *all_reduce_, pages, work_, batch, cache_};
    if (!mesh_.first_stage()) transfer_->receive(*stream_, reinterpret_cast<float*>(hidden.data), count);
    transformer_.forward(pass, hidden, out);
    if (!mesh_.last_stage()) transfer_->send(*stream_, reinterpret_cast<float*>(hidden.data), count);
    stream_->synchronize();
  }

  // Each logit from the rank whose slice it lies in.
  std::vector<float> gather(const std::vector<TopLogits>& mine) {
    std::vector<float> logits(mine.size());
    for (const auto& bytes : mesh_.tensor.all_gather(std::as_bytes(std::span(mine)))) {
      const auto* part = reinterpret_cast<const TopLogits*>(bytes.data());
      for (std::size_t i = 0; i < logits.size(); ++i) {
        if (part[i].has_target) logits[i] = part[i].target_logit;
      }
    }
    return logits;
  }

  Mesh mesh_;
  CheckpointIndex index_;
  ModelConfig config_;
  Progress progress_{IdlePolicy{}};
  std::unique_ptr<Device> device_ = make_test_device({.threads = 1});
  std::unique_ptr<Ops> ops_ = on_cpu() ? make_cpu_ops(*device_) : make_cuda_ops(*device_);
  ShardLayout layout_;
  HostStore host_;
  std::unique_ptr<DeviceBuffer> frames_of_all_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<AllReduce> all_reduce_;
  std::unique_ptr<StageTransfer> transfer_;
  Workspace work_;
  Transformer transformer_;
  std::vector<std::uint32_t> blocks_;
  std::vector<FrameId> frames_;
  std::unique_ptr<DeviceBuffer> pool_;
  KvCacheView cache_;
};

// An image [C, S, S] as the rows of a batch.
inline Batch image_batch(const ModelConfig& c, const std::vector<float>& pixels) {
  Batch batch;
  const int side = c.image_size / c.patch_size;
  batch.patches.assign(static_cast<std::size_t>(c.max_positions) * c.patch_values(), 0.0f);
  auto next = batch.patches.begin() + c.patch_values();
  for (int patch = 0; patch < c.patches(); ++patch) {
    for (int channel = 0; channel < c.channels; ++channel) {
      for (int y = 0; y < c.patch_size; ++y) {
        const int row = channel * c.image_size + patch / side * c.patch_size + y;
        const auto begin = pixels.begin() + row * c.image_size + patch % side * c.patch_size;
        next = std::copy_n(begin, c.patch_size, next);
      }
    }
  }
  batch.positions.resize(static_cast<std::size_t>(c.max_positions));
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  return batch;
}

// Of input i of a fixture.
inline Batch encoder_batch(const ModelConfig& config, const FamilyFixture& fixture, int i) {
  if (config.takes_images()) return image_batch(config, fixture.read<float>(fmt::format("pixels.{}", i)));
  Batch batch;
  batch.tokens = fixture.tokens(fmt::format("prompt.{}", i));
  batch.positions.resize(batch.tokens.size());
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  return batch;
}

inline std::vector<MeshShape> meshes(int ranks) {
  std::vector<MeshShape> shapes;
  for (int tp = 1; tp <= ranks; ++tp) {
    if (ranks % tp == 0 && tp <= 3 && ranks / tp <= 2) shapes.push_back({.tp = tp, .pp = ranks / tp});
  }
  return shapes;
}

}  // namespace computron::test
