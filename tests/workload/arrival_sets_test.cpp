#include "computron/workload/arrival_sets.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "computron/base/error.h"
#include "computron/workload/servegen.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::Lt;

const std::string kSamples = COMPUTRON_SOURCE_DIR "/tests/workload/traces/";

std::vector<double> times_of(const std::vector<Arrival>& arrivals, std::uint32_t model) {
  std::vector<double> times;
  for (const Arrival& arrival : arrivals) {
    if (arrival.model == model) times.push_back(arrival.time_s);
  }
  return times;
}

bool is_in_order(const std::vector<Arrival>& arrivals) {
  return std::ranges::is_sorted(arrivals, {}, &Arrival::time_s);
}

TEST(ArrivalSets, NoModelHasItsSeedInBoth) {
  const std::vector<double> rates = {2, 2, 2};
  const ArrivalSets sets = sets_by_rule(GammaGaps{2}, rates, 100, 7);
  for (std::uint32_t m = 0; m < 3; ++m) {
    EXPECT_EQ(times_of(sets.training, m), arrival_times(GammaGaps{2}, 2, {0, 100}, 7 + m));
    EXPECT_EQ(times_of(sets.test, m), arrival_times(GammaGaps{2}, 2, {0, 100}, 10 + m));
  }
  EXPECT_EQ(sets.duration_s, 100);
}

TEST(ArrivalSets, KnownRequestsAreAllThereFromTheStart) {
  const std::vector<std::uint32_t> counts = {2, 0, 1};
  const ArrivalSets sets = sets_of_known(counts);
  ASSERT_EQ(sets.training.size(), 3u);
  EXPECT_THAT(sets.training, Each(Field(&Arrival::time_s, 0)));
  EXPECT_EQ(times_of(sets.test, 0).size(), 2u);
  EXPECT_EQ(times_of(sets.test, 2).size(), 1u);
}

TEST(DividedRequests, AreAllOfThemByWeight) {
  EXPECT_THAT(divided_requests(10, std::vector<double>{1, 1, 1}), ElementsAre(4, 3, 3));
  EXPECT_THAT(divided_requests(7, std::vector<double>{1, 2, .5}), ElementsAre(2, 4, 1));
  EXPECT_THAT(divided_requests(2, std::vector<double>{0, 1}), ElementsAre(0, 2));
  for (std::uint32_t total = 1; total < 200; ++total) {
    const auto counts = divided_requests(total, power_law_rates(7, 1, .5));
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0u), total);
    EXPECT_TRUE(std::ranges::is_sorted(counts, std::greater())) << total;
  }
}

TEST(ArrivalSets, ATraceIsCutIntoHalves) {
  const TraceUse use{.file = kSamples + "functions_2021.txt", .span = {0, 200}};
  const ArrivalSets sets = sets_of_trace(use, 2, 0);
  const auto whole = replay(read_azure_functions_2021(use.file), 2, {0, 200});
  EXPECT_EQ(sets.duration_s, 100);
  ASSERT_EQ(sets.training.size() + sets.test.size(), whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const bool first = whole[i].time_s < 100;
    const Arrival& own = first ? sets.training[i] : sets.test[i - sets.training.size()];
    EXPECT_EQ(own.time_s, whole[i].time_s - (first ? 0 : 100));
    EXPECT_EQ(own.model, whole[i].model);
  }
  TraceUse fast = use;
  fast.scales.rate = 4;
  EXPECT_EQ(sets_of_trace(fast, 2, 0).duration_s, 25);
  EXPECT_EQ(sets_of_trace(fast, 2, 0).test.size(), sets.test.size());
}

TEST(ArrivalSets, AnOpenEndIsThatOfTheTrace) {
  const TraceUse use{.file = kSamples + "functions_2021.txt"};
  const ArrivalSets sets = sets_of_trace(use, 3, 0);
  EXPECT_EQ(sets.training.size() + sets.test.size(), 61u);
  EXPECT_NEAR(sets.duration_s, 2500, 1e-6);
  EXPECT_DOUBLE_EQ(sets.test.back().time_s, sets.duration_s);  // the last request is at the end of the second half
}

// A trace of one source says nothing of models.
TEST(ArrivalSets, RequestsOfOneSourceAreDealtToModels) {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 4000; ++i) {
    lines += "{\"timestamp\": " + std::to_string(i) + ", \"input_length\": 1, \"output_length\": 1}\n";
  }
  TraceUse use{.file = folder.write("mooncake.jsonl", lines), .format = TraceFormat::kMooncake};
  use.shares = power_law_rates(3, 1, 1);
  const ArrivalSets sets = sets_of_trace(use, 3, 5);
  EXPECT_EQ(sets.training.size() + sets.test.size(), 4000u);
  for (std::uint32_t m = 0; m < 3; ++m) {
    EXPECT_NEAR(static_cast<double>(times_of(sets.training, m).size()), 2000 / (m + 1.) * 6 / 11, 80);
  }
}

TEST(ArrivalSets, SharesOfModelsThatSourcesAreMappedToAreRefused) {
  for (TraceUse use : {TraceUse{.file = kSamples + "functions_2021.txt"},
                       TraceUse{.file = kSamples + "functions_2019.csv", .format = TraceFormat::kAzureFunctions2019},
                       TraceUse{.file = kSamples + "servegen", .format = TraceFormat::kServeGen}}) {
    EXPECT_NO_THROW(sets_of_trace(use, 2, 0)) << use.file;
    use.shares = {2, 1};
    EXPECT_THAT([&use] { sets_of_trace(use, 2, 0); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("which are mapped to models")))
        << use.file;
  }
}

// The others are not asked in this part: the models keep their numbers nevertheless.
TEST(ArrivalSets, RequestsThatAreDealtStayWithTheirModels) {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 8; ++i) {
    lines += "{\"timestamp\": " + std::to_string(1000 * i) + ", \"input_length\": 1, \"output_length\": 1}\n";
  }
  TraceUse use{.file = folder.write("mooncake.jsonl", lines), .format = TraceFormat::kMooncake};
  const auto models_of = [](const ArrivalSets& sets) {
    std::vector<std::uint32_t> models;
    for (const auto* set : {&sets.training, &sets.test}) {
      for (const Arrival& arrival : *set) models.push_back(arrival.model);
    }
    return models;
  };
  const auto whole = models_of(sets_of_trace(use, 50, 5));
  use.span = {4, 100};
  const std::vector<std::uint32_t> end(whole.begin() + 4, whole.end());
  EXPECT_EQ(models_of(sets_of_trace(use, 50, 5)), end);
}

TEST(ArrivalSets, ServeGensSeedsAreUsedOnce) {
  TraceUse use{.file = kSamples + "servegen", .format = TraceFormat::kServeGen, .span = {0, 600}};
  const auto clients = read_servegen(use.file);
  const auto windows = static_cast<std::uint32_t>(clients[0].size() + clients[1].size());
  const auto sampled = [&](std::uint32_t seed) {
    return replay(sample_servegen(clients, use.span, 1, seed), 1, use.span).size();
  };
  EXPECT_EQ(sets_of_trace(use, 1, 7).training.size(), sampled(7));
  EXPECT_EQ(sets_of_trace(use, 1, 7).test.size(), sampled(7 + windows));
}

TEST(ArrivalSets, WindowsHaveOtherSeedsInTheTest) {
  const TraceUse use{.file = kSamples + "functions_2021.txt", .window_s = 50, .scales = {.rate = 20, .cv = 2}};
  const ArrivalSets sets = sets_of_trace(use, 2, 3);
  const auto windows =
      fit_windows(read_azure_functions_2021(use.file), 2, SourceMapping::kStripe, {0, sets.duration_s}, 50);
  ASSERT_GT(windows.size(), 1u);
  const auto seeded = [&](std::size_t seed) {
    return arrivals_of_windows(windows, use.scales, static_cast<std::uint32_t>(seed));
  };
  EXPECT_EQ(times_of(sets.training, 0), times_of(seeded(3), 0));
  EXPECT_EQ(times_of(sets.test, 0), times_of(seeded(3 + windows.size()), 0));
  EXPECT_NE(times_of(sets.training, 0), times_of(sets.test, 0));
}

TEST(ArrivalSets, CountsBecomeGammaArrivalsMinuteByMinute) {
  const TraceUse use{.file = kSamples + "functions_2019.csv",
                     .format = TraceFormat::kAzureFunctions2019,
                     .span = {0, 3600},
                     .scales = {.rate = 10, .cv = 1}};
  const ArrivalSets sets = sets_of_trace(use, 1, 0);
  EXPECT_EQ(sets.duration_s, 3600);
  EXPECT_NEAR(static_cast<double>(sets.training.size()), 1280, 120);  // (60 · 2 + 7 + 1) · 10
  EXPECT_NEAR(static_cast<double>(sets.test.size()), 1280, 120);
  EXPECT_THAT(sets.test, Each(Field(&Arrival::time_s, Lt(3600))));
}

TEST(ArrivalSets, ServeGensClientsAreSampledTwice) {
  const TraceUse use{.file = kSamples + "servegen", .format = TraceFormat::kServeGen, .span = {0, 600}};
  const ArrivalSets sets = sets_of_trace(use, 2, 0);
  EXPECT_EQ(sets.duration_s, 600);
  EXPECT_GT(sets.training.size(), 500u);
  EXPECT_TRUE(is_in_order(sets.training));
  EXPECT_TRUE(is_in_order(sets.test));
  EXPECT_NE(times_of(sets.training, 0), times_of(sets.test, 0));
}

TEST(ArrivalSets, WhatCannotBeIsNamed) {
  const auto refused = [](const std::string& part, const auto& spoil) {
    TraceUse use{.file = kSamples + "functions_2021.txt"};
    spoil(use);
    expect_error(ExitCode::kUsage, part, [&] { sets_of_trace(use, 2, 0); });
  };
  refused("it ends before 1000000 s", [](TraceUse& use) { use.span.start_s = 1e6; });
  refused("before 0 s", [](TraceUse& use) { use.span.start_s = -1; });
  refused("shorter than 0 s", [](TraceUse& use) { use.span.duration_s = -1; });
  refused("windows are shorter", [](TraceUse& use) { use.window_s = -1; });
  refused("above 0", [](TraceUse& use) { use.scales.rate = 0; });
  refused("the cv that it has", [](TraceUse& use) { use.scales.cv = 2; });
  refused("of one day", [](TraceUse& use) {
    use = {.file = kSamples + "functions_2019.csv", .format = TraceFormat::kAzureFunctions2019, .span = {80000, 9000}};
  });
}

}  // namespace
}  // namespace computron
