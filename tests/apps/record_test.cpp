// serve --record and simulate --steps: the record of jobs that swap, whole, torn, limited, of several groups.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <set>

#include "computron/plan/replay.h"
#include "tests/apps/program.h"
#include "tests/apps/serve_job.h"

namespace computron::test {
namespace {

using testing::HasSubstr;

constexpr int kRequests = 24;
constexpr double kBetweenArrivalsS = 0.03;  // so that what is written every tenth of a second holds some of them
const TinyModel kModels[] = {
    {.layers = 4, .heads = 4, .head_dim = 16, .ffn = 256, .vocab = 192, .seed = 21},
    {.layers = 4, .heads = 5, .head_dim = 12, .ffn = 200, .vocab = 131, .seed = 23},
};

class RecordedJob : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    models_ = std::make_unique<TemporaryFolder>();
    for (int m = 0; m < 2; ++m) write_tiny_checkpoint(*models_ / name(m), kModels[m]);
  }
  static void TearDownTestSuite() { models_.reset(); }
  static std::string name(int m) { return fmt::format("model{}", m); }

  // A line whose request arrives after so many seconds (--replay).
  static std::string arriving(double seconds, const std::string& line) {
    auto request = nlohmann::json::parse(line);
    request["arrival"] = seconds;
    return request.dump();
  }
  // In turn, so that the two models swap each other out; prompts of 1 to 23 tokens.
  static std::vector<std::string> lines() {
    std::vector<std::string> lines;
    for (int i = 0; i < kRequests; ++i) {
      const std::vector<int> prompt = random_prompt(kModels[i % 2], 1 + i * 7 % 23, i);
      lines.push_back(arriving(kBetweenArrivalsS * i, completion_line(fmt::format("r{}", i), name(i % 2), prompt,
                                                                      4 + i % 3, {{"ignore_eos", true}})));
    }
    return lines;
  }
  ServeJob job(const std::vector<std::string>& more = {}, const std::string& policy = "fifo") const {
    ServeJob job{.tp = 2, .lines = lines(), .device_memory = "896KiB"};
    for (int m = 0; m < 2; ++m) job.models.push_back({name(m), *models_ / name(m)});
    job.more = {"--max-seqs", "2", "--link-gbps", "0.05", "--policy", policy, "--record", record_path()};
    job.more.insert(job.more.end(), more.begin(), more.end());
    return job;
  }
  std::string record_path() const { return file("job.record"); }

  // Every request, step and report stands in it once, and what they sum up to is what the job's metrics say.
  static void expect_whole(const Record& record, const nlohmann::json& metrics, std::size_t groups) {
    EXPECT_EQ(record.why_cut(), "");
    EXPECT_EQ(record.requests, static_cast<std::size_t>(kRequests));
    EXPECT_EQ(record.completions.size(), static_cast<std::size_t>(kRequests));
    EXPECT_EQ(record.unreported, 0u);
    EXPECT_EQ(unfinished_requests(record), 0u);
    ASSERT_EQ(record.steps.size(), groups);
    const ReplayOutcome outcome = recorded_outcome(record);
    EXPECT_EQ(outcome.steps, metrics.at("steps").at("count"));
    EXPECT_EQ(outcome.swaps, metrics.at("swaps").at("count"));
    EXPECT_EQ(outcome.moved_bytes, metrics.at("swaps").at("link_bytes"));
    EXPECT_EQ(outcome.served, static_cast<std::size_t>(kRequests));
    std::set<RequestId> begun, ended;
    for (const auto& steps : record.steps) {
      for (const Record::Step& step : steps) begun.insert(step.sent.begun.begin(), step.sent.begun.end());
    }
    for (const RecordedCompletion& completion : record.completions) ended.insert(completion.id);
    EXPECT_EQ(begun.size(), static_cast<std::size_t>(kRequests));
    EXPECT_EQ(ended.size(), static_cast<std::size_t>(kRequests));
    const double wall_s = metrics.at("wall_s");
    EXPECT_LE(outcome.wall_s, wall_s);
  }

  // The replays move what the job moved, and print a line each.
  void expect_replayed(const Record& record) const {
    const ReplayOutcome was = recorded_outcome(record), same = replay_steps(record, {});
    EXPECT_EQ(same.steps, was.steps);
    EXPECT_EQ(same.swaps, was.swaps);
    EXPECT_EQ(same.served, was.served);
    EXPECT_EQ(replay_requests(record, {}).served, was.served);
    EXPECT_GT(same.wall_s, 0);
    const Outcome printed = run({"simulate", "--steps", record_path(), "--link-scale", "0.5"});
    EXPECT_EQ(printed.code, 0) << printed.errors;
    for (const char* line : {"recorded", "replayed: the same steps", "replayed: decided again",
                             "links 0.5 times as fast", "what if: the same steps", "what if: decided again"}) {
      EXPECT_THAT(printed.output, HasSubstr(line));
    }
  }

  static inline std::unique_ptr<TemporaryFolder> models_;
  TemporaryFolder jobs_;
};

TEST_F(RecordedJob, IsWholeUnderEveryPolicy) {
  for (const char* policy : {"fifo", "balanced", "throughput"}) {
    const Served served = serve_ok(job({"--replay"}, policy), jobs_);
    const Record record = read_record(record_path());
    expect_whole(record, served.metrics, /*groups=*/1);
    EXPECT_GE(recorded_outcome(record).swaps, 2u) << policy;
    EXPECT_EQ(record.header.policy, policy);
    EXPECT_EQ(record.header.ranks(), 2);
    expect_replayed(record);
  }
}

TEST_F(RecordedJob, ItsLinkWasNotFasterThanTheJobs) {
  serve_ok(job(), jobs_);
  const std::optional<double> rate = link_bytes_per_s(read_record(record_path()), 0, 0);
  ASSERT_TRUE(rate);
  EXPECT_GT(*rate, 0);
  EXPECT_LE(*rate, 1.25 * 0.05e9);  // a copy that begins late makes up for it
}

TEST_F(RecordedJob, OfStagesAndGroups) {
  ServeJob stages = job();
  stages.tp = 1;
  stages.pp = 2;
  const Served piped = serve_ok(stages, jobs_);
  expect_whole(read_record(record_path()), piped.metrics, /*groups=*/1);
  expect_replayed(read_record(record_path()));
  ServeJob groups = job({"--groups", "2"});
  groups.tp = 1;
  groups.ranks = 2;
  const Served grouped = serve_ok(groups, jobs_);
  const Record record = read_record(record_path());
  expect_whole(record, grouped.metrics, /*groups=*/2);
  EXPECT_FALSE(record.steps[0].empty());
  EXPECT_FALSE(record.steps[1].empty());
  expect_replayed(record);
}

TEST_F(RecordedJob, GivesTheSameResults) {
  ServeJob without = job();
  without.more.resize(without.more.size() - 2);
  const Served recorded = serve_ok(job(), jobs_), plain = serve_ok(without, jobs_);
  EXPECT_FALSE(plain.job.errors.find("record") != std::string::npos) << plain.job.errors;
  for (const std::string& id : plain.results.custom_ids()) {
    EXPECT_EQ(recorded.results.choice(id), plain.results.choice(id)) << id;
  }
}

TEST_F(RecordedJob, BehindTheLimitTheJobGoesOn) {
  const Served served = serve_ok(job({"--record-limit", "8KiB"}), jobs_);
  EXPECT_THAT(served.job.errors, HasSubstr("has reached 8.00 KiB"));
  EXPECT_LE(std::filesystem::file_size(record_path()), std::size_t{8} << 10);
  const Record record = read_record(record_path());
  EXPECT_THAT(record.why_cut(), HasSubstr("limit"));
  const Outcome printed = run({"simulate", "--steps", record_path()});
  EXPECT_THAT(printed.output, HasSubstr("the record ends before its job: it reached its limit"));
}

// What was written is a record; the attempt that goes on writes its own, of the requests that were left.
TEST_F(RecordedJob, KilledAndRunAgain) {
  ServeJob crashing = job({"--replay"});
  crashing.program = injected_program();
  crashing.more.insert(crashing.more.end(), {"--inject-crash", "16", "--durability", "process"});
  crashing.output = file("results.jsonl");
  crashing.requests = write("requests.jsonl", [] {
    std::string text;
    for (const std::string& line : lines()) text += line + "\n";
    return text;
  }());
  const Served killed = serve(crashing, jobs_);
  EXPECT_NE(killed.job.exit_code, 0);
  const Record torn = read_record(record_path());
  EXPECT_THAT(torn.why_cut(), HasSubstr("went down"));
  EXPECT_GT(torn.steps.at(0).size(), 3u);
  EXPECT_EQ(run({"simulate", "--steps", record_path()}).code, 0);
  ServeJob again = crashing;
  again.more.resize(again.more.size() - 4);
  again.more.insert(again.more.end(), {"--durability", "process"});
  const Served done = serve_ok(again, jobs_);
  const Record record = read_record(record_path());
  EXPECT_EQ(record.why_cut(), "");
  EXPECT_EQ(record.requests, record.completions.size());
  const std::size_t before = done.metrics.at("requests").at("before");
  EXPECT_GT(before, 0u);
  EXPECT_EQ(record.requests, static_cast<std::size_t>(kRequests) - before);
}

TEST_F(RecordedJob, StoppedInOrderSaysSo) {
  ServeJob slow = job({"--replay"});
  slow.lines.push_back(arriving(1000, completion_line("late", name(0), {5}, 1)));
  RunningServe running(slow, jobs_);
  while (!std::filesystem::exists(record_path()) || std::filesystem::file_size(record_path()) < 6000) usleep(10000);
  ASSERT_EQ(kill(running.mpi().rank_process(0), SIGTERM), 0);
  EXPECT_EQ(running.finish(healthy_limit_s()).job.exit_code, static_cast<int>(ExitCode::kStopped));
  EXPECT_THAT(read_record(record_path()).why_cut(), HasSubstr("stopped"));
}

TEST_F(RecordedJob, WhatCannotBeIsRefused) {
  const auto refused = [this](std::vector<std::string> more, ExitCode code, const char* why) {
    more.insert(more.begin(), {"simulate"});
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.code, static_cast<int>(code)) << outcome.errors;
    EXPECT_THAT(outcome.errors, HasSubstr(why));
  };
  const std::string some = write("some", "nothing");
  refused({}, ExitCode::kUsage, "neither profiles nor --steps are given");
  refused({"--steps", file("none")}, ExitCode::kNoInput, "cannot read the record");
  refused({"--steps", some}, ExitCode::kData, "is not a record");
  refused({"--steps", some, "--link-scale", "0"}, ExitCode::kUsage, "--link-scale");
  refused({"--steps", some, "--link-scale", "2", "--link-gbps", "1"}, ExitCode::kUsage, "--link");
  refused({"--steps", some, "--page-size", "7"}, ExitCode::kUsage, "--page-size");
  refused({"--steps", some, "--device-memory", "many"}, ExitCode::kUsage, "--device-memory");
  ServeJob nowhere = job();
  nowhere.more.back() = "/nowhere/at/all";
  const Served served = serve(nowhere, jobs_);
  EXPECT_EQ(served.job.exit_code, static_cast<int>(ExitCode::kCannotCreate)) << served.job.errors;
  EXPECT_THAT(served.job.errors, HasSubstr("/nowhere/at/all"));
  const Served dry = serve(job({"--dry-run"}), jobs_);
  EXPECT_EQ(dry.job.exit_code, static_cast<int>(ExitCode::kUsage));
  EXPECT_THAT(dry.job.errors, HasSubstr("--record"));
}

}  // namespace
}  // namespace computron::test
