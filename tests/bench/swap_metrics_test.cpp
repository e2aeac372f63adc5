// Metrics of the swap experiment from samples made by hand.
#include "src/bench/swap_metrics.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "computron/base/error.h"

namespace computron::test {
namespace {

using testing::HasSubstr;

constexpr double kLink = 1e9;  // bytes a second

// Every rank's link gives kLink, its memory four times that; a page takes 10 ms.
SwapConditions conditions_of(MeshShape mesh, std::vector<double> stage_shares) {
  SwapConditions conditions;
  conditions.mesh = mesh;
  conditions.device = "cpu";
  conditions.link_gb_per_s = 1;
  conditions.page_bytes = conditions.page_link_bytes = 10'000'000;
  conditions.stage_shares = {std::move(stage_shares)};
  const LinkRates rates = {{0.9 * kLink, kLink, kLink}, {0.9 * kLink, 0.95 * kLink, kLink}, {4 * kLink}};
  conditions.links.assign(static_cast<std::size_t>(mesh.ranks()), rates);
  return conditions;
}

SwapSample sample_of(double response_s, double exec_s, std::vector<RankCopies> copies) {
  return {.model = 0, .response_s = response_s, .exec_s = exec_s, .copies = std::move(copies)};
}

TEST(SwapBound, OfOneStageIsItsTransferAndAPage) {
  const SwapBound bound = bound_of(sample_of(0, 0.1, {{0.4, 400'000'000}}), conditions_of({1, 1}, {1}));
  EXPECT_NEAR(bound.transfer_and_compute_s, 0.4, 1e-12);
  EXPECT_NEAR(bound.page_s, 0.01, 1e-12);
  EXPECT_NEAR(bound.seconds(), 0.41, 1e-12);
}

TEST(SwapBound, OfShortTransfersIsTheCompute) {
  const SwapSample sample = sample_of(0, 0.5, {{0.4, 400'000'000}});
  EXPECT_NEAR(bound_of(sample, conditions_of({1, 1}, {1})).transfer_and_compute_s, 0.5, 1e-12);
}

TEST(SwapBound, BusyCoresDoTheCopyingToo) {
  SwapConditions conditions = conditions_of({2, 1}, {1});
  conditions.cores_busy = true;
  const SwapSample sample = sample_of(0, 0.35, {{0.4, 400'000'000}, {0.4, 400'000'000}});
  EXPECT_NEAR(bound_of(sample, conditions).transfer_and_compute_s, 0.35 + 0.1, 1e-12);
}

// The first stage ends its transfer late and all others compute after it.
TEST(SwapBound, LaterStagesComputeAfterATransfer) {
  const SwapSample late_first = sample_of(0, 0.1, {{0.4, 400'000'000}, {0.3, 300'000'000}});
  EXPECT_NEAR(bound_of(late_first, conditions_of({1, 2}, {0.4, 0.6})).transfer_and_compute_s, 0.4 + 0.06, 1e-12);
  const SwapSample late_last = sample_of(0, 0.1, {{0.3, 300'000'000}, {0.4, 400'000'000}});
  EXPECT_NEAR(bound_of(late_last, conditions_of({1, 2}, {0.4, 0.6})).transfer_and_compute_s, 0.4, 1e-12);
}

TEST(SwapBound, GoesByTheSlowestLinkOfAStage) {
  SwapConditions conditions = conditions_of({2, 1}, {1});
  conditions.links[1].plain = {0.5 * kLink};
  const SwapSample sample = sample_of(0, 0.1, {{0.4, 400'000'000}, {0.8, 400'000'000}});
  EXPECT_NEAR(bound_of(sample, conditions).transfer_and_compute_s, 0.8, 1e-12);
  EXPECT_NEAR(bound_of(sample, conditions).page_s, 0.02, 1e-12);
}

TEST(Spread, IsMedianAndExtremes) {
  const Spread odd = spread_of({3, 1, 2}), even = spread_of({4, 1, 3, 2});
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(even.median, 2.5);
  EXPECT_EQ(even.min, 1);
  EXPECT_EQ(even.max, 4);
}

TEST(SwapSummary, TakesTheSlowestRankOfEveryRequest) {
  const std::vector<SwapSample> samples = {sample_of(0.42, 0.1, {{0.400, 400'000'000}, {0.410, 400'000'000}}),
                                           sample_of(0.46, 0.1, {{0.440, 400'000'000}, {0.400, 400'000'000}})};
  const SwapConditions conditions = conditions_of({2, 1}, {1});
  const SwapSummary summary = metrics_of(samples, conditions, SwapBaseline{.load_s = 0.85, .shard_bytes = 8e8});
  EXPECT_EQ(summary.requests, 2);
  EXPECT_NEAR(summary.load_s.median, 0.425, 1e-12);
  EXPECT_NEAR(summary.gb_per_s.min, 0.4 / 0.44, 1e-9);
  EXPECT_NEAR(summary.link_fraction.max, 0.4 / 0.41, 1e-9);
  EXPECT_NEAR(summary.skew->min, 0.41 / 0.40 - 1, 1e-9);
  EXPECT_NEAR(summary.skew->max, 0.44 / 0.40 - 1, 1e-9);
  EXPECT_NEAR(summary.response_over_bound.min, 0.42 / 0.41, 1e-9);
  EXPECT_NEAR(summary.response_over_limit.min, 0.42 / (1.05 * 0.4 + 0.01 + 0.003), 1e-9);
  EXPECT_NEAR(summary.fetch_fraction.min, 0.95, 1e-9);
  EXPECT_NEAR(*summary.speed_up, 2, 1e-9);
  EXPECT_NEAR(*summary.ideal_speed_up, 2, 1e-9);
}

TEST(SwapSummary, HasNoSkewBetweenStages) {
  const std::vector<SwapSample> samples = {sample_of(0.4, 0.1, {{0.4, 400'000'000}, {0.2, 100'000'000}})};
  const SwapSummary summary = metrics_of(samples, conditions_of({1, 2}, {0.5, 0.5}), std::nullopt);
  EXPECT_FALSE(summary.skew);
  EXPECT_FALSE(summary.speed_up);
}

TEST(SwapSummary, ShowsUnitsAndNamesTheEmulatedLink) {
  const std::vector<SwapSample> samples = {sample_of(0.42, 0.1, {{0.4, 400'000'000}})};
  const SwapConditions conditions = conditions_of({1, 1}, {1});
  const SwapSummary summary = metrics_of(samples, conditions, std::nullopt);
  for (const char* part : {"emulated, 1 GB/s", "load ms", "response ms", "GB/s a rank", "400.0", "410.0"}) {
    EXPECT_THAT(swap_table(summary, conditions), HasSubstr(part));
  }
  EXPECT_THAT(swap_csv(summary, conditions), HasSubstr("load_ms,load_ms_min,load_ms_max,exec_ms"));
  EXPECT_THAT(swap_csv(summary, conditions), HasSubstr("400.0,400.0,400.0,100.0,100.0,100.0,420.0,420.0,420.0"));
}

TEST(SwapBaseline, IsReadFromARunOfOneRankOnly) {
  const auto written = [](MeshShape mesh) {
    const std::vector<RankCopies> copies(static_cast<std::size_t>(mesh.ranks()), {0.4, 400'000'000});
    const std::vector<SwapSample> samples = {sample_of(0.42, 0.1, copies)};
    const SwapConditions conditions = conditions_of(mesh, {1});
    return swap_json(metrics_of(samples, conditions, std::nullopt), conditions, samples);
  };
  const SwapBaseline baseline = read_baseline(written({1, 1}), "base.json");
  EXPECT_EQ(baseline.load_s, 0.4);
  EXPECT_EQ(baseline.shard_bytes, 4e8);
  for (const std::string& text : {written({2, 1}), std::string("{}"), std::string("no json")}) {
    try {
      read_baseline(text, "base.json");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_THAT(error.what(), HasSubstr("base.json"));
    }
  }
}

}  // namespace
}  // namespace computron::test
