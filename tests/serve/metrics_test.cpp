#include "computron/serve/metrics.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "computron/storage/files.h"
#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

Completion completion_of(ModelId model, double latency_s, double ttft_s, int generated = 10) {
  Completion completion;
  completion.model = model;
  completion.prompt_tokens = 4;
  completion.generated_tokens = generated;
  completion.arrival_s = 100;
  completion.first_token_s = 100 + ttft_s;
  completion.finished_s = 100 + latency_s;
  return completion;
}

Completion failed(ModelId model) {
  Completion completion = completion_of(model, 1, 1);
  completion.error_code = "numerical_error";
  return completion;
}

void add(Metrics& metrics, const Completion& completion) { metrics.add(std::span(&completion, 1)); }

RunInfo info() {
  return {.wall_s = 20,
          .ranks = 4,
          .tp = 2,
          .pp = 2,
          .groups = 1,
          .device = "cpu",
          .link_gb_per_s = 2,
          .link_emulated = true};
}

std::vector<std::string> keys(const ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) names.push_back(key);
  return names;
}

Metrics sample() {
  Metrics metrics({"a", "b"});
  for (int i = 1; i <= 100; ++i) add(metrics, completion_of(0, i, i / 10.0));
  add(metrics, completion_of(1, 500, 50));
  add(metrics, failed(1));
  metrics.add_failure();
  metrics.model(0).swaps = {.count = 2,
                            .pages = 10,
                            .bytes = 8000,
                            .link_bytes = 8000,
                            .largest_shard_bytes = 3'000'000'000,
                            .busy_s = 2,
                            .exposed_s = 0.5,
                            .verified = 7,
                            .refetched = 1};
  metrics.model(1).swaps = {.count = 1,
                            .pages = 5,
                            .bytes = 1000,
                            .link_bytes = 1000,
                            .largest_shard_bytes = 1'000'000'000,
                            .busy_s = 2,
                            .exposed_s = 0.25,
                            .verified = 5,
                            .refetched = 2};
  metrics.model(0).steps = {.count = 100,
                            .passes = 90,
                            .graphs = 40,
                            .rides = 7,
                            .total_s = 0.1,
                            .overhead_s = 0.002,
                            .compute_s = {0.25, 1}};
  metrics.model(1).steps = {.count = 300,
                            .passes = 280,
                            .graphs = 2,
                            .rides = 5,
                            .total_s = 0.5,
                            .overhead_s = 0.002,
                            .compute_s = {1.5, 0.5}};
  metrics.model(0).cache = {.preemptions = 3, .prefix_hit_tokens = 64};
  metrics.model(1).cache = {.preemptions = 4, .prefix_hit_tokens = 0};
  return metrics;
}

TEST(Metrics, KeysAreTheInterfaces) {
  const auto object = ordered_json::parse(sample().to_json(info()));
  EXPECT_THAT(keys(object), ElementsAre("computron", "started", "host", "attempt", "wall_s", "mesh", "device", "link",
                                        "requests", "deadlines", "tokens", "latency_s", "ttft_s", "swaps", "steps",
                                        "cache", "over_time", "open", "configuration", "models"));
  EXPECT_THAT(keys(object["mesh"]), ElementsAre("ranks", "tp", "pp", "groups"));
  EXPECT_THAT(keys(object["link"]), ElementsAre("gb_per_s_per_rank", "emulated", "coded"));
  EXPECT_THAT(keys(object["models"]), ElementsAre("a", "b"));
  EXPECT_THAT(keys(object["requests"]), ElementsAre("total", "ok", "failed", "before"));
  EXPECT_THAT(keys(object["models"]["a"]["requests"]), ElementsAre("total", "ok", "failed"));
  for (const auto& metrics : {object, object["models"]["a"], object["models"]["b"]}) {
    EXPECT_THAT(keys(metrics["deadlines"]), ElementsAre("total", "met", "unserved", "attainment"));
    EXPECT_THAT(keys(metrics["tokens"]), ElementsAre("prompt", "generated", "generated_per_s"));
    for (const std::string name : {"latency_s", "ttft_s"}) {
      EXPECT_THAT(keys(metrics[name]), ElementsAre("mean", "p50", "p90", "p99", "max", "percentiles"));
    }
    EXPECT_THAT(keys(metrics["swaps"]), ElementsAre("count", "pages", "bytes", "link_bytes", "busy_s", "exposed_s",
                                                    "gb_per_s_per_rank", "link_fraction", "verified", "refetched"));
    EXPECT_THAT(keys(metrics["steps"]),
                ElementsAre("count", "passes", "graphs", "rides", "mean_us", "overhead_us", "compute_s"));
    EXPECT_THAT(keys(metrics["cache"]), ElementsAre("set_asides", "shared_tokens"));
  }
}

TEST(Metrics, CodedPagesTakeLessOfTheLinks) {
  EXPECT_THAT(sample().summary(info()), testing::Not(HasSubstr("over the links")));
  Metrics metrics = sample();
  metrics.model(0).swaps.link_bytes = 5600;
  const auto object = ordered_json::parse(metrics.to_json(info()));
  EXPECT_EQ(object["swaps"]["bytes"], 9000);
  EXPECT_EQ(object["swaps"]["link_bytes"], 6600);
  EXPECT_EQ(object["models"]["a"]["swaps"]["link_bytes"], 5600);
  EXPECT_THAT(metrics.summary(info()), HasSubstr("3 swaps: 8.79 KiB in 15 pages, 6.45 KiB over the links, "));
}

const char* const kPredicted =
    R"({"basis": "some \"requests\"", "requests": 100, "attainment": 0.5, "mean_latency_s": 20.5,
    "p99_latency_s": null, "makespan_s": 19, "swaps_per_s": 0.1, "models": {"a": {"attainment": 1}}})";

TEST(Metrics, WhatWasPredictedIsThereAsItWas) {
  RunInfo run = info();
  EXPECT_FALSE(json::parse(sample().to_json(run)).contains("predicted"));
  run.predicted = kPredicted;
  EXPECT_EQ(json::parse(sample().to_json(run)).at("predicted"), json::parse(kPredicted));
}

TEST(Metrics, TheSummarySaysWhatWasPredicted) {
  RunInfo run = info();
  EXPECT_THAT(sample().summary(run), testing::Not(HasSubstr("predicted")));
  run.predicted = kPredicted;
  const Metrics measured = sample();
  const double mean_s = json::parse(measured.to_json(run))["latency_s"]["mean"];
  // Without deadlines nothing stands beside the attainment, and the p99 is not predicted.
  EXPECT_THAT(measured.summary(run),
              HasSubstr("\npredicted / measured: latency mean 20.500 / " + fmt::format("{:.3f}", mean_s) +
                        " s, 19.00 / 20.00 s in all, 0.1 / 0.15 swaps/s"));
  Metrics with_deadlines = sample();
  Completion late = completion_of(0, 2, 1);
  late.due_s = 101;
  add(with_deadlines, late);
  EXPECT_THAT(with_deadlines.summary(run), HasSubstr("measured: 50.0 / 0.0 % of deadlines met, latency"));
  run.predicted = "{}";
  EXPECT_THAT(measured.summary(run), testing::Not(HasSubstr("predicted")));
}

// Two groups: b is in both.
Metrics sample_of_groups() {
  Metrics metrics({"a", "b"}, {{.tp = 2, .pp = 1, .first_rank = 0, .models = {0, 1}},
                               {.tp = 1, .pp = 1, .first_rank = 2, .models = {1}}});
  add(metrics, completion_of(0, 1, 0.5));
  Completion elsewhere = completion_of(1, 3, 1);
  add(metrics, elsewhere);
  elsewhere.group = 1;
  add(metrics, elsewhere);
  metrics.model(0, 0).swaps = {.count = 1, .bytes = 100, .largest_shard_bytes = 4'000'000'000, .busy_s = 2};
  metrics.model(1, 0).swaps = {.count = 2, .bytes = 200, .largest_shard_bytes = 2'000'000'000, .busy_s = 1};
  metrics.model(0, 1).swaps = {.count = 4, .bytes = 400, .largest_shard_bytes = 8'000'000'000, .busy_s = 2.5};
  metrics.model(0, 0).steps = {.count = 10, .compute_s = {1, 2}};
  metrics.model(1, 0).steps = {.count = 20, .compute_s = {1, 2}};
  metrics.model(0, 1).steps = {.count = 40, .compute_s = {0, 0, 3}};
  return metrics;
}

// Counts add up. Groups work side by side: of their times the longest counts, with the bytes that took it.
TEST(Metrics, GroupsWorkSideBySide) {
  const auto object = json::parse(sample_of_groups().to_json(info()));
  EXPECT_EQ(object["requests"]["ok"], 3);
  EXPECT_EQ(object["swaps"]["count"], 7);
  EXPECT_EQ(object["swaps"]["bytes"], 700);
  EXPECT_EQ(object["swaps"]["busy_s"], 3);
  EXPECT_EQ(object["swaps"]["gb_per_s_per_rank"], 2);
  EXPECT_EQ(object["steps"]["count"], 70);
  EXPECT_EQ(object["steps"]["compute_s"], 4);
  ASSERT_EQ(object["groups"].size(), 2u);
  EXPECT_EQ(object["groups"][0]["requests"]["ok"], 2);
  EXPECT_EQ(object["groups"][0]["swaps"]["busy_s"], 3);
  EXPECT_EQ(object["groups"][1]["requests"]["ok"], 1);
  EXPECT_EQ(object["groups"][1]["swaps"]["busy_s"], 2.5);
  EXPECT_EQ(object["groups"][1]["swaps"]["gb_per_s_per_rank"], 3.2);
  EXPECT_EQ(object["groups"][1]["models"], json({"b"}));
  EXPECT_EQ(object["groups"][1]["first_rank"], 2);
  EXPECT_EQ(object["models"]["b"]["requests"]["ok"], 2);
  EXPECT_EQ(object["models"]["b"]["swaps"]["count"], 6);
  EXPECT_EQ(object["models"]["b"]["swaps"]["busy_s"], 2.5);
  EXPECT_FALSE(json::parse(sample().to_json(info())).contains("groups")) << "one group is the job";
}

TEST(Metrics, InfoOfTheRun) {
  const auto object = json::parse(sample().to_json(info()));
  EXPECT_EQ(object["wall_s"], 20);
  EXPECT_EQ(object["mesh"], (json{{"ranks", 4}, {"tp", 2}, {"pp", 2}, {"groups", 1}}));
  EXPECT_EQ(object["device"], "cpu");
  EXPECT_EQ(object["link"], (json{{"gb_per_s_per_rank", 2}, {"emulated", true}, {"coded", false}}));
}

TEST(Metrics, SayWhatWroteThem) {
  RunInfo run = info();
  run.program = {.version = "1.2.3",
                 .commit = "abc-dirty",
                 .build = "Release",
                 .compiler = "12.2.0",
                 .libraries = {"Open MPI v4.1.4", "HDF5 1, [of \\]  spaces\""}};
  run.slurm_job_id = "77";
  const auto object = json::parse(sample().to_json(run));
  EXPECT_EQ(object["computron"], (json{{"version", "1.2.3"},
                                       {"commit", "abc-dirty"},
                                       {"build", "Release"},
                                       {"compiler", "12.2.0"},
                                       {"libraries", run.program.libraries}}));
  EXPECT_EQ(object["job"], (json{{"slurm_job_id", "77"}}));
  EXPECT_FALSE(json::parse(sample().to_json(info())).contains("job"));
}

TEST(Metrics, RequestsAndTokens) {
  const Metrics metrics = sample();
  EXPECT_EQ(metrics.finished(), 103u);
  const auto object = json::parse(metrics.to_json(info()));
  EXPECT_EQ(object["requests"], (json{{"total", 103}, {"ok", 101}, {"failed", 2}, {"before", 0}}));
  EXPECT_EQ(object["models"]["b"]["requests"], (json{{"total", 2}, {"ok", 1}, {"failed", 1}}));
  EXPECT_EQ(object["tokens"]["prompt"], 404);
  EXPECT_EQ(object["tokens"]["generated"], 1010);
  EXPECT_DOUBLE_EQ(object["tokens"]["generated_per_s"], 50.5);
  EXPECT_DOUBLE_EQ(object["models"]["b"]["tokens"]["generated_per_s"], 0.5);
}

// Late ones and errors have not met theirs. Of lines that never became requests only those count that had one.
TEST(Metrics, DeadlinesAreCountedByModelAndGroup) {
  Metrics metrics = sample_of_groups();
  EXPECT_EQ(json::parse(metrics.to_json(info()))["deadlines"],
            (json{{"total", 0}, {"met", 0}, {"unserved", 0}, {"attainment", nullptr}}));
  EXPECT_THAT(metrics.summary(info()), testing::Not(HasSubstr("deadlines")));
  const auto end = [&metrics](ModelId model, std::uint32_t group, double latency_s, const char* error = "") {
    Completion completion = completion_of(model, latency_s, 0.5);
    completion.due_s = completion.arrival_s + 2;
    completion.group = group;
    completion.error_code = error;
    add(metrics, completion);
  };
  end(0, 0, 1);
  end(0, 0, 2);
  end(1, 0, 3);
  end(1, 1, 1);
  end(1, 1, 1, "numerical_error");
  end(1, 1, 3, "deadline_exceeded");
  metrics.add_failure();
  metrics.add_failure(/*with_deadline=*/true);
  const auto object = json::parse(metrics.to_json(info()));
  const auto count = [](int total, int met, int unserved, double attainment) {
    return json{{"total", total}, {"met", met}, {"unserved", unserved}, {"attainment", attainment}};
  };
  EXPECT_EQ(object["models"]["a"]["deadlines"], count(2, 2, 0, 1));
  EXPECT_EQ(object["models"]["b"]["deadlines"], count(4, 1, 1, 0.25));
  EXPECT_EQ(object["groups"][1]["deadlines"], count(3, 1, 1, 1.0 / 3));
  EXPECT_EQ(object["deadlines"], count(7, 3, 1, 3.0 / 7));
  EXPECT_THAT(metrics.summary(info()), HasSubstr("42.9 % of 7 deadlines met (1 not served)"));
}

TEST(Metrics, PercentilesAreNearestRanks) {
  const auto object = json::parse(sample().to_json(info()));
  const auto& one = object["models"]["a"]["latency_s"];  // 1 to 100 s
  EXPECT_DOUBLE_EQ(one["mean"], 50.5);
  EXPECT_DOUBLE_EQ(one["p50"], 50);
  EXPECT_DOUBLE_EQ(one["p90"], 90);
  EXPECT_DOUBLE_EQ(one["p99"], 99);
  EXPECT_DOUBLE_EQ(one["max"], 100);
  EXPECT_DOUBLE_EQ(object["latency_s"]["p50"], 51);  // with b's 500 s
  EXPECT_DOUBLE_EQ(object["latency_s"]["max"], 500);
  EXPECT_NEAR(object["ttft_s"]["p90"], 9.1, 9.1 / 4096);
  for (const std::string name : {"mean", "p50", "p90", "p99", "max"}) {
    EXPECT_DOUBLE_EQ(object["models"]["b"]["latency_s"][name], 500) << name;
  }
}

TEST(Metrics, CurvesGoFromTheSmallestToTheLargest) {
  const auto object = json::parse(sample().to_json(info()));
  const auto curve = object["models"]["a"]["latency_s"]["percentiles"].get<std::vector<double>>();  // 1 to 100 s
  ASSERT_EQ(curve.size(), 101u);
  EXPECT_EQ(curve.front(), 1);
  EXPECT_EQ(curve[50], 50);
  EXPECT_EQ(curve.back(), 100);
  EXPECT_TRUE(std::is_sorted(curve.begin(), curve.end()));
}

TEST(Metrics, ListsStandInALineAndTextsAsTheyAre) {
  const std::string odd = "a [\"1,  2\", \\\\ \n]";
  Metrics metrics({odd});
  add(metrics, completion_of(0, 2, 1));
  const std::string text = metrics.to_json(info());
  EXPECT_THAT(text, HasSubstr("\"percentiles\": [2.0, 2.0, "));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 155);
  EXPECT_TRUE(json::parse(text)["models"].contains(odd)) << text;
}

TEST(QueueHistory, HoldsEvenlySpacedTimesHoweverLongTheRun) {
  QueueHistory history(2, 0.5);
  for (int i = 0; i <= 10000; ++i) {  // depths that tell the time at which they were
    const auto t = static_cast<std::uint64_t>(i);
    const QueueDepth depths[] = {{t, 1}, {2 * t, 0}};
    if (history.due(i * 0.5)) history.note(i * 0.5, depths);
  }
  const std::size_t times = history.waiting().size();
  EXPECT_GE(times, QueueHistory::kMostTimes / 2);
  EXPECT_LE(times, QueueHistory::kMostTimes);
  EXPECT_GT(static_cast<double>(times) * history.interval_s(), 5000);
  for (std::size_t k = 0; k < times; ++k) {
    const auto then = static_cast<std::uint64_t>(history.interval_s() * static_cast<double>(k) / 0.5);
    ASSERT_EQ(history.waiting()[k], 3 * then);
    ASSERT_EQ(history.unfinished(0)[k], then + 1);
  }
}

TEST(QueueHistory, TimesThatNobodyLookedAtAreFilledIn) {
  QueueHistory history(1, 0.5);
  history.note(2.1, std::vector<QueueDepth>{{7, 1}});
  EXPECT_THAT(history.waiting(), ElementsAre(7, 7, 7, 7, 7));
  EXPECT_THAT(history.unfinished(0), ElementsAre(8, 8, 8, 8, 8));
}

TEST(Metrics, ScoredPromptsHaveNoFirstToken) {
  Metrics metrics({"a"});
  add(metrics, completion_of(0, 2, -100, /*generated=*/0));
  const auto object = json::parse(metrics.to_json(info()));
  EXPECT_EQ(object["latency_s"]["max"], 2);
  EXPECT_TRUE(object["ttft_s"]["max"].is_null());
}

TEST(Metrics, SwapsAndSteps) {
  const auto object = json::parse(sample().to_json(info()));
  EXPECT_EQ(object["swaps"], (json{{"count", 3},
                                   {"pages", 15},
                                   {"bytes", 9000},
                                   {"link_bytes", 9000},
                                   {"busy_s", 4.0},
                                   {"exposed_s", 0.75},
                                   {"gb_per_s_per_rank", 1.0},
                                   {"link_fraction", 0.5},
                                   {"verified", 12},
                                   {"refetched", 3}}));
  EXPECT_DOUBLE_EQ(object["models"]["a"]["swaps"]["gb_per_s_per_rank"], 1.5);
  EXPECT_DOUBLE_EQ(object["models"]["a"]["swaps"]["link_fraction"], 0.75);
  EXPECT_EQ(object["steps"]["count"], 400);
  EXPECT_EQ(object["steps"]["passes"], 370);
  EXPECT_EQ(object["steps"]["graphs"], 42);
  EXPECT_EQ(object["steps"]["rides"], 12);
  EXPECT_EQ(object["models"]["a"]["steps"]["graphs"], 40);
  EXPECT_NEAR(object["steps"]["mean_us"], 1500, 1e-6);
  EXPECT_NEAR(object["steps"]["overhead_us"], 10, 1e-6);
  // Of the busiest rank: rank 1 for a, rank 0 for b and, with 1.75 s, for both together.
  EXPECT_DOUBLE_EQ(object["models"]["a"]["steps"]["compute_s"], 1);
  EXPECT_DOUBLE_EQ(object["models"]["b"]["steps"]["compute_s"], 1.5);
  EXPECT_DOUBLE_EQ(object["steps"]["compute_s"], 1.75);
  EXPECT_EQ(object["cache"], (json{{"set_asides", 7}, {"shared_tokens", 64}}));
  EXPECT_EQ(object["models"]["a"]["cache"], (json{{"set_asides", 3}, {"shared_tokens", 64}}));
}

TEST(Metrics, WhatIsUnknownIsNull) {
  RunInfo unknown = info();
  unknown.link_gb_per_s = 0;
  const auto object = json::parse(sample().to_json(unknown));
  EXPECT_TRUE(object["link"]["gb_per_s_per_rank"].is_null());
  EXPECT_TRUE(object["swaps"]["link_fraction"].is_null());
  EXPECT_DOUBLE_EQ(object["swaps"]["gb_per_s_per_rank"], 1);
  const auto nothing = json::parse(Metrics({}).to_json({}));
  EXPECT_TRUE(nothing["swaps"]["gb_per_s_per_rank"].is_null());
  EXPECT_TRUE(nothing["steps"]["mean_us"].is_null());
  EXPECT_EQ(nothing["steps"]["compute_s"], 0);
  EXPECT_TRUE(nothing["tokens"]["generated_per_s"].is_null());
  EXPECT_EQ(nothing["models"], json::object());
}

TEST(Metrics, SummaryIsForPeople) {
  const std::string text = sample().summary(info());
  EXPECT_THAT(text, HasSubstr("103 requests in 20.00 s (101 ok, 2 failed), 1010 tokens generated at 50.5 tokens/s"));
  EXPECT_THAT(text, HasSubstr("3 swaps: 8.79 KiB in 15 pages, 1.00 GB/s a rank (50 % of the emulated link's 2.00)"));
  EXPECT_THAT(text, HasSubstr("400 steps of 1500 us on average"));
  EXPECT_THAT(text, HasSubstr("; 42 of 370 passes as graphs"));
  const std::string nothing = Metrics({"a"}).summary({});
  EXPECT_THAT(nothing, HasSubstr("no swaps"));
  EXPECT_EQ(nothing.find("nan"), std::string::npos);
}

TEST(Metrics, AnAttemptSaysWhatEarlierOnesFinished) {
  RunInfo resumed = info();
  resumed.attempt = 3;
  resumed.requests_before = 47;
  const json object = json::parse(sample().to_json(resumed));
  EXPECT_EQ(object["attempt"], 3);
  EXPECT_EQ(object["requests"], (json{{"total", 103}, {"ok", 101}, {"failed", 2}, {"before", 47}}));
  EXPECT_THAT(sample().summary(resumed), HasSubstr("; 47 by earlier attempts (this is attempt 3)\n"));
  EXPECT_EQ(json::parse(sample().to_json(info()))["attempt"], 1);
  EXPECT_THAT(sample().summary(info()), testing::Not(HasSubstr("attempt")));
}

TEST(WriteFileAtomically, ReplacesAWholeFile) {
  const TemporaryFolder folder;
  const auto path = folder.write("m.json", "something longer than the new text");
  write_file_atomically(path, "new\n");
  EXPECT_EQ(read_file(path), "new\n");
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(WriteFileAtomically, NamesWhatItCannotCreate) {
  const TemporaryFolder folder;
  expect_error(ExitCode::kCannotCreate, folder / "none/m.json",
               [&] { write_file_atomically(folder / "none/m.json", ""); });
  expect_error(ExitCode::kCannotCreate, "a device", [] { write_file_atomically("/dev/null", ""); });
  struct stat status {};
  ASSERT_EQ(stat("/dev/null", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

TEST(Metrics, ARequestOfSeveralPartsIsOne) {
  Metrics metrics({"a"});
  std::vector<Completion> parts = {completion_of(0, 3, 1, /*generated=*/0), completion_of(0, 5, 2, /*generated=*/0)};
  for (Completion& part : parts) part.values = {1, 2};
  metrics.add(parts);
  parts[1].error_code = "numerical_error";
  metrics.add(parts);
  EXPECT_EQ(metrics.finished(), 2u);
  const json object = json::parse(metrics.to_json(info()));
  EXPECT_EQ(object["requests"], json::parse(R"({"total":2,"ok":1,"failed":1,"before":0})"));
  EXPECT_EQ(object["tokens"]["prompt"], 8);
  EXPECT_EQ(object["tokens"]["generated"], 0);
  EXPECT_EQ(object["latency_s"]["max"], 5) << "the last of them";
  EXPECT_EQ(object["ttft_s"]["max"], 5) << "of an encoder nothing is there before";
}

}  // namespace
}  // namespace computron
