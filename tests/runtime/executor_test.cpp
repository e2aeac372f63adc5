// The executor with a real transformer, real pages and a real copy thread: whatever the pool's size, the order of
// copies, the link's rate and the lateness of the compute stream, the rows are those of a run with everything resident,
// bit for bit. Pools smaller than one model are refilled behind the pass.

#include "computron/runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <random>

#include "computron/base/digest.h"
#include "computron/base/time.h"
#include "computron/model/checkpoint_check.h"
#include "tests/support/tiny_checkpoint.h"

namespace computron {
namespace {

constexpr std::size_t kPageBytes = 32 << 10;
constexpr int kMaxRows = 32;
constexpr int kAllFrames = 64;

// The models of the test on this rank: files, images, pages.
class Models {
 public:
  Models(const Mesh& mesh, Device& device, Ops& ops) : host(device) {
    for (int m = 0; m < 2; ++m) {
      const std::string path = std::filesystem::temp_directory_path() /
                               ("executor_test." + std::to_string(getpid()) + "." + std::to_string(m) + ".h5");
      test::write_tiny_checkpoint(path, {.layers = 2 + m, .dtype = m == 0 ? DType::kF32 : DType::kBF16,
                                         .seed = static_cast<std::uint64_t>(m + 1)});
      const CheckpointIndex index = read_checkpoint_index(path);
      const ModelConfig config = ModelConfig::from_json(index.config_json);
      check_tensors(config, index);
      const ShardPlan plan = ShardPlan::make(config, mesh.shape, mesh.stage);
      const DType dtype = ops.weight_dtype(index.tensors.begin()->second.dtype);
      images.push_back(std::make_unique<Image>(Image::make(plan, ops.weight_format(), dtype, kPageBytes)));
      host.load(index, "model" + std::to_string(m), *images.back(), mesh.t, ops.weight_format(), /*threads=*/1);
      std::filesystem::remove(path);
    }
  }
  std::vector<const Image*> list() const {
    std::vector<const Image*> list;
    for (const auto& image : images) list.push_back(image.get());
    return list;
  }

  std::vector<std::unique_ptr<Image>> images;
  HostStore host;
};

// Writes the fetches of steps for one stage at random but by the order rule: a page comes into any frame that the
// operation it is for does not use, once the last use of what is there is over.
class Planner {
 public:
  Planner(std::vector<const Image*> images, int frames, std::uint64_t seed)
      : images_(images), state_(images, frames), last_use_(frames), random_(seed) {}

  void plan(Step& step, int stage) {
    StagePlan& plan = step.stages[stage];
    for (const SequenceId id : step.closed) state_.close(id);
    const KvGeometry geometry = KvGeometry::make(*images_[step.model]);
    if (state_.cache(step.model).empty()) {
      CacheChange change{.model = step.model, .taken = 0, .added = {}};
      for (int i = geometry.frames_for(4); i > 0; --i) {
        const CacheChange one{.model = step.model, .taken = 0, .added = {victim({})}};
        state_.change_cache(one);
        change.added.push_back(one.added[0]);
      }
      plan.caches.push_back(change);
    }
    for (const auto& [first, last] : operations(*images_[step.model])) bring_in(step, plan, first, last);
    for (const SequenceChunk& chunk : step.chunks) state_.extend(step.model, chunk);
  }
  const StateDigest& digest() const { return state_.digest(); }
  std::size_t fetches() const { return fetches_; }

 private:
  // Ranges of uses that one operation binds together: a weight with its bias.
  static std::vector<std::pair<PageUse, PageUse>> operations(const Image& image) {
    std::vector<std::pair<PageUse, PageUse>> ranges;
    for (std::size_t i = 0; i < image.tensors.size(); ++i) {
      const bool bias = image.plan.tensors[i].name.ends_with(".bias");
      if (bias && !ranges.empty()) {
        ranges.back().second = image.tensors[i].last_use;
      } else {
        ranges.emplace_back(image.tensors[i].panels.front().use, image.tensors[i].last_use);
      }
    }
    return ranges;
  }

  void bring_in(const Step& step, StagePlan& plan, PageUse first, PageUse last) {
    const Image& image = *images_[step.model];
    std::vector<FrameId> busy;
    for (PageUse use = first; use <= last; ++use) {
      const FrameId frame = state_.frame_of(step.model, image.uses[use]);
      if (frame != kNoFrame) busy.push_back(frame);
    }
    for (PageUse use = first; use <= last; ++use) {
      FrameId frame = state_.frame_of(step.model, image.uses[use]);
      if (frame == kNoFrame) {
        frame = victim(busy);
        busy.push_back(frame);
        const Fetch fetch{step.model, image.uses[use], frame, last_use_[frame].value_or(UsePoint{})};
        state_.place(fetch);
        plan.fetches.push_back(fetch);
        ++fetches_;
      }
      last_use_[frame] = {step.id, use};
    }
  }

  FrameId victim(const std::vector<FrameId>& busy) {
    for (;;) {
      const auto frame = static_cast<FrameId>(random_() % state_.frames());
      if (state_.owner(frame).kind != StageState::Owner::kCache &&
          std::find(busy.begin(), busy.end(), frame) == busy.end()) {
        return frame;
      }
    }
  }

  std::vector<const Image*> images_;
  StageState state_;
  std::vector<std::optional<UsePoint>> last_use_;
  std::size_t fetches_ = 0;
  std::mt19937_64 random_;
};

// A prompt of each model, then tokens one by one, the models taking turns at random.
std::vector<Step> make_steps(int stages, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Step> steps;
  int length[2] = {0, 0};
  for (StepId id = 1; id <= 10; ++id) {
    Step step;
    step.id = id;
    step.model = random() % 2;
    step.stages.resize(stages);
    int& start = length[step.model];
    SequenceChunk chunk{.sequence = step.model + 1,
                        .start = static_cast<std::uint32_t>(start),
                        .tokens = {},
                        .new_blocks = {},
                        .logits = start == 0 ? SequenceChunk::kAll : SequenceChunk::kLast,
                        .top = 3,
                        .after_last = -1};
    for (int n = start == 0 ? 14 : 1; n > 0; --n) chunk.tokens.push_back(static_cast<TokenId>(random() % 128));
    const int block_tokens = KvGeometry::kBlockTokens;
    for (int b = ceil_div(start, block_tokens); b * block_tokens < start + static_cast<int>(chunk.tokens.size()); ++b) {
      chunk.new_blocks.push_back(static_cast<std::uint32_t>(b));
    }
    start += static_cast<int>(chunk.tokens.size());
    step.chunks.push_back(std::move(chunk));
    steps.push_back(std::move(step));
  }
  return steps;
}

struct Setting {
  const char* name;
  int frames;
  CpuDeviceOptions device;
};

class ExecutorTest : public ::testing::TestWithParam<Setting> {
 protected:
  // Rows of all steps as this rank reports them; checks the digests on the way.
  static std::vector<SampledRow> run(MeshShape shape, int frames, const CpuDeviceOptions& options, std::uint64_t seed,
                                     std::size_t* fetches = nullptr) {
    const Mesh mesh(shape, Communicator::world());
    const auto device = make_cpu_device(options);
    const auto ops = make_cpu_ops(*device);
    Progress progress(IdlePolicy{});
    const Models models(mesh, *device, *ops);
    Executor executor(mesh, *device, *ops, progress, models.list(), models.host,
                      {.frames = frames, .frame_bytes = kPageBytes, .max_rows = kMaxRows, .steps_in_flight = 2});
    progress.set_hook([&] { executor.poll(); });
    Planner planner(models.list(), frames, seed);
    std::vector<SampledRow> rows;
    double exposed_s = 0;
    for (Step& step : make_steps(shape.pp, seed)) {
      planner.plan(step, mesh.stage);
      executor.accept(step);
      const double begin_s = now_s();
      const Report report = executor.run(step);
      EXPECT_GT(report.compute_s, 0);
      EXPECT_LE(report.compute_s + report.exposed_s - std::exchange(exposed_s, report.exposed_s), now_s() - begin_s);
      EXPECT_EQ(report.link_bytes, report.digest.bytes_fetched);  // every page is waited for by the step it is for
      EXPECT_EQ(report.digest, planner.digest()) << "step " << step.id;
      rows.insert(rows.end(), report.rows.begin(), report.rows.end());
    }
    if (fetches != nullptr) *fetches = planner.fetches();
    mesh.world.barrier();
    return rows;
  }
};

bool same_bits(const SampledRow& a, const SampledRow& b) {
  return a.token == b.token && a.logprob == b.logprob && a.target_logprob == b.target_logprob && a.top == b.top &&
         a.finite && b.finite;
}

TEST_P(ExecutorTest, RowsAreThoseOfAResidentRun) {
  const Communicator world = Communicator::world();
  std::vector<MeshShape> shapes{{.tp = world.size(), .pp = 1}};
  if (world.size() > 1) shapes.push_back({.tp = world.size() / 2, .pp = 2});
  for (const MeshShape shape : shapes) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      std::size_t resident_fetches = 0, fetches = 0;
      const auto resident = run(shape, kAllFrames, {}, seed, &resident_fetches);
      const auto swapped = run(shape, GetParam().frames, GetParam().device, seed, &fetches);
      EXPECT_GT(fetches, resident_fetches);
      ASSERT_EQ(resident.size(), swapped.size());
      for (std::size_t i = 0; i < resident.size(); ++i) {
        ASSERT_TRUE(same_bits(resident[i], swapped[i])) << "row " << i << " seed " << seed << " tp " << shape.tp;
      }
    }
  }
}

// A rank by itself whose copies are damaged at will: small pool, so that pages come several times.
class Receipts : public ::testing::Test {
 protected:
  static constexpr int kFrames = 8;
  static constexpr int kTrials = 40;
  struct Outcome {
    std::vector<SampledRow> rows;
    Report last;
    std::size_t fetches = 0;
  };

  // The steps of seed 0; copy `damaged_copy` goes wrong `times` times.
  Outcome run(VerifySwap verify, std::uint64_t damaged_copy = 0, int times = 0) {
    flip_ = [=](std::uint64_t copy, int attempt, std::size_t bytes) -> std::optional<std::size_t> {
      if (copy != damaged_copy || attempt >= times) return std::nullopt;
      return hash_tuple(copy, attempt) % (8 * bytes);
    };
    Executor executor(mesh_, *device_, *ops_, progress_, models_.list(), models_.host,
                      {.frames = kFrames,
                       .frame_bytes = kPageBytes,
                       .max_rows = kMaxRows,
                       .steps_in_flight = 1,
                       .verify_swap = verify});
    Planner planner(models_.list(), kFrames, 0);
    Outcome outcome;
    for (Step& step : make_steps(1, 0)) {
      planner.plan(step, 0);
      executor.accept(step);
      outcome.last = executor.run(step);
      outcome.rows.insert(outcome.rows.end(), outcome.last.rows.begin(), outcome.last.rows.end());
    }
    outcome.fetches = planner.fetches();
    return outcome;
  }
  std::size_t pages() const { return models_.images[0]->pages() + models_.images[1]->pages(); }

  InjectedFlip flip_;
  Communicator world_ = Communicator::world();
  Mesh mesh_{{.tp = 1, .pp = 1}, world_.split(world_.rank(), 0)};
  std::unique_ptr<Device> device_ = make_cpu_device(
      {.flip = [this](std::uint64_t copy, int attempt, std::size_t bytes) { return flip_(copy, attempt, bytes); }});
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_);
  Progress progress_{IdlePolicy{}};
  Models models_{mesh_, *device_, *ops_};
};

bool same_rows(const std::vector<SampledRow>& a, const std::vector<SampledRow>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits);
}

TEST_F(Receipts, CountWhatTheyAreAskedFor) {
  const Outcome off = run(VerifySwap::kOff), first = run(VerifySwap::kFirst), every = run(VerifySwap::kEvery);
  EXPECT_EQ(off.last.pages_verified, 0u);
  EXPECT_EQ(first.last.pages_verified, pages());
  EXPECT_EQ(every.last.pages_verified, every.fetches);
  EXPECT_GT(every.fetches, pages());
  EXPECT_EQ(every.last.pages_refetched, 0u);
  EXPECT_TRUE(same_rows(off.rows, first.rows) && same_rows(off.rows, every.rows));
}

TEST_F(Receipts, DamageIsMendedWhereverItIs) {
  const Outcome whole = run(VerifySwap::kOff);
  int noticed_without = 0;
  for (std::uint64_t trial = 0; trial < kTrials; ++trial) {
    const std::uint64_t copy = mix64(trial) % whole.fetches;
    const Outcome mended = run(VerifySwap::kEvery, copy, 1);
    EXPECT_EQ(mended.last.pages_refetched, 1u) << "copy " << copy;
    EXPECT_TRUE(same_rows(mended.rows, whole.rows)) << "copy " << copy;
    noticed_without += !same_rows(run(VerifySwap::kOff, copy, 1).rows, whole.rows);
  }
  EXPECT_GT(noticed_without, kTrials / 4);  // the damage matters
}

TEST_F(Receipts, DamageThatStaysEndsTheRunByName) {
  const std::size_t fetches = run(VerifySwap::kOff).fetches;
  for (std::uint64_t trial = 0; trial < kTrials; ++trial) {
    try {
      run(VerifySwap::kEvery, mix64(trial) % fetches, 2);
      ADD_FAILURE() << "trial " << trial << " went unnoticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDevice);
      EXPECT_THAT(error.what(), ::testing::ContainsRegex("page [0-9]+ of model model[01] .*digest"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pools, ExecutorTest,
                         ::testing::Values(Setting{"Small", 8, {}},                               //
                                           Setting{"SmallTwoThreads", 8, {.threads = 2}},         //
                                           Setting{"SmallSlowLink", 8, {.link_gb_per_s = 0.2}},   //
                                           Setting{"SmallDeferred", 8, {.deferred = true}},       //
                                           Setting{"DeferredSlowLink", 9, {.link_gb_per_s = 0.2, .deferred = true}}),
                         [](const auto& setting) { return setting.param.name; });

}  // namespace
}  // namespace computron
