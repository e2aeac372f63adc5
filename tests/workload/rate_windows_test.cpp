#include "computron/workload/rate_windows.h"

#include <gmock/gmock.h>

#include <cmath>

#include "computron/workload/numpy_random.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;
using testing::Field;

// log(shape) - digamma(shape), the latter by recurrence up to 50 and then as a series.
TEST(RateWindows, TheGammaOfGreatestLikelihoodIsFound) {
  for (const auto& [shape, gap] : {std::pair(1.0, 0.5772156649015329), std::pair(0.5, 1.2703628454614782),
                                   std::pair(2.0, 0.2703628454614782), std::pair(0.0625, 13.706264767820315)}) {
    EXPECT_NEAR(gamma_shape_of(gap) / shape, 1, 1e-9) << shape;
  }
  EXPECT_GT(gamma_shape_of(0), 1000);
}

TEST(RateWindows, CountsBecomeAWindowAMinute) {
  const CallCounts counts{.minutes = 2, .functions = {{6, 0}, {0, 3}, {1, 1}, {4, 0}}};
  const auto stripe = windows_of_counts(counts, 2, SourceMapping::kStripe);
  ASSERT_EQ(stripe.size(), 4u);
  EXPECT_EQ(stripe[0].rate_per_s, 7.0 / 60);  // model 0 has the functions 0 and 2
  EXPECT_EQ(stripe[1].rate_per_s, 1.0 / 60);
  EXPECT_EQ(stripe[1].span.start_s, 60);
  EXPECT_EQ(stripe[2].model, 1u);
  EXPECT_EQ(stripe[2].rate_per_s, 4.0 / 60);
  const auto blocks = windows_of_counts(counts, 2, SourceMapping::kBlocks);
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0].rate_per_s, 6.0 / 60);  // the functions 0 and 1
  EXPECT_EQ(blocks[2].rate_per_s, 5.0 / 60);
}

TEST(RateWindows, ArrivalsAreGammaWithinEachWindowWithSeedsOfTheirOwn) {
  const std::vector<RateWindow> windows = {{0, {0, 60}, 2, 1}, {0, {60, 60}, 1, 1}, {1, {0, 60}, 5, 1}};
  const auto arrivals = arrivals_of_windows(windows, {.rate = 3, .cv = 4}, 10);
  std::vector<Arrival> expected;
  for (std::uint32_t i = 0; i < 3; ++i) {
    for (const double time : arrival_times(GammaGaps{4}, 3 * windows[i].rate_per_s, windows[i].span, 10 + i)) {
      expected.push_back({time, windows[i].model});
    }
  }
  sort_arrivals(expected);
  ASSERT_EQ(arrivals.size(), expected.size());
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    EXPECT_EQ(arrivals[i].time_s, expected[i].time_s);
    EXPECT_EQ(arrivals[i].model, expected[i].model);
  }
}

RequestTrace trace_of(double rate, double cv, std::uint32_t source, double duration_s) {
  RequestTrace trace{.sources = source + 1, .requests = {}};
  for (const double time : arrival_times(GammaGaps{cv}, rate, {0, duration_s}, 77)) {
    trace.requests.push_back({.time_s = time, .source = source});
  }
  return trace;
}

// By the delta method the standard error of log(shape) is below sqrt(2/n).
TEST(RateWindows, AFitFindsRateAndBurstinessAgain) {
  const RequestTrace trace = trace_of(10, 2, 0, 4000);
  const auto windows = fit_windows(trace, 1, SourceMapping::kStripe, {0, 4000}, 2000);
  ASSERT_EQ(windows.size(), 2u);
  for (const RateWindow& window : windows) {
    EXPECT_NEAR(window.rate_per_s, 10, 10 * 5 * 2 / std::sqrt(20000.0));
    EXPECT_NEAR(window.cv, 2, .1);
  }
  EXPECT_EQ(windows[1].span.start_s, 2000);
}

TEST(RateWindows, AWindowNeedsThreeRequestsAndABelievableRate) {
  RequestTrace trace{.sources = 1, .requests = {{.time_s = 1}, {.time_s = 50}}};
  EXPECT_TRUE(fit_windows(trace, 1, SourceMapping::kStripe, {0, 100}, 100).empty());
  trace.requests = {{.time_s = 1}, {.time_s = 1.001}, {.time_s = 1.002}};
  const auto windows = fit_windows(trace, 1, SourceMapping::kStripe, {0, 100}, 100);
  ASSERT_EQ(windows.size(), 1u);
  EXPECT_EQ(windows[0].rate_per_s, .03);  // of its gaps it would be 1000
}

TEST(RateWindows, SourcesThatAreSilentInThePartDoNotCount) {
  const RequestTrace trace{.sources = 4,
                           .requests = {{.time_s = 1, .source = 0},
                                        {.time_s = 11, .source = 1},
                                        {.time_s = 12, .source = 3},
                                        {.time_s = 13, .source = 3}}};
  const auto arrivals = replay(trace, 2, {10, 10}, {.speed = 2});
  EXPECT_THAT(arrivals,
              ElementsAre(Field(&Arrival::model, 0u), Field(&Arrival::model, 1u), Field(&Arrival::model, 1u)));
  EXPECT_EQ(arrivals[0].time_s, .5);
  EXPECT_EQ(arrivals[2].time_s, 1.5);
  EXPECT_EQ(replay(trace, 2, {10, 10}, {.copies = 3}).size(), 9u);
}

TEST(RateWindows, BadOptionsAreNamed) {
  const RequestTrace trace{.sources = 1, .requests = {{.time_s = 1}}};
  expect_error(ExitCode::kUsage, "no models", [&] { replay(trace, 0, {0, 2}); });
  expect_error(ExitCode::kUsage, "longer than 0 s", [&] { replay(trace, 1, {0, 0}); });
  expect_error(ExitCode::kUsage, "speed of 0", [&] { replay(trace, 1, {0, 2}, {.speed = 0}); });
  expect_error(ExitCode::kUsage, "0 copies", [&] { replay(trace, 1, {0, 2}, {.copies = 0}); });
  expect_error(ExitCode::kUsage, "windows of -1 s", [&] { fit_windows(trace, 1, SourceMapping::kStripe, {0, 2}, -1); });
  expect_error(ExitCode::kUsage, "2 s in windows of 1e-300 s are more than 1e+06", [&] {
    fit_windows(trace, 1, SourceMapping::kStripe, {0, 2}, 1e-300);
  });
  const std::vector<RateWindow> windows = {{0, {0, 60}, 2, 3}};
  expect_error(ExitCode::kUsage, "coefficient of variation is 150",
               [&] { arrivals_of_windows(windows, {.rate = 1, .cv = 50}, 0); });
  const std::vector<RateWindow> many(20, {0, {0, 10}, 3e5, 1});
  expect_error(ExitCode::kUsage, "about 6e+07 requests", [&] { arrivals_of_windows(many, {}, 0); });
}

}  // namespace
}  // namespace computron
