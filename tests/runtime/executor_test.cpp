// The executor with a real transformer, real pages and a real copy thread: whatever the pool's size, the order of
// copies, the link's rate and the lateness of the compute stream, the rows are those of a run with everything resident,
// bit for bit. Pools smaller than one model, and than its largest tensor, are refilled behind the pass; caches move to
// host memory between two passes of their model, their frames are filled with pages, and they come back elsewhere.

#include "computron/runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "computron/base/digest.h"
#include "computron/base/time.h"
#include "computron/model/checkpoint_check.h"
#include "tests/support/bad_link.h"
#include "tests/support/deferred_stream.h"
#include "tests/support/test_communicators.h"
#include "tests/support/tiny_checkpoint.h"

extern "C" __attribute__((weak)) std::uint64_t computron_emulated_calls();  // tests/emulated_gpu/stream.h

namespace computron {
namespace {

constexpr std::size_t kPageBytes = 32 << 10;
constexpr int kMaxRows = 32;
constexpr int kAllFrames = 128;
constexpr int kOneModelsFrames = 20;
constexpr int kHostSlots = 4;  // fewer than the caches of both models take
constexpr int kVocab = 1500;   // embedding and tied head: 12 pages
constexpr int kSequenceBlocks = 4;

// The models of the test on this rank: files, layouts, pages.
class Models {
 public:
  // `layers`: of the first; the second has one more. `experts`: of a layer's mixture, of which a token takes two.
  Models(const Mesh& mesh, Device& device, Ops& ops, PageCoding coding = PageCoding::kRaw, int layers = 2,
         int experts = 0)
      : host(device, coding) {
    for (int m = 0; m < 2; ++m) {
      const std::string path = std::filesystem::temp_directory_path() /
                               ("executor_test." + std::to_string(getpid()) + "." + std::to_string(m) + ".h5");
      ModelConfig tiny = test::opt_config({.layers = layers + m, .vocab = kVocab});
      tiny.experts = experts;
      tiny.experts_per_token = experts > 0 ? 2 : 0;
      if (experts > 0) tiny.mlp_bias = false;
      test::write_random_checkpoint(path, tiny, m == 0 ? DType::kF32 : DType::kBF16, static_cast<std::uint64_t>(m + 1));
      const CheckpointIndex index = read_checkpoint_index(path);
      const ModelConfig config = ModelConfig::from_json(index.config_json);
      check_tensors(config, index);
      const ShardPlan plan = ShardPlan::make(config, mesh.shape, mesh.stage);
      const WeightType type = ops.weight_type(index.tensors.begin()->second.dtype);
      layouts.push_back(std::make_unique<ShardLayout>(ShardLayout::make(plan, ops.weight_format(), type, kPageBytes)));
      host.load(index, "model" + std::to_string(m), *layouts.back(), mesh.t, ops.weight_format(), /*threads=*/1);
      std::filesystem::remove(path);
    }
  }
  std::vector<const ShardLayout*> list() const {
    std::vector<const ShardLayout*> list;
    for (const auto& layout : layouts) list.push_back(layout.get());
    return list;
  }

  std::vector<std::unique_ptr<ShardLayout>> layouts;
  HostStore host;
};

// Writes the fetches of steps for one stage at random but by the order rule: a page comes into any frame whose last use
// is over by then, of this pass as ShardLayout::over_before says.
class Planner {
 public:
  // Without host slots caches stay where they are.
  Planner(std::vector<const ShardLayout*> layouts, int frames, int host_slots, std::uint64_t seed)
      : layouts_(layouts),
        state_(layouts, frames, host_slots),
        last_use_(frames),
        cache_used_(layouts.size()),
        random_(seed) {}

  void plan(Step& step, int stage) {
    StagePlan& plan = step.stages[stage];
    for (const SequenceId id : step.closed) state_.close(id);
    for (ModelId m = 0; m < layouts_.size(); ++m) offload(m, plan);
    if (state_.cache(step.model).empty()) provide_cache(step, plan);
    cache_used_[step.model] = step.id;
    for (PageUse use = 0; use < layouts_[step.model]->uses.size(); ++use) bring_in(step, plan, use);
    for (const SequenceChunk& chunk : step.chunks) state_.extend(step.model, chunk);
  }
  StateDigest digest_after(const Step& step) const { return state_.digest_after(step); }
  std::size_t fetches() const { return fetches_; }
  std::size_t reloads() const { return reloads_; }
  std::size_t cache_bytes_moved() const { return moved_frames_ * kPageBytes; }

 private:
  // Half of the time, if there is a cache and room for it.
  void offload(ModelId model, StagePlan& plan) {
    const std::vector<FrameId> list = state_.cache(model);
    CacheChange change{.model = model, .taken = static_cast<std::uint32_t>(list.size()), .kind = CacheChange::kOffload};
    for (HostSlot s = 0; static_cast<int>(s) < state_.host_slots() && change.slots.size() < list.size(); ++s) {
      if (!state_.slot_taken(s)) change.slots.push_back(s);
    }
    if (list.empty() || change.slots.size() < list.size() || random_() % 2 == 0) return;
    change.after = {cache_used_[model]};
    moved_frames_ += list.size();
    for (const FrameId frame : list) last_use_[frame] = {};  // whatever comes into it comes behind the offload
    state_.change_cache(change);
    plan.caches.push_back(change);
  }

  // New frames, filled with what was offloaded, if anything.
  void provide_cache(const Step& step, StagePlan& plan) {
    CacheChange change{.model = step.model, .slots = state_.offloaded(step.model)};
    if (!change.slots.empty()) change.kind = CacheChange::kReload;
    reloads_ += !change.slots.empty();
    moved_frames_ += change.slots.size();
    const auto blocks = kSequenceBlocks * static_cast<int>(step.chunks.size());
    for (int i = KvGeometry::make(*layouts_[step.model]).frames_for(blocks); i > 0; --i) {
      change.added.push_back(victim({step.id - 1}, change.added));
      change.after = std::max(change.after, last_use_[change.added.back()]);
    }
    state_.change_cache(change);
    plan.caches.push_back(change);
  }

  void bring_in(const Step& step, StagePlan& plan, PageUse use) {
    const ShardLayout& layout = *layouts_[step.model];
    FrameId frame = state_.frame_of(step.model, layout.uses[use]);
    if (frame == kNoFrame) {
      const std::int64_t over = layout.over_before[use];
      frame = victim(over < 0 ? ReleasePoint{step.id - 1} : ReleasePoint{step.id, static_cast<PageUse>(over)});
      const Fetch fetch{step.model, layout.uses[use], frame, last_use_[frame]};
      state_.place(fetch);
      plan.fetches.push_back(fetch);
      ++fetches_;
    }
    last_use_[frame] = {step.id, use};
  }

  // A frame whose last use is not after `over`, that is no cache and not among `taken`.
  FrameId victim(ReleasePoint over, const std::vector<FrameId>& taken = {}) {
    for (;;) {
      const auto frame = static_cast<FrameId>(random_() % last_use_.size());
      const bool free = std::find(taken.begin(), taken.end(), frame) == taken.end();
      if (free && state_.owner(frame).kind != StageState::Owner::kCache && last_use_[frame] <= over) return frame;
    }
  }

  std::vector<const ShardLayout*> layouts_;
  StageState state_;
  std::vector<ReleasePoint> last_use_;  // [frame]
  std::vector<StepId> cache_used_;      // [model] last step that ran it
  std::size_t fetches_ = 0, reloads_ = 0, moved_frames_ = 0;
  std::mt19937_64 random_;
};

// A chunk of `tokens` random tokens of sequence `number` of a model, of which `start` have been computed.
SequenceChunk make_chunk(ModelId model, int number, int start, int tokens, std::mt19937_64& random) {
  SequenceChunk chunk{.sequence = 10 * number + model + 1,
                      .start = static_cast<std::uint32_t>(start),
                      .tokens = {},
                      .new_blocks = {},
                      .output = start == 0 ? SequenceChunk::kAll : SequenceChunk::kLast,
                      .top = 3,
                      .after_last = -1};
  for (int n = tokens; n > 0; --n) chunk.tokens.push_back(static_cast<TokenId>(random() % kVocab));
  const int block_tokens = KvGeometry::kBlockTokens;
  for (int b = ceil_div(start, block_tokens); b * block_tokens < start + tokens; ++b) {
    chunk.new_blocks.push_back(static_cast<std::uint32_t>(number * kSequenceBlocks + b));
  }
  return chunk;
}

// Prompts of each model, then a token of each sequence at a time, the models taking turns at random.
// A model's turn lasts `turn` steps.
std::vector<Step> make_steps(int stages, std::uint64_t seed, StepId count = 10, StepId turn = 1, bool samples = false,
                             int sequences = 1) {
  std::mt19937_64 random(seed);
  std::vector<Step> steps;
  int length[2] = {0, 0};
  ModelId model = 0;
  for (StepId id = 1; id <= count; ++id) {
    Step step;
    step.id = id;
    if (turn == 1 || id % turn == 1) model = random() % 2;
    step.model = model;
    step.stages.resize(stages);
    int& start = length[step.model];
    const int tokens = start > 0 ? 1 : 14 / sequences;
    for (int number = 0; number < sequences; ++number) {
      step.chunks.push_back(make_chunk(step.model, number, start, tokens, random));
      if (!samples || start > 0) continue;
      step.chunks.back().sampling = {.temperature = 0.9f,
                                     .top_p = 0.8f,
                                     .repetition_penalty = 1.2f,
                                     .prompt_tokens = static_cast<std::uint32_t>(tokens),
                                     .key = seed};
    }
    start += tokens;
    steps.push_back(std::move(step));
  }
  return steps;
}

struct Setting {
  const char* name;
  int frames;
  CpuDeviceOptions device;
  TransportKind transport = TransportKind::kHost;
};

// Calls that gave a stream something: launches, copies, graphs, events. 0 where no GPU is emulated.
std::uint64_t emulated_calls() { return computron_emulated_calls == nullptr ? 0 : computron_emulated_calls(); }

std::unique_ptr<Ops> make_test_ops(Device& device) {
  return test::on_cpu() ? make_cpu_ops(device) : make_cuda_ops(device);
}

class ExecutorTest : public ::testing::TestWithParam<Setting> {
 protected:
  struct Outcome {
    std::vector<SampledRow> rows;  // of all steps, as this rank reports them
    std::size_t fetches = 0, reloads = 0;
    std::uint64_t graph_launches = 0;
    std::vector<std::uint64_t> graph_calls;  // to an emulated GPU, of the steps that launched a graph
  };
  struct Steps {
    StepId count = 10, turn = 1;
    bool use_graphs = true, sample = false;
    int sequences = 1, layers = 2, experts = 0;
  };

  static std::vector<MeshShape> shapes() {
    const int ranks = Communicator::world().size();
    if (ranks == 1) return {{.tp = 1, .pp = 1}};
    return {{.tp = ranks, .pp = 1}, {.tp = ranks / 2, .pp = 2}};
  }
  // Whether decoding is launched as graphs.
  bool captures(MeshShape shape) const {
    const auto transport = test::test_transport(GetParam().transport, Communicator::world().rank());
    return !test::on_cpu() && (shape.tp == 1 || transport == TransportKind::kDirect);
  }

  // Checks the digests on the way.
  static Outcome run(MeshShape shape, const Setting& setting, int host_slots, std::uint64_t seed) {
    return run(shape, setting, host_slots, seed, Steps{});
  }
  static Outcome run(MeshShape shape, const Setting& setting, int host_slots, std::uint64_t seed, const Steps& steps) {
    const Mesh mesh(shape, Communicator::world());
    const auto device = test::make_test_device(setting.device, mesh.rank);
    const auto ops = make_test_ops(*device);
    Progress progress(IdlePolicy{});
    // What swaps has coded pages in every other run.
    const bool coded = host_slots > 0 && seed % 2 == 1;
    const Models models(mesh, *device, *ops, coded ? PageCoding::kCoded : PageCoding::kRaw, steps.layers,
                        steps.experts);
    const ExecutorOptions options{
        .memory = {.frames = setting.frames, .frame_bytes = kPageBytes, .host_slots = host_slots},
        .max_rows = kMaxRows,
        .steps_in_flight = 2,
        .use_graphs = steps.use_graphs};
    Executor executor(mesh, *device, *ops, progress, models.list(), models.host,
                      test::make_test_communicators(test::test_transport(setting.transport, mesh.rank), mesh, *device,
                                                    progress, Executor::communicator_sizes(models.list(), options)),
                      options);
    progress.set_hook([&] { executor.poll(); });
    Planner planner(models.list(), setting.frames, host_slots, seed);
    Outcome outcome;
    double exposed_s = 0;
    std::uint64_t reported_graphs = 0;
    for (Step& step : make_steps(shape.pp, seed, steps.count, steps.turn, steps.sample, steps.sequences)) {
      planner.plan(step, mesh.stage);
      executor.accept(step);
      const double begin_s = now_s();
      const std::uint64_t calls_before = emulated_calls();
      const Report report = executor.run(step);
      if (report.launched_as_graph) outcome.graph_calls.push_back(emulated_calls() - calls_before);
      const double took_s = now_s() - begin_s, exposed_before_s = std::exchange(exposed_s, report.exposed_s);
      EXPECT_LE(report.compute_s, took_s);
      EXPECT_GE(report.exposed_s, exposed_before_s);
      if (test::on_cpu()) {  // whose waits are over with the step that waits
        EXPECT_GT(report.compute_s, 0);
        EXPECT_LE(report.compute_s + report.exposed_s - exposed_before_s, took_s);
      }
      // Every page is waited for by the step it is for, but on the CPU those of experts that nobody chose; an offload
      // may still be on its way.
      if (!test::on_cpu() || steps.experts == 0) {
        EXPECT_GE(report.frame_bytes, report.digest.bytes_fetched);
      }
      EXPECT_LE(report.frame_bytes, report.digest.bytes_fetched + planner.cache_bytes_moved());
      EXPECT_EQ(report.link_bytes < report.frame_bytes, coded && report.digest.bytes_fetched > 0);
      EXPECT_EQ(report.digest, planner.digest_after(step)) << "step " << step.id;
      outcome.rows.insert(outcome.rows.end(), report.rows.begin(), report.rows.end());
      reported_graphs += report.launched_as_graph ? 1 : 0;
    }
    EXPECT_EQ(reported_graphs, executor.graph_launches());
    outcome.fetches = planner.fetches();
    outcome.reloads = planner.reloads();
    outcome.graph_launches = executor.graph_launches();
    mesh.job.barrier();
    return outcome;
  }
};

bool same_bits(const SampledRow& a, const SampledRow& b) {
  return a.token == b.token && a.logprob == b.logprob && a.target_logprob == b.target_logprob && a.top == b.top &&
         a.finite && b.finite;
}

TEST_P(ExecutorTest, RowsAreThoseOfAResidentRun) {
  for (const MeshShape shape : shapes()) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const Outcome resident = run(shape, {"", kAllFrames, {}}, /*host_slots=*/0, seed);
      const Outcome swapped = run(shape, GetParam(), kHostSlots, seed);
      EXPECT_GT(swapped.fetches, resident.fetches);
      EXPECT_GT(swapped.reloads, 0u);
      ASSERT_EQ(resident.rows.size(), swapped.rows.size());
      for (std::size_t i = 0; i < resident.rows.size(); ++i) {
        ASSERT_TRUE(same_bits(resident.rows[i], swapped.rows[i]))
            << "row " << i << " seed " << seed << " tp " << shape.tp;
      }
    }
  }
}

// Decoding for some steps a model at a time: one, the other and the first again, as the seed decides. With room for all
// pages or for one model's, which come back into other frames; one sequence, or three, which are padded to four.
TEST_P(ExecutorTest, PassesLaunchedAsGraphsHaveTheBitsOfThoseLaunchedKernelByKernel) {
  struct Case {
    int frames;
    bool sample;
    int sequences, experts = 0;
  };
  for (const MeshShape shape : shapes()) {
    for (const auto& [frames, sample, sequences, experts] :
         {Case{kAllFrames, false, 1}, {kAllFrames, true, 3}, {kOneModelsFrames, true, 1}, {kAllFrames, false, 3, 4}}) {
      const Setting setting{"", frames, GetParam().device, GetParam().transport};
      const StepId count = frames == kAllFrames ? 24 : 40;
      Steps steps{.count = count, .turn = 8, .sample = sample, .sequences = sequences, .experts = experts};
      const Outcome graphs = run(shape, setting, kHostSlots, /*seed=*/65, steps);
      steps.use_graphs = false;
      const Outcome plain = run(shape, setting, kHostSlots, /*seed=*/65, steps);
      EXPECT_EQ(plain.graph_launches, 0u);
      if (captures(shape)) {
        EXPECT_GE(graphs.graph_launches, frames == kAllFrames ? 10u : 2u);
      } else {
        EXPECT_EQ(graphs.graph_launches, 0u);
      }
      ASSERT_EQ(plain.rows.size(), graphs.rows.size());
      for (std::size_t i = 0; i < plain.rows.size(); ++i) {
        ASSERT_TRUE(same_bits(plain.rows[i], graphs.rows[i]))
            << "row " << i << " of " << frames << " frames, tp " << shape.tp;
      }
    }
  }
}

// What one rank cannot, none does: so the ranks of a stage stay together, and nothing is lost.
TEST_P(ExecutorTest, WhereOneRankHasNoRoomForGraphsThereAreNone) {
  if (computron_emulated_calls == nullptr) GTEST_SKIP() << "the emulated GPU can be told to have no room";
  const MeshShape shape{.tp = Communicator::world().size(), .pp = 1};
  if (!captures(shape)) GTEST_SKIP() << "sums of this transport are not capturable";
  const Setting setting{"", kAllFrames, GetParam().device, GetParam().transport};
  Steps steps{.count = 12, .turn = 12};
  const Outcome graphs = run(shape, setting, /*host_slots=*/0, /*seed=*/5, steps);
  if (Communicator::world().rank() == 0) setenv("COMPUTRON_EMULATED_GRAPHS", "0", /*overwrite=*/1);
  const Outcome without = run(shape, setting, /*host_slots=*/0, /*seed=*/5, steps);
  unsetenv("COMPUTRON_EMULATED_GRAPHS");
  EXPECT_GT(graphs.graph_launches, 5u);
  EXPECT_EQ(without.graph_launches, 0u);
  ASSERT_EQ(graphs.rows.size(), without.rows.size());
  for (std::size_t i = 0; i < graphs.rows.size(); ++i) EXPECT_TRUE(same_bits(graphs.rows[i], without.rows[i])) << i;
}

// The median is a step that launches a graph that was there before. Calls are those that give a stream something.
TEST_P(ExecutorTest, AGraphCostsTheHostTheSameFewCallsWhateverTheDepth) {
  if (computron_emulated_calls == nullptr) GTEST_SKIP() << "calls are counted by the emulated GPU";
  const MeshShape shape{.tp = Communicator::world().size(), .pp = 1};
  if (!captures(shape)) GTEST_SKIP() << "sums of this transport are not capturable";
  const auto usual_calls = [&](int layers) {
    const Setting setting{"", /*frames=*/512, GetParam().device, GetParam().transport};
    std::vector<std::uint64_t> calls =
        run(shape, setting, /*host_slots=*/0, /*seed=*/5, {.count = 16, .turn = 16, .layers = layers}).graph_calls;
    EXPECT_GE(calls.size(), 10u);
    std::ranges::nth_element(calls, calls.begin() + static_cast<std::ptrdiff_t>(calls.size() / 2));
    return calls.at(calls.size() / 2);
  };
  const std::uint64_t calls = usual_calls(2);
  EXPECT_GE(calls, 1u);
  EXPECT_LE(calls, 4u);
  EXPECT_EQ(usual_calls(24), calls);
}

// A rank by itself whose copies are damaged at will: small pool, so that pages come several times, raw or coded.
class Receipts : public ::testing::TestWithParam<PageCoding> {
 protected:
  static constexpr int kFrames = 10;
  static int trials() { return test::on_cpu() ? 40 : 5; }
  struct Outcome {
    std::vector<SampledRow> rows;
    Report last;
    std::size_t fetches = 0;
  };

  void SetUp() override {
    if (!test::has_bad_link()) GTEST_SKIP() << "only links of the CPU device and of the emulated GPU are damaged";
  }

  // The steps of seed 0; copy `damaged_copy` goes wrong `times` times.
  Outcome run(VerifySwap verify, std::uint64_t damaged_copy = 0, int times = 0) {
    link_.damage(damaged_copy, times);
    const ExecutorOptions options{.memory = {.frames = kFrames, .frame_bytes = kPageBytes},
                                  .max_rows = kMaxRows,
                                  .steps_in_flight = 1,
                                  .verify_swap = verify};
    Executor executor(mesh_, *device_, *ops_, progress_, models_.list(), models_.host,
                      make_communicators(test::on_cpu() ? TransportKind::kHost : TransportKind::kStaged, mesh_,
                                         *device_, progress_, Executor::communicator_sizes(models_.list(), options)),
                      options);
    Planner planner(models_.list(), kFrames, /*host_slots=*/0, /*seed=*/0);
    Outcome outcome;
    for (Step& step : make_steps(1, 0)) {
      planner.plan(step, 0);
      executor.accept(step);
      outcome.last = executor.run(step);
      rows_ += outcome.last.rows.size();
      outcome.rows.insert(outcome.rows.end(), outcome.last.rows.begin(), outcome.last.rows.end());
    }
    outcome.fetches = planner.fetches();
    return outcome;
  }
  std::size_t pages() const { return models_.layouts[0]->pages() + models_.layouts[1]->pages(); }
  // Whether damage may be where a page has nothing: the emulated GPU's link damages pages as they cross it.
  static bool may_not_matter() { return GetParam() == PageCoding::kCoded && !test::on_cpu(); }

  test::BadLink link_;
  Communicator world_ = Communicator::world();
  Mesh mesh_{{.tp = 1, .pp = 1}, world_.split(world_.rank(), 0)};
  std::unique_ptr<Device> device_ = test::make_test_device({.copied = link_.hook()});
  std::unique_ptr<Ops> ops_ = make_test_ops(*device_);
  Progress progress_{IdlePolicy{}};
  Models models_{mesh_, *device_, *ops_, GetParam()};
  std::size_t rows_ = 0;  // of all runs, also of those that fail
};

bool same_rows(const std::vector<SampledRow>& a, const std::vector<SampledRow>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits);
}

TEST_P(Receipts, CountWhatTheyAreAskedFor) {
  const Outcome off = run(VerifySwap::kOff), first = run(VerifySwap::kFirst), every = run(VerifySwap::kEvery);
  EXPECT_EQ(off.last.pages_verified, 0u);
  EXPECT_EQ(first.last.pages_verified, pages());
  EXPECT_EQ(every.last.pages_verified, every.fetches);
  EXPECT_GT(every.fetches, pages());
  EXPECT_EQ(every.last.pages_refetched, 0u);
  EXPECT_TRUE(same_rows(off.rows, first.rows) && same_rows(off.rows, every.rows));
}

// A step whose rider is of another family, or of none, as only a broken rank 0 sends it.
TEST_P(Receipts, ARiderOfAnotherFamilyEndsTheRunByName) {
  const ExecutorOptions options{.memory = {.frames = 2 * kFrames, .frame_bytes = kPageBytes}, .max_rows = kMaxRows};
  for (const bool families : {false, true}) {
    if (families) models_.layouts[0]->family = Digest128{1, 2}, models_.layouts[1]->family = Digest128{1, 3};
    Executor executor(mesh_, *device_, *ops_, progress_, models_.list(), models_.host,
                      make_communicators(test::on_cpu() ? TransportKind::kHost : TransportKind::kStaged, mesh_,
                                         *device_, progress_, Executor::communicator_sizes(models_.list(), options)),
                      options);
    Step step{.id = 1, .model = 0, .closed = {}, .chunks = {}, .stages = std::vector<StagePlan>(1)};
    step.chunks.push_back({.sequence = 1, .tokens = {5}, .new_blocks = {0}, .output = SequenceChunk::kLast});
    step.chunks.push_back(
        {.sequence = 2, .tokens = {6}, .new_blocks = {0}, .output = SequenceChunk::kLast, .rider = 1});
    executor.accept(step);
    EXPECT_THAT([&] { executor.run(step); },
                ::testing::ThrowsMessage<Error>(::testing::HasSubstr("a rider is no model of the pass's family")));
  }
}

TEST_P(Receipts, DamageIsMendedWhereverItIs) {
  const Outcome whole = run(VerifySwap::kOff);
  int noticed_without = 0, mended = 0;
  for (int trial = 0; trial < trials(); ++trial) {
    const std::uint64_t copy = mix64(static_cast<std::uint64_t>(trial)) % whole.fetches;
    const Outcome damaged = run(VerifySwap::kEvery, copy, 1);
    EXPECT_TRUE(damaged.last.pages_refetched == 1 || (damaged.last.pages_refetched == 0 && may_not_matter()))
        << "copy " << copy;
    EXPECT_EQ(damaged.last.pages_verified, whole.fetches) << "copy " << copy;
    EXPECT_TRUE(same_rows(damaged.rows, whole.rows)) << "copy " << copy;
    mended += static_cast<int>(damaged.last.pages_refetched);
    if (test::on_cpu()) noticed_without += !same_rows(run(VerifySwap::kOff, copy, 1).rows, whole.rows);
  }
  EXPECT_GT(mended, trials() / 2);
  if (test::on_cpu()) {
    EXPECT_GT(noticed_without, trials() / 4);  // the damage matters
  }
}

// The last results are those of the pass before the one that the page was for.
TEST_P(Receipts, DamageThatStaysEndsTheRunByName) {
  if (may_not_matter()) GTEST_SKIP() << "the second damage would have to matter, too";
  const Outcome whole = run(VerifySwap::kOff);
  for (int trial = 0; trial < trials(); ++trial) {
    rows_ = 0;
    try {
      run(VerifySwap::kEvery, mix64(static_cast<std::uint64_t>(trial)) % whole.fetches, 2);
      ADD_FAILURE() << "trial " << trial << " went unnoticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDevice);
      EXPECT_THAT(error.what(), ::testing::ContainsRegex("page [0-9]+ of model model[01] .*digest"));
      EXPECT_LT(rows_, whole.rows.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, Receipts, ::testing::Values(PageCoding::kRaw, PageCoding::kCoded),
                         [](const auto& test) { return test.param == PageCoding::kRaw ? "Raw" : "Coded"; });

INSTANTIATE_TEST_SUITE_P(
    Pools, ExecutorTest,
    ::testing::Values(Setting{"Small", 10, {}},                                               //
                      Setting{"SmallTwoThreads", 10, {.threads = 2}},                         //
                      Setting{"SmallSlowLink", 11, {.link_gb_per_s = 0.5}},                   //
                      Setting{"SmallDeferred", 10, {.wrap_compute_stream = test::deferred}},  //
                      Setting{"DeferredSlowLink", 11, {.link_gb_per_s = 0.5, .wrap_compute_stream = test::deferred}},
                      Setting{"DeferredStaged", 10, {.wrap_compute_stream = test::deferred}, TransportKind::kStaged}),
    [](const auto& setting) { return setting.param.name; });

}  // namespace
}  // namespace computron
