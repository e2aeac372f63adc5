#include "computron/report/run_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "computron/base/error.h"
#include "tests/report/sample_run.h"

namespace computron {
namespace {

using test::sample_run;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  try {
    parse_run_metrics(text, "m.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    return error.what();
  }
  return "no error";
}

TEST(RunMetrics, AreThoseOfTheFile) {
  const RunMetrics run = parse_run_metrics(sample_run(), "m.json");
  EXPECT_EQ(run.wall_s, 12.5);
  EXPECT_THAT(run.meshes, ElementsAre(MeshMetrics{2, 2}));
  EXPECT_EQ(run.link_gb_per_s, 2.0);
  EXPECT_TRUE(run.link_emulated);
  EXPECT_EQ(run.version, "9.8.7");
  EXPECT_EQ(run.commit, "c0ffee");
  EXPECT_THAT(run.libraries, ElementsAre("Open MPI 4", "<l>"));
  EXPECT_EQ(run.slurm_job_id, "7_<j>");
  EXPECT_EQ(run.job.ok, 32u);
  EXPECT_EQ(run.job.ttft_s.p99, std::nullopt);
  EXPECT_EQ(run.job.deadlines, 30u);
  EXPECT_EQ(run.models[1].attainment, 0.2);
  EXPECT_THAT(run.waiting, ElementsAre(3, 1, 0));
  ASSERT_EQ(run.models.size(), 2u);
  EXPECT_EQ(run.models[1].id, "b");
  EXPECT_EQ(run.models[1].link_fraction, 0.92);
  EXPECT_THAT(run.models[0].latency_s.percentiles, ElementsAre(0.1, 0.1, 0.19));
  EXPECT_THAT(run.models[0].unfinished, ElementsAre(1, 1, 0));
  ASSERT_EQ(run.configuration.size(), 2u);
  EXPECT_EQ(run.configuration[1].second, "<out>.jsonl");
}

TEST(RunMetrics, WhatOlderFilesLackIsEmpty) {
  std::string text = replaced(sample_run(), R"("computron")", R"("program")");
  text = replaced(text, R"("slurm_job_id")", R"("pbs_job_id")");
  text = replaced(text, R"("over_time")", R"("something")");
  text = replaced(text, R"("configuration")", R"("something else")");
  const RunMetrics run = parse_run_metrics(text, "m.json");
  EXPECT_EQ(run.version, "");
  EXPECT_EQ(run.commit, "");
  EXPECT_TRUE(run.libraries.empty());
  EXPECT_EQ(run.slurm_job_id, "");
  EXPECT_EQ(run.interval_s, 0);
  EXPECT_TRUE(run.configuration.empty());
  EXPECT_EQ(run.attempt, 1u);
  EXPECT_EQ(run.before, 0u);
  std::string without = sample_run();
  for (auto at = without.find("deadlines"); at != without.npos; at = without.find("deadlines")) without[at] = 'x';
  EXPECT_EQ(parse_run_metrics(without, "m.json").job.attainment, std::nullopt);
}

TEST(RunMetrics, EveryGroupHasItsMesh) {
  std::string text = replaced(sample_run(), "\"groups\": 1", "\"groups\": 2");
  EXPECT_THAT(parse_run_metrics(text, "m.json").meshes, ElementsAre(MeshMetrics{2, 2}, MeshMetrics{2, 2}));
  text = replaced(text, "\"over_time\"", test::sample_groups({{2, 1}, {1, 1}, {1, 1}}) + ", \"over_time\"");
  const RunMetrics run = parse_run_metrics(text, "m.json");
  EXPECT_THAT(run.meshes, ElementsAre(MeshMetrics{2, 1}, MeshMetrics{1, 1}, MeshMetrics{1, 1}));
  ASSERT_EQ(run.rank_groups.size(), 3u);
  EXPECT_EQ(run.rank_groups[1].id, "group 1 (tp 1 × pp 1, from rank 2)");
}

TEST(RunMetrics, HaveWhatWasPredicted) {
  EXPECT_FALSE(parse_run_metrics(sample_run(), "m.json").predicted);
  const auto predicted = *parse_run_metrics(test::predicted_run(), "m.json").predicted;
  EXPECT_EQ(predicted.basis, "Gamma <arrivals>");
  EXPECT_EQ(predicted.requests, 33);
  EXPECT_EQ(predicted.all.makespan_s, 10);
  ASSERT_EQ(predicted.groups.size(), 2u);
  EXPECT_EQ(predicted.groups[1].swaps_per_s, 0.125);
  EXPECT_EQ(predicted.groups[1].mean_latency_s, std::nullopt);
  ASSERT_EQ(predicted.models.size(), 2u);
  EXPECT_EQ(predicted.models[1].first, "b");
  EXPECT_EQ(predicted.models[1].second.mean_latency_s, 0.4);
}

TEST(RunMetrics, WhatIsWrongIsNamed) {
  EXPECT_THAT(error_of(replaced(test::predicted_run(), "\"makespan_s\": 10", "\"makespan_s\": []")),
              HasSubstr("predicted.makespan_s should be a number"));
  EXPECT_THAT(error_of(replaced(test::predicted_run(), "{\"attainment\": 0.75}", "3")),
              HasSubstr("predicted.models.a should be an object"));
  const std::string text = sample_run();
  EXPECT_THAT(error_of(replaced(text, "\"wall_s\"", "\"wall\"")), AllOf(HasSubstr("m.json: wall_s is missing")));
  EXPECT_THAT(error_of(replaced(text, "12.5", "\"12.5\"")),
              HasSubstr("m.json: wall_s should be a number, not \"12.5\""));
  EXPECT_THAT(error_of(replaced(text, "12.5", "1e999")), HasSubstr("m.json: not JSON"));
  EXPECT_THAT(error_of(replaced(text, "12.5", "-1")), HasSubstr("wall_s should be at least 0, not -1"));
  EXPECT_THAT(error_of(replaced(text, "\"ranks\": 4", "\"ranks\": 0")),
              HasSubstr("mesh.ranks should be between 1 and"));
  EXPECT_THAT(error_of(replaced(text, "\"ok\": 12", "\"ok\": -2")),
              HasSubstr("models.a.requests.ok should be a whole"));
  EXPECT_THAT(error_of(replaced(text, "[3, 1, 0]", "[3, null]")), HasSubstr("over_time.waiting[1] should be"));
  EXPECT_THAT(error_of(replaced(text, "\"8\"", "8")), HasSubstr("configuration.max-seqs should be a string"));
  EXPECT_THAT(error_of(replaced(text, "\"started\"", "\"attempt\": null, \"started\"")),
              HasSubstr("m.json: attempt should be a whole number"));
  EXPECT_THAT(error_of(replaced(text, "\"<l>\"", "3")), HasSubstr("computron.libraries[1] should be a string, not 3"));
  EXPECT_THAT(error_of("[1, 2]"), HasSubstr("m.json: the whole should be an object, not [1,2]"));
  EXPECT_THAT(error_of(""), HasSubstr("m.json: not JSON"));
  EXPECT_THAT(error_of(text.substr(0, text.size() / 2)), HasSubstr("m.json: not JSON"));
  EXPECT_THAT(error_of(R"({"traceEvents": []})"), HasSubstr("not what computron serve --metrics writes"));
  EXPECT_THAT(error_of(std::string(100000, '[')), HasSubstr("nested too deep"));
}

}  // namespace
}  // namespace computron
