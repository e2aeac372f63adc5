#include "src/bench/workload_metrics.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace computron::test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Completion completion(RequestId id, double arrival_s, double finished_s) {
  Completion c;
  c.id = id;
  c.arrival_s = arrival_s;
  c.finished_s = finished_s;
  return c;
}

// Latencies 1, 2, ... n seconds.
std::vector<double> up_to(int n) {
  std::vector<double> latencies;
  for (int i = n; i > 0; --i) latencies.push_back(i);
  return latencies;
}

PolicyComparison comparison() {
  return {.policy = "fifo",
          .real = {.latencies_s = up_to(4), .swaps = 6, .bytes = 3000000000, .link_busy_s = 5, .wall_s = 10},
          .virtual_time = {.latencies_s = up_to(3), .swaps = 5, .bytes = 2000000000, .link_busy_s = 4, .wall_s = 8},
          .costs = {.request_s = 0.03, .batch_s = 0.06, .swap_s = 0.4}};
}

WorkloadConditions conditions() {
  WorkloadConditions c;
  c.mesh = {2, 2};
  c.workload.models = {{"a", 10}, {"b", 0.5}};
  c.link_gb_per_s = 0.4;
  c.resident = 1;
  return c;
}

TEST(WorkloadMetrics, LatenciesAreByRequest) {
  EXPECT_THAT(latencies_of({completion(1, 2, 2.5), completion(0, 1, 3)}), ElementsAre(2, 0.5));
  EXPECT_THROW(latencies_of({completion(1, 2, 2.5), completion(1, 1, 3)}), Error);
}

TEST(WorkloadMetrics, PercentilesAreNearestRanks) {
  const LatencySummary hundred = summary_of(up_to(100)), three = summary_of(up_to(3));
  EXPECT_DOUBLE_EQ(hundred.mean_s, 50.5);
  EXPECT_DOUBLE_EQ(hundred.p50_s, 50);
  EXPECT_DOUBLE_EQ(hundred.p99_s, 99);
  EXPECT_DOUBLE_EQ(three.p50_s, 2);
  EXPECT_DOUBLE_EQ(three.p99_s, 3);
}

TEST(WorkloadMetrics, ComparesBothTimes) {
  const json object = json::parse(workload_json({comparison()}, conditions()));
  const json& run = object.at("policies").at(0);
  EXPECT_DOUBLE_EQ(run.at("real").at("mean_s"), 2.5);
  EXPECT_DOUBLE_EQ(run.at("virtual").at("mean_s"), 2);
  EXPECT_DOUBLE_EQ(run.at("mean_ratio"), 1.25);
  EXPECT_EQ(object.at("requests"), 4);
  EXPECT_EQ(object.at("rates_per_s"), json({10, 0.5}));
  const std::string table = workload_table({comparison()}, conditions());
  EXPECT_THAT(table, HasSubstr("rates 10,0.5 a second"));
  EXPECT_THAT(table, HasSubstr("1.250"));  // mean
  EXPECT_THAT(table, HasSubstr("1.200"));  // swaps
  EXPECT_THAT(table, HasSubstr("1.500"));  // bytes
}

TEST(WorkloadMetrics, ALineAPolicyWithAsManyFieldsAsTheHead) {
  std::istringstream lines(workload_csv({comparison(), comparison()}, conditions()));
  std::vector<std::ptrdiff_t> commas;
  for (std::string line; std::getline(lines, line);) commas.push_back(std::count(line.begin(), line.end(), ','));
  ASSERT_EQ(commas.size(), 3u);
  EXPECT_THAT(commas, ::testing::Each(commas.front()));
}

}  // namespace
}  // namespace computron::test
