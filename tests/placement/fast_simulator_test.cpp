#include "computron/placement/fast_simulator.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "computron/base/error.h"
#include "tests/placement/profiles.h"

namespace computron {
namespace {

constexpr float kNone = std::numeric_limits<float>::infinity();

std::vector<float> same_slo(std::size_t models, float slo_s) { return std::vector<float>(models, slo_s); }

std::vector<Arrival> gamma_arrivals(const std::vector<double>& rates, double cv, double duration_s) {
  return make_arrivals(GammaGaps{cv}, rates, {0, duration_s}, 0);
}

ModelPlacement groups_of(GroupShape shape, const std::vector<std::vector<std::uint32_t>>& models) {
  ModelPlacement placement;
  for (const auto& group : models) placement.push_back({shape, group});
  return placement;
}

// Four models on four GPUs, no request left out: AlpaServe's simulator gives these to the digit.
TEST(FastSimulator, GivesAlpaServesAttainments) {
  const std::vector<ModelProfile> models(4, unit_test_model());
  const auto arrivals = gamma_arrivals({4, 4, 4, 4}, 8, 1875);
  ASSERT_EQ(arrivals.size(), 31143u);
  FastSimulator simulator(models, {});
  const auto attainment = [&](const ModelPlacement& placement) {
    return std::round(1e4 * simulator.run(placement, arrivals, same_slo(4, .4f)).attainment()) / 1e4;
  };
  EXPECT_EQ(attainment(groups_of({1, 1}, {{0}, {1}, {2}, {3}})), .1979);
  EXPECT_EQ(attainment(groups_of({1, 2}, {{0, 1}, {2, 3}})), .3315);
  EXPECT_EQ(attainment(groups_of({1, 4}, {{0, 1, 2, 3}})), .5117);
}

TEST(FastSimulator, GivesAlpaServesMeanLatencies) {
  const std::vector<ModelProfile> models(4, unit_test_model());
  const auto arrivals = gamma_arrivals({5, 5, 5, 5}, 1, 1500);
  ASSERT_EQ(arrivals.size(), 30368u);
  FastSimulator simulator(models, {});
  const auto one_gpu = simulator.run(groups_of({1, 1}, {{0, 1}, {0, 1}, {2, 3}, {2, 3}}), arrivals, same_slo(4, 1));
  const auto pipelines = simulator.run(groups_of({1, 2}, {{0, 1, 2, 3}, {0, 1, 2, 3}}), arrivals, same_slo(4, 1));
  EXPECT_EQ(one_gpu.attainment(), 1);
  EXPECT_EQ(pipelines.attainment(), 1);
  EXPECT_NEAR(one_gpu.mean_latency_s(), .13099, 5e-6);
  EXPECT_NEAR(pipelines.mean_latency_s(), .12542, 5e-6);
}

struct Latencies {
  double mean = 0, p99 = 0;
};

Latencies latencies_of(FastSimulator& simulator, const ModelPlacement& placement, const std::vector<Arrival>& arrivals,
                       std::size_t models) {
  std::vector<RequestOutcome> outcomes;
  Latencies result;
  result.mean = simulator.run(placement, arrivals, same_slo(models, kNone), &outcomes).mean_latency_s();
  std::ranges::sort(outcomes, {}, &RequestOutcome::latency_s);
  result.p99 = outcomes[static_cast<std::size_t>(.99 * static_cast<double>(outcomes.size()))].latency_s;
  return result;
}

// Two BERT-6.7B on two GPUs, 3 requests a second, no objective.
TEST(FastSimulator, GivesAlpaServesTwoModelExample) {
  std::vector<ModelProfile> models(2, bert_6_7b());
  for (ModelProfile& model : models) model.shapes[{1, 2}] = even_stages(2, .395 / 2, 6.7e9);
  FastSimulator simulator(models, {});
  const auto dedicated = groups_of({1, 1}, {{0}, {1}}), pipeline = groups_of({1, 2}, {{0, 1}});
  struct Row {
    std::vector<double> rates;
    double cv;
    Latencies dedicated, pipeline;
  };
  for (const Row& row : {Row{{1.5, 1.5}, 1, {.712, 2.27}, {.570, 1.37}}, Row{{.6, 2.4}, 1, {4.03, 19.9}, {.566, 1.32}},
                         Row{{1.5, 1.5}, 3, {4.10, 17.7}, {2.19, 8.8}}}) {
    const auto arrivals = gamma_arrivals(row.rates, row.cv, 20000);
    for (const auto& [placement, expected] : {std::pair(dedicated, row.dedicated), std::pair(pipeline, row.pipeline)}) {
      const Latencies found = latencies_of(simulator, placement, arrivals, 2);
      EXPECT_NEAR(found.mean, expected.mean, expected.mean < 1 ? .0005 : .01);
      EXPECT_NEAR(found.p99, expected.p99, expected.p99 < 8 ? .005 : .05);
    }
  }
}

// M/D/1 and two queues of it (AlpaServe, section 3): with the simulator's own penalty a service of D takes 1.009 D, and
// every request .011 s more. Within four standard errors, from 100 parts of the run.
class ClosedForm : public ::testing::Test {
 protected:
  static double waiting(double rate, double service_s) {
    return rate * service_s * service_s / (2 * (1 - rate * service_s));
  }

  void expect_mean(const ModelPlacement& placement, const std::vector<double>& rates, double expected) {
    const auto arrivals = gamma_arrivals(rates, 1, kDuration_s);
    std::vector<RequestOutcome> outcomes;
    simulator_.run(placement, arrivals, same_slo(rates.size(), kNone), &outcomes);
    std::vector<double> means;
    const std::size_t part = outcomes.size() / 100;
    for (std::size_t begin = 0; begin + part <= outcomes.size(); begin += part) {
      double sum = 0;
      for (std::size_t i = begin; i < begin + part; ++i) sum += outcomes[i].latency_s;
      means.push_back(sum / static_cast<double>(part));
    }
    double mean = 0, squares = 0;
    for (const double each : means) mean += each / static_cast<double>(means.size());
    for (const double each : means) squares += (each - mean) * (each - mean);
    const double error = std::sqrt(squares) / static_cast<double>(means.size());
    EXPECT_LT(error, .03 * expected);
    EXPECT_NEAR(mean, expected, 4 * error);
  }

  static constexpr double kDuration_s = 100000, kService_s = .4, kConstant_s = .011;
  std::vector<ModelProfile> models_{two_models()};
  FastSimulator simulator_{models_, {}};

 private:
  static std::vector<ModelProfile> two_models() {
    std::vector<ModelProfile> models(2, single_gpu_model("m", kService_s, 1));
    for (ModelProfile& model : models) model.shapes[{1, 2}] = even_stages(2, kService_s / 2, 1e9);
    return models;
  }
};

TEST_F(ClosedForm, OfTwoModelsOnAGpuEach) {
  const double rate = 2.5, service = 1.009 * kService_s;
  for (const double share : {.5, .2}) {
    const double first = share * rate, second = (1 - share) * rate;
    const double expected = service + share * waiting(first, service) + (1 - share) * waiting(second, service);
    expect_mean(groups_of({1, 1}, {{0}, {1}}), {first, second}, expected + kConstant_s);
  }
}

TEST_F(ClosedForm, OfTwoModelsOnAPipelineOfTwoStages) {
  const double rate = 2.5, service = 1.018 * kService_s;
  for (const double share : {.5, .2}) {
    const double expected = service + waiting(rate, service / 2);
    expect_mean(groups_of({1, 2}, {{0, 1}}), {share * rate, (1 - share) * rate}, expected + kConstant_s);
  }
}

// Largest overheads that a pipeline may have (AlpaServe, figure 16): then it is no faster than two GPUs.
TEST_F(ClosedForm, OfTheOverheadsAtWhichAPipelineGainsNothing) {
  const double rate = 1 / kService_s, alpha = 1.1315, beta = 1.2361;
  models_[0].shapes[{1, 2}] = models_[1].shapes[{1, 2}] = even_stages(2, alpha * kService_s / 2, 1e9);
  FastSimulator bare(models_, SimulatorOptions::without_penalties());
  const auto arrivals = gamma_arrivals({rate / 2, rate / 2}, 1, kDuration_s);
  const double apart = latencies_of(bare, groups_of({1, 1}, {{0}, {1}}), arrivals, 2).mean;
  EXPECT_NEAR(apart, 1.5 * kService_s, .01 * kService_s);
  EXPECT_NEAR(latencies_of(bare, groups_of({1, 2}, {{0, 1}}), arrivals, 2).mean, apart, .01 * kService_s);
  for (ModelProfile& model : models_) {
    model.shapes[{1, 2}].stage_s = {static_cast<float>(beta * kService_s / 2),
                                    static_cast<float>((2 - beta) * kService_s / 2)};
  }
  EXPECT_NEAR(latencies_of(bare, groups_of({1, 2}, {{0, 1}}), arrivals, 2).mean, apart, .01 * kService_s);
}

TEST(FastSimulator, AModelThatIsNowhereIsNotServedAndARejectedRequestCostsNothing) {
  const std::vector<ModelProfile> models(2, single_gpu_model("m", 1, 1));
  FastSimulator simulator(models, SimulatorOptions::without_penalties());
  const std::vector<Arrival> arrivals = {{0, 0}, {.5, 0}, {.5, 1}, {.9, 0}};
  std::vector<RequestOutcome> outcomes;
  const auto result = simulator.run(groups_of({1, 1}, {{0}}), arrivals, std::vector<float>{1.2f, 9}, &outcomes);
  EXPECT_EQ(result.requests, (std::vector<std::uint32_t>{3, 1}));
  EXPECT_EQ(result.good, (std::vector<std::uint32_t>{2, 0}));
  EXPECT_EQ(result.dispatched, (std::vector<std::uint32_t>{3}));
  EXPECT_FALSE(outcomes[1].good);
  EXPECT_DOUBLE_EQ(outcomes[3].latency_s, 1.1);  // begins at 1, as if the second had not been
  EXPECT_DOUBLE_EQ(result.makespan_s, 2);
  EXPECT_DOUBLE_EQ(result.busy_s[0], 2);
  EXPECT_EQ(result.attainment(), .5);
}

TEST(FastSimulator, NoRequestsAreAllServed) {
  const std::vector<ModelProfile> models(1, single_gpu_model("m", 1, 1));
  const auto result = FastSimulator(models, {}).run(groups_of({1, 1}, {{0}}), {}, std::vector<float>{1});
  EXPECT_EQ(result.attainment(), 1);
  EXPECT_EQ(result.mean_latency_s(), 0);
}

bool same_outcomes(const std::vector<RequestOutcome>& a, const std::vector<RequestOutcome>& b) {
  return std::ranges::equal(a, b, [](const RequestOutcome& x, const RequestOutcome& y) {
    return x.good == y.good && x.latency_s == y.latency_s;
  });
}

// Bit for bit: where all fits the link's rate makes no difference.
TEST(FastSimulator, SwappingVanishesWhereAllModelsFit) {
  const std::vector<ModelProfile> models(4, unit_test_model());
  const auto arrivals = gamma_arrivals({4, 4, 4, 4}, 8, 500);
  for (const auto& placement : {groups_of({1, 1}, {{0, 1}, {2, 3}, {1, 2}, {3, 0}}),
                                groups_of({1, 2}, {{0, 1, 2, 3}, {3, 1}}), groups_of({1, 4}, {{0, 1, 2, 3}})}) {
    std::vector<RequestOutcome> resident, swapping, too_small;
    FastSimulator(models, {}).run(placement, arrivals, same_slo(4, .4f), &resident);
    const auto with = [&](double device_bytes, std::vector<RequestOutcome>& outcomes) {
      SimulatorOptions options;
      options.swap = {
          .device_bytes = static_cast<std::int64_t>(device_bytes), .page_bytes = 1 << 24, .link_bytes_per_s = 1e9};
      return FastSimulator(models, options).run(placement, arrivals, same_slo(4, .4f), &outcomes).swaps;
    };
    EXPECT_EQ(with(4e9, swapping), 0u);
    EXPECT_TRUE(same_outcomes(resident, swapping));
    EXPECT_GT(with(1.9e9, too_small), 0u);
    EXPECT_FALSE(same_outcomes(resident, too_small));
  }
}

// All groups but one fit: requests of a model that both kinds have go where they would have gone while its copy in the
// group that swaps is there, and to the other one when it is not.
TEST(FastSimulator, ARequestGoesWhereItsModelIsRatherThanToAnotherIdleGroup) {
  const std::vector<ModelProfile> models(3, single_gpu_model("m", 1, 2));
  SimulatorOptions options = SimulatorOptions::without_penalties();
  options.swap = {.device_bytes = 4'000'000'000, .page_bytes = 1'000'000, .link_bytes_per_s = 1e9};
  FastSimulator simulator(models, options);
  const ModelPlacement placement = groups_of({1, 1}, {{0, 1, 2}, {2}});
  const std::vector<Arrival> arrivals = {{0, 2}, {10, 0}, {20, 2}, {30, 1}};
  const auto result = simulator.run(placement, arrivals, same_slo(3, kNone));
  EXPECT_EQ(result.dispatched, (std::vector<std::uint32_t>{2, 2}));
  EXPECT_EQ(result.swaps, 0u);
  const std::vector<Arrival> crowd = {{0, 2}, {0, 2}, {0, 2}, {0, 2}};
  const auto shared = simulator.run(placement, crowd, same_slo(3, kNone));
  EXPECT_EQ(shared.swaps, 1u);  // the second: two seconds of copying beside three of waiting
  EXPECT_EQ(shared.dispatched[0] + shared.dispatched[1], 4u);
}

// Two gigabytes in pages that take three: two models do not fit in five any more.
TEST(FastSimulator, PagesThatAreNotFullTakeWholeFrames) {
  std::vector<ModelProfile> models(2, single_gpu_model("m", 1, 2));
  SimulatorOptions options = SimulatorOptions::without_penalties();
  options.swap = {.device_bytes = 5'000'000'000, .page_bytes = 1'000'000, .link_bytes_per_s = 1e9};
  const ModelPlacement placement = groups_of({1, 1}, {{0, 1}});
  const std::vector<Arrival> arrivals = {{0, 1}, {10, 0}};
  EXPECT_EQ(FastSimulator(models, options).run(placement, arrivals, same_slo(2, kNone)).swaps, 0u);
  for (ModelProfile& model : models) model.shapes.begin()->second.frame_bytes = {3'000'000'000};
  const auto result = FastSimulator(models, options).run(placement, arrivals, same_slo(2, kNone));
  EXPECT_EQ(result.swaps, 2u);
  // What the first lacks is a third of it; then the other one has given up as much. The links copy no emptiness.
  EXPECT_NEAR(result.swapped_bytes, 2 * 2e9 / 3, 1);
}

TEST(FastSimulator, EdgesAreLeftOutOfReportedAttainments) {
  std::vector<Arrival> arrivals;
  std::vector<RequestOutcome> outcomes;
  for (int i = 0; i <= 100; ++i) {
    arrivals.push_back({static_cast<double>(i), 0});
    outcomes.push_back({.latency_s = 0, .good = i >= 10 && i < 51});
  }
  EXPECT_DOUBLE_EQ(trimmed_attainment(arrivals, outcomes), 41.0 / 81);
  EXPECT_EQ(trimmed_attainment({}, {}), 1);
}

TEST(Profiles, FaultsAreNamed) {
  const auto refused = [](const std::string& part, const ShapeProfile& profile) {
    try {
      check_profiles({{"chat", {{{1, 2}, profile}}}});
      ADD_FAILURE() << "no error with " << part;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("'chat' at tp 1 x pp 2: " + part));
    }
  };
  refused("1 times and 2 sizes", {{1}, {1, 1}});
  refused("a stage takes 0 s", {{1, 0}, {1, 1}});
  refused("a stage has -1 bytes", {{1, 1}, {1, -1}});
  check_profiles({{"chat", {{{1, 2}, {{1, 1}, {1, 0}}}}}});
}

}  // namespace
}  // namespace computron
