#include "computron/plan/virtual_cluster.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "computron/placement/fast_simulator.h"
#include "computron/plan/predicted_run.h"

namespace computron::test {
namespace {

constexpr std::int64_t kGB = 1'000'000'000;
constexpr double kAtOnce = 1e18;  // bytes a second

ShapeProfile even_stages(int pp, float latency_s, std::int64_t bytes) {
  const auto stages = static_cast<std::size_t>(pp);
  return {.stage_s = std::vector<float>(stages, latency_s / static_cast<float>(pp)),
          .stage_bytes = std::vector<std::int64_t>(stages, bytes / pp)};
}

// Models of one pass a request, on one rank or in two or four stages.
std::vector<ModelProfile> one_pass_models(const std::vector<float>& latencies_s, std::int64_t bytes = 2 * kGB) {
  std::vector<ModelProfile> models;
  for (const float latency_s : latencies_s) {
    ModelProfile& model = models.emplace_back();
    model.id = "m" + std::to_string(models.size());
    for (const int pp : {1, 2, 4}) model.shapes[{1, pp}] = even_stages(pp, latency_s, bytes);
  }
  return models;
}

// A decoder on one rank: a pass takes 10 ms and 1 ms a row; 1 MB of cache a token.
ModelProfile decoder(const std::string& id, std::int64_t bytes = 2 * kGB) {
  ShapeProfile profile{.stage_s = {0.1f}, .stage_bytes = {bytes}, .cache_token_bytes = {1'000'000}};
  for (int rows = 1; rows <= 2048; rows *= 2)
    profile.passes.push_back({rows, {0.01f + 0.001f * static_cast<float>(rows)}});
  return {.id = id, .shapes = {{{1, 1}, profile}}};
}

ClusterOptions options_of(std::int64_t device_bytes, double link_bytes_per_s = kAtOnce) {
  return {.policy = "fifo",
          .max_batch_tokens = 16,
          .device_bytes = device_bytes,
          .link_bytes_per_s = link_bytes_per_s,
          .latency_s = 0};
}

std::vector<float> no_deadlines(const std::vector<ModelProfile>& models) {
  return std::vector<float>(models.size(), std::numeric_limits<float>::infinity());
}

double mean_latency_s(const VirtualRun& run) {
  double sum_s = 0;
  for (const Completion& completion : run.completions) sum_s += completion.finished_s - completion.arrival_s;
  return sum_s / static_cast<double>(run.completions.size());
}

// --- One group --------------------------------------------------------------------------------------------------

TEST(VirtualCluster, OneGroupIsItsSchedulerAlone) {
  const std::vector<ModelProfile> models = {decoder("a"), decoder("b"), decoder("c")};
  const ModelPlacement placement = {{{1, 1}, {0, 1, 2}}};
  ClusterOptions options = options_of(5 * kGB, 10e9);
  options.policy = "balanced";
  options.latency_s = 20e-6;
  const auto arrivals = make_arrivals(GammaGaps{2}, std::vector<double>{2, 1, 1}, {0, 20}, 1);
  const auto requests = requests_of(arrivals, models, no_deadlines(models), 40, 8);

  VirtualCluster alone(models, placement, options), cluster(models, placement, options);
  for (const Request& request : requests) alone.scheduler(0).submit(request);
  alone.scheduler(0).close_input();
  const VirtualRun expected = run_keeping_steps(alone.scheduler(0), alone.mesh(0));
  std::vector<VirtualRun::SentStep> steps;
  const VirtualRun run = cluster.run(requests, [&](VirtualRun::SentStep sent) { steps.push_back(std::move(sent)); });

  EXPECT_GE(run.swaps, 10u);
  ASSERT_EQ(steps.size(), expected.steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    ASSERT_EQ(steps[i].planned.step.encode(0), expected.steps[i].planned.step.encode(0)) << i;
    ASSERT_EQ(steps[i].sent_s, expected.steps[i].sent_s) << i;
    ASSERT_EQ(steps[i].execution.reported_s, expected.steps[i].execution.reported_s) << i;
  }
  ASSERT_EQ(run.completions.size(), requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(run.completions[i].id, expected.completions[i].id);
    ASSERT_EQ(run.completions[i].finished_s, expected.completions[i].finished_s);
  }
}

// --- Times ------------------------------------------------------------------------------------------------------

// 3 prompts of 16 tokens, the first token of each behind its prompt; then 3 tokens together.
TEST(VirtualCluster, PassesTakeWhatTheProfileSays) {
  const std::vector<ModelProfile> models = {decoder("a")};
  ClusterOptions options = options_of(8 * kGB);
  options.max_batch_tokens = 64;
  VirtualCluster cluster(models, {{{1, 1}, {0}}}, options);
  const VirtualRun run = cluster.run(requests_of(std::vector<Arrival>(3), models, no_deadlines(models), 16, 5));
  const double prompts_s = 0.01 + 0.048, decode_s = 0.01 + 0.003;
  EXPECT_NEAR(run.end_s, prompts_s + 4 * decode_s, 1e-6);
  EXPECT_NEAR(run.groups[0].compute_s[0], run.end_s, 1e-6);
}

TEST(VirtualCluster, MoreRowsThanWereProfiledTakeInProportion) {
  std::vector<ModelProfile> models = {decoder("a")};
  models[0].shapes.begin()->second.passes = {{1, {0.01f}}, {16, {0.16f}}};
  ClusterOptions options = options_of(8 * kGB);
  options.max_batch_tokens = 64;
  VirtualCluster cluster(models, {{{1, 1}, {0}}}, options);
  const VirtualRun run = cluster.run(requests_of(std::vector<Arrival>(1), models, no_deadlines(models), 64, 1));
  EXPECT_NEAR(run.end_s, 0.64, 1e-4);
}

// The transfer, trailed by a page's compute: with however many pages.
TEST(VirtualCluster, LargerPagesMoveAsMuch) {
  const auto models = one_pass_models({0.1f, 0.1f});
  for (const auto& [most, pages] : {std::pair{10, 10}, {50, 48}, {0, 239}}) {  // of 8 MiB or several times that
    ClusterOptions options = options_of(21 * kGB / 10, 10e9);
    options.most_pages = most;
    VirtualCluster cluster(models, {{{1, 1}, {0, 1}}}, options);
    EXPECT_EQ(cluster.scheduler(0).layout(0, 0).pages(), pages);
    EXPECT_EQ(cluster.scheduler(0).layout(0, 0).total_used_bytes(), 2 * kGB);
    const VirtualRun run =
        cluster.run(requests_of(std::vector<Arrival>{{0, 0}, {1, 1}, {2, 0}}, models, no_deadlines(models), 16, 1));
    EXPECT_NEAR(mean_latency_s(run), 0.2 + 0.1 / pages, 0.012) << pages;
    EXPECT_EQ(run.swaps, 3u);
  }
}

// Seven tenths of the time, and the same frames: as many swaps.
TEST(VirtualCluster, CodedModelsTakeLessOfTheLink) {
  auto models = one_pass_models({0.01f, 0.01f});
  const auto play_s = [&models] {
    VirtualCluster cluster(models, {{{1, 1}, {0, 1}}}, options_of(21 * kGB / 10, 10e9));
    const VirtualRun run =
        cluster.run(requests_of(std::vector<Arrival>{{0, 0}, {1, 1}, {2, 0}}, models, no_deadlines(models), 16, 1));
    EXPECT_EQ(run.swaps, 3u);
    return mean_latency_s(run);
  };
  const double raw_s = play_s();
  for (ModelProfile& model : models) {
    for (auto& [shape, profile] : model.shapes) {
      for (const std::int64_t bytes : profile.stage_bytes) profile.link_bytes.push_back(7 * bytes / 10);
    }
  }
  EXPECT_NEAR(play_s(), 0.7 * raw_s, 0.002);
}

// A model that the pool does not hold comes in as far as it does not stay: besides what there is no room for, twice
// what an operation holds at once.
TEST(VirtualCluster, WhatAnOperationHoldsAtOnceComesAnewInEachPass) {
  constexpr std::int64_t kPage = std::int64_t{8} << 20, kRequests = 5;
  auto models = one_pass_models({0.001f}, /*bytes=*/100 * kPage);
  const auto moved_pages = [&models] {
    VirtualCluster cluster(models, {{{1, 1}, {0}}}, options_of(80 * kPage, 10e9));
    const VirtualRun run =
        cluster.run(requests_of(std::vector<Arrival>(kRequests, {0, 0}), models, no_deadlines(models), 16, 1));
    EXPECT_EQ(run.completions.size(), std::size_t{kRequests});
    return static_cast<std::int64_t>(cluster.mesh(0).bytes(0)) / kPage;
  };
  const std::int64_t by_pages = moved_pages();
  models[0].shapes[{1, 1}].operation_bytes = {9 * kPage};
  EXPECT_NEAR(moved_pages() - by_pages, (kRequests - 1) * 2 * (9 - 1), kRequests);
}

// Pages that are not full take as many frames as full ones.
TEST(VirtualCluster, PagesThatAreNotFullTakeRoom) {
  constexpr std::int64_t kPage = std::int64_t{8} << 20;
  auto models = one_pass_models({0.001f}, /*bytes=*/100 * kPage);
  models[0].shapes[{1, 1}].frame_bytes = {125 * kPage};
  ClusterOptions options = options_of(200 * kPage, 10e9);
  options.most_pages = 0;
  VirtualCluster cluster(models, {{{1, 1}, {0}}}, options);
  const ShardLayout& layout = cluster.scheduler(0).layout(0, 0);
  EXPECT_EQ(layout.pages(), 125);
  EXPECT_EQ(layout.total_used_bytes(), 100 * kPage);
}

// --- As the fast simulator --------------------------------------------------------------------------------------

struct Compared {
  double fast_s, played_s;          // mean latencies
  double fast_share, played_share;  // of requests within five times what they take alone
};

// Nothing to swap, fixed latencies, one request a pass, fifo.
Compared compare(const std::vector<ModelProfile>& models, const ModelPlacement& placement, double rate_per_s, double cv,
                 std::uint32_t seed, int steps_ahead) {
  const auto rates = power_law_rates(models.size(), rate_per_s, 0.5);
  const auto arrivals = make_arrivals(GammaGaps{cv}, rates, {0, 300}, seed);
  std::vector<RequestOutcome> outcomes;
  SimulatorOptions rules = SimulatorOptions::without_penalties();
  rules.dispatch = DispatchRule::kLeastFinish;
  FastSimulator fast(models, rules);
  const SimulationResult result = fast.run(placement, arrivals, no_deadlines(models), &outcomes);
  ClusterOptions options = options_of(100 * kGB);
  options.steps_ahead = steps_ahead;
  options.max_seqs = placement[0].shape.pp;  // one in each stage: more of a model would go before older ones of others
  VirtualCluster cluster(models, placement, options);
  const VirtualRun run = cluster.run(requests_of(arrivals, models, no_deadlines(models), 16, 1));
  Compared compared{result.mean_latency_s(), mean_latency_s(run), 0, 0};
  const auto is_soon = [&](std::uint32_t model, double latency_s) { return latency_s <= 5 * models[model].alone_s(); };
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    compared.fast_share += is_soon(arrivals[i].model, outcomes[i].latency_s) ? 1 : 0;
  }
  for (const Completion& done : run.completions) {
    compared.played_share += is_soon(done.model, done.finished_s - done.arrival_s) ? 1 : 0;
  }
  compared.fast_share /= static_cast<double>(arrivals.size());
  compared.played_share /= static_cast<double>(arrivals.size());
  return compared;
}

struct Case {
  const char* name;
  ModelPlacement placement;
  double rate_per_s = 0, cv = 1;
  int steps_ahead = 0;   // nothing is sent before a stage is free for it
  double within = 0.01;  // of the mean latency
};

void expect_alike(const std::vector<ModelProfile>& models, const Case& one) {
  const Compared c = compare(models, one.placement, one.rate_per_s, one.cv, /*seed=*/1, one.steps_ahead);
  EXPECT_NEAR(c.played_s / c.fast_s, 1, one.within) << one.name;
  EXPECT_NEAR(c.played_share, c.fast_share, 0.011) << one.name;
}

// Where a group is one queue, or models and groups are alike, the means are the same to 1e-3.
TEST(VirtualCluster, PlaysOnePassRequestsAsTheFastSimulatorDoes) {
  const auto equal = one_pass_models({0.1f, 0.1f, 0.1f, 0.1f}), unequal = one_pass_models({0.05f, 0.1f, 0.2f, 0.1f});
  const PlacedGroup one{{1, 1}, {0, 1, 2, 3}}, two{{1, 2}, {0, 1, 2, 3}}, four{{1, 4}, {0, 1, 2, 3}};
  expect_alike(equal, {"a rank", {one}, 8, 1, 0, 1e-4});
  expect_alike(equal, {"a pipeline", {four}, 32, 1, 0, 1e-4});
  expect_alike(equal, {"a pipeline, bursts", {four}, 28, 4, 0, 1e-4});
  expect_alike(equal, {"dedicated groups", {{{1, 1}, {0}}, {{1, 1}, {1}}, {{1, 1}, {2, 3}}}, 16, 1, 0, 1e-4});
  expect_alike(equal, {"replicas", {one, one, one, one}, 32, 1, 0, 1e-4});
  expect_alike(equal, {"replicas, bursts", {one, one, one, one}, 28, 4, 0, 1e-4});
  expect_alike(equal, {"two pipelines, bursts", {two, two}, 28, 4, 0, 1e-3});
  expect_alike(equal, {"two pipelines", {two, two}, 32, 1, 0, 1e-3});
  expect_alike(unequal, {"unequal models, replicas", {one, one, one, one}, 28, 1});
  expect_alike(equal, {"unequal shapes", {two, one, one}, 30, 1});
}

// A job sends a pass before the one in front of it has ended, and it cannot be stolen any more. What was given to the
// group that was free first loses nothing by it.
TEST(VirtualCluster, JobsThatCommitThemselvesEarlierLoseNothing) {
  const PlacedGroup one{{1, 1}, {0, 1, 2, 3}};
  const Compared committed =
      compare(one_pass_models({0.1f, 0.1f, 0.1f, 0.1f}), {one, one, one, one}, 32, 1, 1, /*steps_ahead=*/1);
  EXPECT_NEAR(committed.played_s / committed.fast_s, 1, 0.02);
}

// No more passes are in a pipeline than stages and one, so that a short one behind a long one leaves stages idle. The
// fast simulator does not know that.
TEST(VirtualCluster, JobsFillPipelinesLess) {
  const auto unequal = one_pass_models({0.05f, 0.1f, 0.2f, 0.1f});
  const PlacedGroup two{{1, 2}, {0, 1, 2, 3}};
  std::vector<double> longer;
  for (const int ahead : {0, 1, 16}) {
    const Compared c = compare(unequal, {two, two}, 28, 1, 1, ahead);
    longer.push_back(c.played_s / c.fast_s);
  }
  EXPECT_GT(longer[0], longer[1] + 0.05);
  EXPECT_GT(longer[1], longer[2]);
}

// --- Predictions ------------------------------------------------------------------------------------------------

TEST(PredictedRun, CountsWhatEndedAndWhere) {
  const auto models = one_pass_models({0.1f, 0.1f, 0.1f});
  const ModelPlacement placement = {{{1, 1}, {0}}, {{1, 2}, {1}}};
  ClusterOptions options = options_of(10 * kGB);
  VirtualCluster cluster(models, placement, options);
  // Two of model 0, of which the second is late; one each of the models 1 and 2, the last of which is nowhere.
  const std::vector<Arrival> arrivals = {{0, 0}, {0, 0}, {1, 1}, {2, 2}};
  const VirtualRun run = cluster.run(requests_of(arrivals, models, std::vector<float>(3, 0.15f), 16, 1));
  const Prediction prediction = predict(models, placement, run, 10);
  EXPECT_EQ(prediction.requests, 4u);
  EXPECT_EQ(prediction.served, 3u);
  EXPECT_DOUBLE_EQ(prediction.attainment, 0.5);
  EXPECT_NEAR(prediction.mean_latency_s, (0.1 + 0.2 + 0.1) / 3, 1e-6);
  EXPECT_NEAR(prediction.p99_latency_s, 0.2, 1e-6);
  EXPECT_NEAR(prediction.makespan_s, 1.1, 1e-6);
  EXPECT_DOUBLE_EQ(prediction.duration_s, 10);
  EXPECT_NEAR(prediction.link_bytes_per_s, (2 * kGB + 2 * kGB) / 10, 1) << "a rank's, and those of two stages";
  ASSERT_EQ(prediction.groups.size(), 2u);
  EXPECT_NEAR(prediction.groups[0].utilisation, 0.02, 1e-6);
  EXPECT_NEAR(prediction.groups[1].utilisation, 0.005, 1e-6);
  EXPECT_DOUBLE_EQ(prediction.groups[0].attainment, 0.5);
  EXPECT_DOUBLE_EQ(prediction.groups[0].requests_per_s, 0.2);
  EXPECT_EQ(prediction.groups[0].rank_bytes, 2 * kGB);
  EXPECT_EQ(prediction.groups[1].rank_bytes, kGB);
  ASSERT_EQ(prediction.models.size(), 3u);
  EXPECT_EQ(prediction.models[2].requests, 1u);
  EXPECT_DOUBLE_EQ(prediction.models[2].attainment, 0);
}

TEST(PredictedRun, PenaltiesAreThoseOfTheFastSimulator) {
  const auto models = one_pass_models({0.1f});
  ClusterOptions options = options_of(10 * kGB);
  options.stage_penalty = 0.01;
  options.constant_s = 0.02;
  VirtualCluster cluster(models, {{{1, 2}, {0}}}, options);
  const auto requests = requests_of(std::vector<Arrival>(1), models, std::vector<float>{0.15f}, 16, 1);
  const Prediction prediction = predict(models, {{{1, 2}, {0}}}, cluster.run(requests), 1);
  EXPECT_NEAR(prediction.mean_latency_s, 0.1 * 1.02 + 0.02, 1e-6);
  EXPECT_EQ(prediction.attainment, 1);
}

// --- What is wrong ----------------------------------------------------------------------------------------------

TEST(VirtualCluster, NamesWhatIsWrong) {
  const auto models = one_pass_models({0.1f});
  const auto refused = [&](const ModelPlacement& placement, const ClusterOptions& options, const std::string& part) {
    try {
      VirtualCluster cluster(models, placement, options);
      ADD_FAILURE() << part;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(part));
    }
  };
  const ModelPlacement placement = {{{1, 1}, {0}}};
  ClusterOptions options = options_of(10 * kGB);
  refused({{{2, 1}, {0}}}, options, "m1 have no shape tp 2 x pp 1");
  options.device_bytes = 1000;
  refused(placement, options, "m1");
  options = options_of(1LL << 50);
  options.page_bytes = 1 << 20;
  options.most_pages = 0;
  refused(placement, options, "larger pages are needed");
  options = options_of(kGB, 0);
  refused(placement, options, "links copy 0 bytes a second");
}

}  // namespace
}  // namespace computron::test
