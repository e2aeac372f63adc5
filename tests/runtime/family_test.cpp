// Every family against transformers: the checkpoints that `computron convert` made of tests/fixtures/families, computed
// on every mesh of as many ranks as there are, held against the logits, vectors and scores that transformers computed
// in float32 (tests/fixtures/make_families.py).

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <tuple>

#include "computron/comm/stage_transfer.h"
#include "computron/model/checkpoint_check.h"
#include "computron/model/transformer.h"
#include "computron/runtime/host_store.h"
#include "computron/runtime/kv_geometry.h"
#include "tests/support/beside.h"
#include "tests/support/family_fixture.h"
#include "tests/support/test_device.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron {
namespace {

// Of logits and vectors of size 1: float32 throughout, or float16 weights times float16 activations, which a GPU
// multiplies (2^-11 a number; 0.005 after three layers).
constexpr double kTolerance = 1e-4, kF16Tolerance = 1e-2;
constexpr int kMaxRows = 160;

std::filesystem::path fixtures() { return COMPUTRON_FAMILY_FIXTURES; }
std::string checkpoint(const std::string& name) { return test::beside_test("families") / name; }

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures())) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

using Expected = test::FamilyFixture;

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
      : mesh_(shape, world.split(0, world.rank())),
        index_(read_checkpoint_index(path)),
        config_(ModelConfig::from_json(index_.config_json)),
        layout_(make_layout(path)),
        host_(*device_),
        stream_(device_->make_compute_stream(progress_)),
        all_reduce_(shape.tp == 1 ? make_local_all_reduce()
                                  : make_mpi_all_reduce(mesh_.tensor, progress_, max_floats(), nullptr)),
        transfer_(make_mpi_stage_transfer(mesh_, progress_, max_floats(), /*buffers=*/1)),
        work_(*device_, Workspace::Sizes::of(layout_.plan, *ops_, kMaxRows * std::max(config_.vocab, 1))),
        transformer_(layout_, mesh_.t) {
    host_.load(index_, "model", layout_, mesh_.t, ops_->weight_format(), /*threads=*/1);
    if (!test::on_cpu()) fetch_all();
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
  double tolerance() const { return layout_.cache_dtype == DType::kF16 ? kF16Tolerance : kTolerance; }

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
    batch.output_rows = {0};
    batch.top = {1};
    batch.targets = {-1};
    Encoded out{std::vector<float>(static_cast<std::size_t>(config_.hidden)),
                std::vector<float>(static_cast<std::size_t>(config_.classes))};
    forward(batch, {nullptr, nullptr, out.vector.data(), out.scores.data()});
    return out;
  }

  bool reports() const { return mesh_.last_stage() && mesh_.t == 0; }

 private:
  ShardLayout make_layout(const std::string& path) {
    check_tensors(config_, index_);
    const ShardPlan plan = ShardPlan::make(config_, mesh_.shape, mesh_.stage);
    const WeightTypes types = WeightTypes(config_, index_).kept_by(*ops_);
    const std::size_t page =
        round_up(ShardLayout::largest_block_bytes(plan, ops_->weight_format(), types), std::size_t{4096});
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

  std::size_t max_floats() const { return static_cast<std::size_t>(kMaxRows) * std::max(config_.hidden, 64); }

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
  std::unique_ptr<Device> device_ = test::make_test_device({.threads = 1});
  std::unique_ptr<Ops> ops_ = test::on_cpu() ? make_cpu_ops(*device_) : make_cuda_ops(*device_);
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

// The largest difference; infinite where one is not a number.
double distance(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
  }
  return worst;
}

double cosine(std::span<const float> a, std::span<const float> b) {
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  return ab / std::sqrt(std::inner_product(a.begin(), a.end(), a.begin(), 0.0) *
                        std::inner_product(b.begin(), b.end(), b.begin(), 0.0));
}

std::vector<double> softmax(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  for (const float x : logits) p.push_back(std::exp(x - max));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// Of the distribution that the actual logits mean from the expected one.
double divergence(std::span<const float> actual, std::span<const float> expected) {
  const std::vector<double> p = softmax(expected), q = softmax(actual);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] * std::log(p[i] / q[i]);
  return sum;
}

auto best(std::span<const float> row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

// An image [C, S, S] as the rows of a batch.
Batch image_batch(const ModelConfig& c, const std::vector<float>& pixels) {
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

// Some rows that the model computed, and what transformers computed.
struct Result {
  std::string name;
  std::vector<float> actual, expected;
  std::size_t width;  // of a row
};

// All that is expected of the model; what `actual` holds means something where the model reports.
std::vector<Result> compute_decoder(Model& model, const Expected& expected) {
  std::vector<Result> results;
  for (int i = 0; expected.has(fmt::format("prompt.{}", i)); ++i) {
    const auto tokens = expected.tokens(fmt::format("prompt.{}", i));
    const int first_row = static_cast<int>(expected.read<std::int64_t>(fmt::format("first_row.{}", i)).front());
    const std::string logits = fmt::format("logits.{}", i);
    results.push_back({logits, model.logits(tokens, first_row), expected.read<float>(logits),
                       static_cast<std::size_t>(model.config().vocab)});
  }
  return results;
}

Batch encoder_batch(const ModelConfig& config, const Expected& expected, int i) {
  if (config.takes_images()) return image_batch(config, expected.read<float>(fmt::format("pixels.{}", i)));
  Batch batch;
  batch.tokens = expected.tokens(fmt::format("prompt.{}", i));
  batch.positions.resize(batch.tokens.size());
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  return batch;
}

std::vector<Result> compute_encoder(Model& model, const Expected& expected) {
  std::vector<Result> results;
  const std::string input = model.config().takes_images() ? "pixels" : "prompt";
  for (int i = 0; expected.has(fmt::format("{}.{}", input, i)); ++i) {
    const auto [vector, scores] = model.encode(encoder_batch(model.config(), expected, i));
    const std::string pooled = fmt::format("pooled.{}", i), logits = fmt::format("logits.{}", i);
    if (expected.has(pooled)) results.push_back({pooled, vector, expected.read<float>(pooled), vector.size()});
    if (expected.has(logits)) results.push_back({logits, scores, expected.read<float>(logits), scores.size()});
  }
  return results;
}

std::vector<Result> compute(Model& model, const Expected& expected) {
  return model.config().causal ? compute_decoder(model, expected) : compute_encoder(model, expected);
}

std::vector<MeshShape> meshes(int ranks) {
  std::vector<MeshShape> shapes;
  for (int tp = 1; tp <= ranks; ++tp) {
    if (ranks % tp == 0 && tp <= 3 && ranks / tp <= 2) shapes.push_back({.tp = tp, .pp = ranks / tp});
  }
  return shapes;
}

// All ranks go through all families and meshes in the same order, whatever fails.
TEST(Families, ComputeWhatTransformersComputes) {
  const Communicator world = Communicator::world();
  ASSERT_GE(family_names().size(), 12u);
  for (const MeshShape shape : meshes(world.size())) {
    for (const std::string& family : family_names()) {
      SCOPED_TRACE(fmt::format("{} on {}x{}", family, shape.tp, shape.pp));
      Model model(shape, checkpoint(family + ".h5"), world);
      const std::vector<Result> results = compute(model, Expected(family));
      EXPECT_GE(results.size(), 2u);
      for (const Result& result : results) {
        if (!model.reports()) continue;
        EXPECT_LE(distance(result.actual, result.expected), model.tolerance()) << result.name;
      }
    }
  }
}

// Weights and activations in bfloat16, by the measures of what that precision can give: the direction of every row, the
// divergence of the distributions, the best token.
TEST(Families, Bf16StaysClose) {
  const Communicator world = Communicator::world();
  int rows = 0, same_top = 0;
  for (const std::string& family : family_names()) {
    SCOPED_TRACE(family);
    Model model({.tp = world.size(), .pp = 1}, checkpoint(family + ".bf16.h5"), world);
    const std::vector<Result> results = compute(model, Expected(family));
    if (!model.reports()) continue;
    double divergences = 0;
    int own_rows = 0;
    for (const Result& result : results) {
      for (std::size_t at = 0; at < result.expected.size(); at += result.width, ++own_rows) {
        const auto actual = std::span(result.actual).subspan(at, result.width);
        const auto expected = std::span(result.expected).subspan(at, result.width);
        EXPECT_GT(cosine(actual, expected), 0.999) << result.name;
        divergences += divergence(actual, expected);
        same_top += best(actual) == best(expected);
      }
    }
    EXPECT_LT(divergences / own_rows, 1e-3);
    rows += own_rows;
  }
  EXPECT_GE(same_top, 0.97 * rows);
}

// A checkpoint of random codes and scales, and one of the values that these stand for, while it lives. Of all ranks.
class QuantisedPair {
 public:
  QuantisedPair(const Communicator& world, const ModelConfig& config, const WeightType& type) : world_(world) {
    const pid_t pid = getpid();
    const auto bytes = world.broadcast(
        {reinterpret_cast<const std::byte*>(&pid), reinterpret_cast<const std::byte*>(&pid) + sizeof pid}, 0);
    pid_t first;
    std::memcpy(&first, bytes.data(), sizeof first);
    folder_ = std::filesystem::temp_directory_path() / fmt::format("family_test.{}", first);
    if (world.rank() == 0) {
      std::filesystem::create_directory(folder_);
      test::write_quantised_pair(codes(), values(), config, type, /*seed=*/5);
    }
    world.barrier();
  }
  ~QuantisedPair() {
    world_.barrier();
    if (world_.rank() == 0) std::filesystem::remove_all(folder_);
  }
  QuantisedPair(const QuantisedPair&) = delete;
  QuantisedPair& operator=(const QuantisedPair&) = delete;

  std::string codes() const { return folder_ / "codes.h5"; }
  std::string values() const { return folder_ / "values.h5"; }

 private:
  const Communicator& world_;
  std::filesystem::path folder_;
};

// With the inputs of a fixture, whose vocabulary is the configuration's.
void expect_same_bits(const Communicator& world, const std::string& fixture, const ModelConfig& config,
                      WeightType type) {
  SCOPED_TRACE(fmt::format("{}: {} with scales of {}", fixture, name_of(type), name_of(type.scales)));
  const std::unique_ptr<Device> device = test::make_test_device({});
  type.values = make_cpu_ops(*device)->weight_type(DType::kBF16).values;
  const QuantisedPair pair(world, config, type);
  for (const MeshShape shape : meshes(world.size())) {
    SCOPED_TRACE(fmt::format("on {}x{}", shape.tp, shape.pp));
    Model codes(shape, pair.codes(), world), values(shape, pair.values(), world);
    const std::vector<Result> of_codes = compute(codes, Expected(fixture));
    const std::vector<Result> of_values = compute(values, Expected(fixture));
    for (std::size_t i = 0; i < of_codes.size() && codes.reports(); ++i) {
      EXPECT_EQ(distance(of_codes[i].actual, of_values[i].actual), 0) << of_codes[i].name;
      EXPECT_NE(of_codes[i].actual.front(), of_codes[i].actual.back()) << "the test says nothing";
    }
  }
}

ModelConfig config_of(const std::string& family) {
  return ModelConfig::from_json(read_checkpoint_index(checkpoint(family + ".h5")).config_json);
}

// Quantised weights are multiplied as the values are that they stand for: on every mesh, to the last bit.
TEST(Families, QuantisedWeightsComputeWhatTheirValuesDo) {
  if (!test::on_cpu()) GTEST_SKIP() << "a CUDA device does not multiply them yet";
  const Communicator world = Communicator::world();
  constexpr int kRow = WeightType::kWholeRow;
  for (const std::string& family : family_names()) {
    expect_same_bits(world, family, config_of(family), {DType::kBF16, DType::kInt8, DType::kF16, kRow});
  }
  ModelConfig config = config_of("llama3");
  config.hidden = 128;
  config.ffn = 384;  // which 1 to 4 ranks cut between groups of 32, and of 64 into 32
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 32;
  for (const auto& [codes, scales, group] :
       {std::tuple(DType::kInt8, DType::kBF16, 32), std::tuple(DType::kInt8, DType::kF32, 64),
        std::tuple(DType::kFp8, DType::kBF16, 32), std::tuple(DType::kFp8, DType::kF32, 128),
        std::tuple(DType::kFp8, DType::kF32, kRow), std::tuple(DType::kInt4, DType::kBF16, 32),
        std::tuple(DType::kInt4, DType::kF16, 64), std::tuple(DType::kInt4, DType::kE8M0, 16)}) {
    expect_same_bits(world, "llama3", config, {DType::kBF16, codes, scales, group});
  }
}

}  // namespace
}  // namespace computron
