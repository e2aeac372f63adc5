// The bounds of src/README.md, held in virtual time: where nothing is noisy, missing one is a fault of the plan.

#include "computron/plan/virtual_mesh.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/plan/virtual_job.h"

namespace computron::test {
namespace {

using Outcome = VirtualJob::Outcome;

// --- One swap ---------------------------------------------------------------------------------------------------

// Two models, room for one: every request finds its model gone. max(Σ C, T_s + C of the later stages) and a page.
double response_bound(const VirtualJob& job) {
  const double page_s = job.transfer_s / job.pages;
  return std::max(job.stages * job.pass_s, job.transfer_s + (job.stages - 1) * job.pass_s) + page_s;
}

TEST(VirtualSwap, TheFirstTokenComesWithinTheBound) {
  for (const int stages : {1, 2, 4}) {
    for (const double pass_s : {0.001, 0.05, 0.1, 0.3}) {
      VirtualJob job{.models = 2, .stages = stages, .pass_s = pass_s, .frames = 66, .policy = "fifo"};
      for (int i = 0; i < 8; ++i) job.add(static_cast<ModelId>(i % 2), 1, 10.0 * i);
      const Outcome outcome = job.run();
      for (const Completion& c : outcome.run.completions) {
        EXPECT_LE(c.finished_s - c.arrival_s, 1.01 * response_bound(job) + 0.003) << stages << " stages, " << pass_s;
      }
      EXPECT_EQ(outcome.run.swaps, 8u);
    }
  }
}

// Stages fetch at once: each its own part, in the time of one.
TEST(VirtualSwap, StagesFetchSideBySide) {
  VirtualJob job{.models = 1, .stages = 4, .pass_s = 1e-4};
  job.send(1, 1);
  const Outcome outcome = job.run();
  for (const double busy_s : outcome.busy_s) EXPECT_NEAR(busy_s, 0.1, 1e-9);
  EXPECT_LT(outcome.run.end_s, 0.11);
}

// --- Many models, all requests known ----------------------------------------------------------------------------

// max(Σ T + C of the last, T of the first + Σ C).
double mixed_bound(const VirtualJob& job, double compute_s) {
  return std::max(job.models * job.transfer_s + compute_s, job.transfer_s + job.models * compute_s);
}

TEST(VirtualMixed, TransfersHideBehindComputeAndNoByteMovesTwice) {
  for (const double ratio : {0.5, 1.0, 2.0}) {
    for (const auto& [policy, limit] : {std::pair("throughput", 1.07), std::pair("balanced", 1.25)}) {
      VirtualJob job{.models = 8, .frames = 3 * 64 + 30, .policy = policy};
      constexpr int kTokens = 4, kBatches = 4;  // of 64
      job.pass_s = ratio * job.transfer_s / (kTokens * kBatches);
      job.send(8 * 64 * kBatches, kTokens);
      const Outcome outcome = job.run();
      EXPECT_LE(outcome.run.end_s, limit * mixed_bound(job, ratio * job.transfer_s)) << policy << " " << ratio;
      if (job.policy != "throughput") continue;
      EXPECT_EQ(outcome.run.swaps, 8u) << ratio;
      EXPECT_EQ(outcome.bytes[0], 8 * outcome.model_bytes) << ratio;
    }
  }
}

// Where links are the limit, what crosses them is; the same pages are fetched.
TEST(VirtualMixed, CodedPagesTakeTheirPartOfTheTime) {
  for (const char* policy : {"throughput", "balanced"}) {
    VirtualJob job{.models = 8, .pass_s = 1e-3, .frames = 3 * 64 + 30, .policy = policy};
    job.send(8 * 64, 1);
    const Outcome raw = job.run();
    job.link_share = 0.7;
    const Outcome coded = job.run();
    EXPECT_NEAR(coded.run.end_s, 0.7 * raw.run.end_s, 0.01 * raw.run.end_s) << policy;
    EXPECT_NEAR(coded.busy_s[0], 0.7 * raw.busy_s[0], 1e-4) << policy;
    EXPECT_NEAR(static_cast<double>(coded.bytes[0]), 0.7 * static_cast<double>(raw.bytes[0]), 1e3) << policy;
  }
}

// What the scheduler believes at first matters little: it learns.
TEST(VirtualMixed, WronglyBelievedRatesCostLittle) {
  for (const double wrong : {0.1, 10.0}) {
    VirtualJob job{.models = 8, .pass_s = 0.1 / 16, .frames = 3 * 64 + 30, .policy = "throughput"};
    job.believed = {.link_bytes_per_s = wrong * 64 * kVirtualPage / 0.1, .step_s = 0.1 / 16 / wrong};
    job.send(8 * 64 * 4, 4);
    const Outcome outcome = job.run();
    EXPECT_LE(outcome.run.end_s, 1.07 * mixed_bound(job, 0.1)) << wrong;
    EXPECT_EQ(outcome.run.swaps, 8u);
  }
}

// --- Larger than the pool ---------------------------------------------------------------------------------------

TEST(VirtualOutOfCore, AModelTwiceThePoolTakesTheLongerOfTransferAndCompute) {
  for (const int pages : {48, 128}) {
    for (const double ratio : {0.25, 0.5, 1.0, 2.0}) {
      VirtualJob job{.pages = pages, .pass_s = ratio * 0.1, .frames = pages / 2};
      constexpr int kTokens = 21;
      job.send(1, kTokens);
      const Outcome outcome = job.run();
      const Completion& c = outcome.completion(0);
      const double step_s = (c.finished_s - c.first_token_s) / (kTokens - 1);
      const double moved_s = outcome.busy_s[0] / kTokens;
      EXPECT_LE(step_s, 1.1 * std::max(moved_s, job.pass_s)) << pages << " pages, C/T " << ratio;
      EXPECT_LT(moved_s, 0.75 * job.transfer_s) << "what stays is not fetched again";
    }
  }
}

// --- Prefetch and pipelines -------------------------------------------------------------------------------------

TEST(VirtualPipeline, TheStagesAreKeptBusy) {
  for (const int stages : {2, 4}) {
    VirtualJob job{.stages = stages, .transfer_s = 1e-3, .pass_s = 0.008};
    job.send(64, 40);
    const Outcome outcome = job.run();
    int passes = 0;
    for (const auto& sent : outcome.run.steps) passes += !sent.planned.step.chunks.empty();
    EXPECT_GE(passes * job.pass_s / outcome.run.end_s, 0.95) << stages;
  }
}

// Where rows cost time, prompts and answers of all lengths make passes of a model about equally long: the stages
// compute nearly all the time. (Prompts at once, as many as a pass holds, left them 0.77 and 0.56 of it.)
TEST(VirtualPipeline, PromptsBesideAnswersKeepTheStagesBusy) {
  for (const auto& [stages, least] : {std::pair(2, 0.95), std::pair(4, 0.92)}) {
    VirtualJob job{.stages = stages, .transfer_s = 1e-3, .pass_s = 0.004, .row_s = 2e-4, .frames = 64 + 400};
    job.believed.link_bytes_per_s = 0;
    for (int i = 0; i < 400; ++i) job.add(0, 4 + i * 61 % 120, 0, 8 + i * 37 % 300);
    const Outcome outcome = job.run();
    EXPECT_GE(outcome.compute_s(job) / outcome.run.end_s, least) << stages;
  }
}

// As perf/mixed.sh: answers of four tokens, of which whole batches began and ended together.
TEST(VirtualPipeline, ShortAnswersOfManyModelsKeepTheStagesBusy) {
  for (const auto& [stages, least] : {std::pair(2, 0.94), std::pair(4, 0.9)}) {
    VirtualJob job{.models = 8, .stages = stages, .transfer_s = 0.05, .pass_s = 0.004, .row_s = 2e-4};
    job.frames = 3 * 64 + 30;
    job.policy = "throughput";
    job.believed.link_bytes_per_s = 0;
    job.send(8 * 250, 4);
    const Outcome outcome = job.run();
    EXPECT_GE(outcome.compute_s(job) / outcome.run.end_s, least) << stages;
  }
}

// --- Many sequences ---------------------------------------------------------------------------------------------

// The longest mean time between a request's tokens, and the largest number of requests that came later than one and had
// their first token more than `slack_s` earlier.
struct Starving {
  double gap_s = 0;
  int overtaken = 0;
};

Starving starving(const Outcome& outcome, double slack_s) {
  std::vector<Completion> all = outcome.run.completions;
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  Starving worst;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double gaps = all[i].generated_tokens - 1;
    if (gaps > 0) worst.gap_s = std::max(worst.gap_s, (all[i].finished_s - all[i].first_token_s) / gaps);
    const auto earlier = std::count_if(all.begin() + static_cast<std::ptrdiff_t>(i), all.end(), [&](const auto& later) {
      return later.first_token_s + slack_s < all[i].first_token_s;
    });
    worst.overtaken = std::max(worst.overtaken, static_cast<int>(earlier));
  }
  return worst;
}

// 512 at a time, of mixed lengths, against 512 that do nothing but decode; also where the cache holds about half of
// them at their full lengths. Nobody starves: requests begin in the order in which they came, and who has begun gets a
// token in every other pass at least, the longest of which is full of prompts.
TEST(VirtualBatch, FiveHundredMixedRequestsAreComputedAtTheRateOfDecoding) {
  for (const int stages : {1, 2}) {
    for (const int cache_frames : {800, 200}) {
      VirtualJob job{.stages = stages, .transfer_s = 1e-3, .pass_s = 0.004, .row_s = 2e-5, .frames = 64 + cache_frames};
      job.max_seqs = 512;
      job.believed.link_bytes_per_s = 0;
      std::size_t tokens = 0;
      for (int i = 0; i < 2048; ++i) {
        const int prompt = 8 + i * 37 % 200, answer = 4 + i * 61 % 120;
        job.add(0, answer, 0, prompt);
        tokens += static_cast<std::size_t>(prompt + answer - 1);
      }
      const Outcome outcome = job.run();
      const double steady = 512 / (stages * job.pass_s + 512 * job.row_s);
      EXPECT_GE(static_cast<double>(tokens) / outcome.run.end_s, 0.9 * steady) << stages << ", " << cache_frames;
      EXPECT_LT(outcome.preemptions, 200u) << stages << ", " << cache_frames;
      const double full_s = stages * job.pass_s + job.max_batch_tokens * job.row_s;
      const Starving worst = starving(outcome, 2 * full_s);
      EXPECT_LE(worst.gap_s, 2.01 * full_s) << stages << ", " << cache_frames;
      EXPECT_EQ(worst.overtaken, 0) << stages << ", " << cache_frames;
    }
  }
}

TEST(VirtualPrefetch, TheNextModelIsThereWhenItBecomesActive) {
  VirtualJob job{.models = 2, .pass_s = 0.005};
  job.add(0, 40, 0);
  job.add(1, 40, 0);
  const Outcome outcome = job.run();
  EXPECT_NEAR(outcome.run.end_s, 0.1 + 80 * 0.005, 0.02) << "the second transfer is not seen";
  EXPECT_LT(outcome.run.exposed_s, 0.105);
}

// Two models that fit the pool one at a time, with long answers: the cache that the other is about to give back is no
// reason to take more than there is room for beside the pages, and stream.
TEST(VirtualCaches, AModelThatFitsStaysResidentBesideItsCache) {
  VirtualJob job{.models = 2, .pages = 80, .pass_s = 0.004, .frames = 100, .max_seqs = 256, .policy = "throughput"};
  job.send(600, 60);
  const Outcome outcome = job.run();
  EXPECT_EQ(outcome.bytes[0], 2 * outcome.model_bytes);
}

// --- Policies ---------------------------------------------------------------------------------------------------

TEST(VirtualPolicies, NobodyIsStarved) {
  VirtualJob job{.models = 3, .pass_s = 0.004, .frames = 80, .max_seqs = 4, .policy_options = {.max_wait_s = 1}};
  for (int i = 0; i < 3000; ++i) job.add(i % 2, 1, 0.0015 * i);  // more than two models can serve
  job.add(2, 1, 0.5);
  const Outcome outcome = job.run();
  const Completion& lonely = outcome.completion(3000);
  EXPECT_LE(lonely.finished_s - lonely.arrival_s, 1.0 + 3 * (job.transfer_s + 0.1));
}

// Both fit the pool side by side, their caches do not: the one that runs must not go on while the other's pages cannot
// come for want of frames for its cache.
TEST(VirtualPolicies, WhoFillsInWhileAnotherComesDoesNotKeepItOut) {
  VirtualJob job{.models = 2, .frames = 140, .max_seqs = 512, .policy_options = {.max_wait_s = 0.5}};
  for (int i = 0; i < 20000; ++i) job.add(0, 120, 0.0005 * i);
  for (int i = 0; i < 2000; ++i) job.add(1, 120, 1.0);
  const Outcome outcome = job.run();
  double first_s = 1e9;
  for (const Completion& c : outcome.run.completions) {
    if (c.model == 1) first_s = std::min(first_s, c.first_token_s - c.arrival_s);
  }
  EXPECT_LT(first_s, 3.0);
}

TEST(VirtualPolicies, BalancedBeatsFifoWhereSwapsDominate) {
  VirtualJob job{.models = 6, .pass_s = 0.01, .frames = 4 * 64 + 20, .max_seqs = 32};
  std::uint64_t state = 1;
  for (int i = 0; i < 600; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    job.add(static_cast<ModelId>((state >> 33) % 6), 1, 0.008 * i);
  }
  const double balanced_s = job.run().mean_latency_s();
  job.policy = "fifo";
  EXPECT_LT(1.5 * balanced_s, job.run().mean_latency_s());
}

// Three models asked for one after another, room for two: the third comes in while nobody asks.
TEST(VirtualPolicies, ModelsThatAreWantedRegularlyAreThereWhenTheyAre) {
  VirtualJob job{.models = 3, .frames = 2 * 64 + 20};
  for (int i = 0; i < 60; ++i) job.add(static_cast<ModelId>(i % 3), 1, 0.3 * i);
  const Outcome outcome = job.run();
  for (RequestId id = 15; id < 60; ++id) {
    const Completion& c = outcome.completion(id);
    EXPECT_LT(c.finished_s - c.arrival_s, 2 * job.pass_s) << id;
  }
}

// --- The mesh itself --------------------------------------------------------------------------------------------

TEST(VirtualMesh, TheSameJobTakesTheSameTime) {
  VirtualJob job{.models = 5, .stages = 2, .frames = 150};
  job.send(100, 7);
  const Outcome first = job.run(), second = job.run();
  EXPECT_EQ(first.run.end_s, second.run.end_s);
  ASSERT_EQ(first.run.completions.size(), second.run.completions.size());
  for (std::size_t i = 0; i < first.run.completions.size(); ++i) {
    EXPECT_EQ(first.run.completions[i].id, second.run.completions[i].id);
  }
}

ShardLayout layout_of_two_pages() {
  ShardLayout layout;
  layout.page_bytes = kVirtualPage;
  for (PageId p = 0; p < 2; ++p) {
    layout.used_bytes.push_back(kVirtualPage);
    layout.uses.push_back(p);
    layout.over_before.push_back(static_cast<std::int64_t>(p) - 1);
  }
  return layout;
}

// A fetch starts when it has been sent, its frame's last use is over and the link is free, whichever comes last.
TEST(VirtualMesh, AFetchWaitsForTheUseItNames) {
  const ShardLayout layout = layout_of_two_pages();
  const std::vector<std::vector<const ShardLayout*>> layouts{{&layout}, {&layout}};
  VirtualMesh mesh(
      layouts, CostModel(layouts, {.link_bytes_per_s = kVirtualPage / 1.0, .memory_bytes_per_s = 1e18, .step_s = 8}),
      0);
  Step step;
  step.id = 1;
  step.chunks.push_back({.sequence = 1, .tokens = {5}, .new_blocks = {}, .output = SequenceChunk::kLast});
  step.stages = {{.caches = {}, .fetches = {{0, 0, 0, {}}, {0, 1, 1, {}}, {1, 0, 0, {1, 0}}}}};
  const VirtualMesh::Execution execution = mesh.execute(step, 0);
  // Page 0 lands at 1, its use ends at 5, page 1 has landed at 2, its use ends at 9; the other model's page has the
  // link from 5 to 6.
  EXPECT_NEAR(execution.reported_s, 9, 1e-9);
  EXPECT_NEAR(execution.exposed_s, 1, 1e-9);
  EXPECT_NEAR(mesh.busy_s(0), 3, 1e-9);
  step.id = 2;
  step.model = 1;
  step.stages[0].fetches = {{1, 1, 1, {1, 1}}};
  EXPECT_NEAR(mesh.execute(step, 0).reported_s, 9 + 8, 1e-9) << "both pages are there before their uses";
}

// A pass that waits for no page: what comes into a frame of it waits for the frame's own use all the same.
TEST(VirtualMesh, AResidentModelsUsesEndInTurn) {
  const ShardLayout layout = layout_of_two_pages();
  const std::vector<std::vector<const ShardLayout*>> layouts{{&layout}, {&layout}};
  VirtualMesh mesh(
      layouts, CostModel(layouts, {.link_bytes_per_s = kVirtualPage / 6.0, .memory_bytes_per_s = 1e18, .step_s = 8}),
      0);
  const auto pass = [&mesh](StepId id, ModelId model, std::vector<Fetch> fetches) {
    Step step;
    step.id = id;
    step.model = model;
    step.chunks.push_back({.sequence = model, .tokens = {5}, .new_blocks = {}, .output = SequenceChunk::kLast});
    step.stages = {{.caches = {}, .fetches = std::move(fetches)}};
    return mesh.execute(step, id == 1 ? 0 : 20);
  };
  pass(1, 0, {{0, 0, 0, {}}, {0, 1, 1, {}}});
  const VirtualMesh::Execution resident = pass(2, 0, {{1, 0, 0, {2, 0}}, {1, 1, 1, {2, 1}}});
  EXPECT_NEAR(resident.reported_s, 28, 1e-9);
  EXPECT_EQ(resident.exposed_s, 0);
  // Page 0's use ends at 24: the other model's page has the link until 30, its second one until 36.
  const VirtualMesh::Execution next = pass(3, 1, {});
  EXPECT_NEAR(next.reported_s, 40, 1e-9);
  EXPECT_NEAR(next.exposed_s, 2 + 2, 1e-9);
}

}  // namespace
}  // namespace computron::test
