// Jobs of several groups of ranks: the results are those of one group, byte by byte, whatever the placement, swapped or
// not, killed and resumed under another placement; and what goes wrong in a group is named with it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "tests/apps/serve_job.h"
#include "tests/support/test_device.h"

namespace computron::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kRequests = 48;
constexpr int kModels = 3;
constexpr const char* kIds[kModels] = {"one", "two", "three"};

TinyModel model_number(std::uint64_t number) {
  return {.layers = 2, .heads = 4, .head_dim = 16, .ffn = 256, .vocab = 128, .seed = 41 + number};
}

std::string group_json(int tp, int pp, const std::vector<std::string>& models) {
  std::string ids;
  for (const std::string& id : models) ids += fmt::format("{}\"{}\"", ids.empty() ? "" : ",", id);
  return fmt::format(R"({{"tp":{},"pp":{},"models":[{}]}})", tp, pp, ids);
}

struct TestPlacement {
  std::string name;
  int ranks;
  std::vector<std::string> groups;     // as JSON
  std::map<std::string, int> tp = {};  // of each model, where it is not 1

  std::string json() const { return fmt::format(R"({{"groups":[{}]}})", fmt::join(groups, ",")); }
  int tp_of(const std::string& model) const { return tp.contains(model) ? tp.at(model) : 1; }
};

const std::vector<std::string> kAll = {"one", "two", "three"};

std::vector<TestPlacement> placements() {
  return {{"TwoOf1x1", 2, {group_json(1, 1, {"one", "two"}), group_json(1, 1, {"two", "three"})}},
          {"2x1And1x1", 3, {group_json(2, 1, {"one"}), group_json(1, 1, {"two", "three"})}, {{"one", 2}}},
          {"TwoOf1x2", 4, {group_json(1, 2, kAll), group_json(1, 2, kAll)}},
          {"FourOf1x1",
           4,
           {group_json(1, 1, kAll), group_json(1, 1, {"one"}), group_json(1, 1, {"two", "three"}),
            group_json(1, 1, {"three"})}},
          {"OneOf2x2", 4, {group_json(2, 2, kAll)}, {{"one", 2}, {"two", 2}, {"three", 2}}}};
}

// A model a line in turn; some lines have several parts.
std::vector<std::string> request_lines() {
  std::vector<std::string> lines;
  for (int i = 0; i < kRequests; ++i) {
    lines.push_back(completion_line(
        fmt::format("r{}", i), kIds[i % kModels], {1, i % 100, 3}, 4 + i % 5,
        i % 7 == 0 ? nlohmann::json{{"n", 2}, {"temperature", 1}, {"seed", 5}} : nlohmann::json::object()));
  }
  return lines;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Groups : public ::testing::Test {
 protected:
  Groups() {
    for (std::size_t m = 0; m < kModels; ++m) {
      write_tiny_checkpoint(folder_ / (std::string(kIds[m]) + ".h5"), model_number(m));
    }
    write_lines(folder_ / "requests.jsonl", request_lines());
  }

  ServeJob job() const {
    ServeJob job;
    for (const char* id : kIds) job.models.push_back({id, folder_ / (std::string(id) + ".h5")});
    job.requests = folder_ / "requests.jsonl";
    return job;
  }
  ServeJob placed_job(const TestPlacement& placement) const {
    ServeJob placed = job();
    placed.ranks = placement.ranks;
    placed.placement = placement.json();
    return placed;
  }
  // A pool that holds one model, and so swaps.
  static ServeJob swapping(ServeJob job) {
    job.device_memory = "640KiB";
    return job;
  }

  struct Ran {
    std::vector<std::string> results;  // sorted
    nlohmann::json metrics;
  };
  Ran ran(ServeJob job) {
    job.output = folder_ / fmt::format("out{}.jsonl", ++outputs_);
    const Served served = serve(job, folder_);
    EXPECT_EQ(served.job.exit_code, 0) << served.job.errors;
    return {sorted_lines(job.output), served.metrics};
  }
  std::vector<std::string> results_of(const ServeJob& job) {
    Ran last = ran(job);
    last_metrics_ = std::move(last.metrics);
    return std::move(last.results);
  }
  // What one group gives where each model has the tp that it has in `placement`. Leaves last_metrics_ as they are,
  // since of two arguments either may be computed first.
  std::vector<std::string> expected(const TestPlacement& placement, bool reproducible = false) {
    std::vector<std::string> lines;
    for (const int tp : {1, 2}) {
      ServeJob alone = job();
      alone.tp = tp;
      if (reproducible) alone.more = {"--reproducible"};
      for (const std::string& line : ran(alone).results) {
        const std::string id = nlohmann::json::parse(line).at("response").at("body").at("model");
        if (placement.tp_of(id) == tp) lines.push_back(line);
      }
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  }

  TemporaryFolder folder_;
  int outputs_ = 0;
  nlohmann::json last_metrics_;  // of results_of
};

class GroupsOf : public Groups, public ::testing::WithParamInterface<TestPlacement> {};

TEST_P(GroupsOf, GiveTheResultsOfOneGroup) {
  const std::vector<std::string> wanted = expected(GetParam());
  ASSERT_EQ(wanted.size(), static_cast<std::size_t>(kRequests));
  EXPECT_EQ(results_of(placed_job(GetParam())), wanted);
  for (const char* coded : {"off", "on"}) {
    ServeJob placed = swapping(placed_job(GetParam()));
    placed.more = {"--coded", coded};
    EXPECT_EQ(results_of(placed), wanted) << "coded " << coded;
    const auto& swaps = last_metrics_.at("swaps");
    EXPECT_GE(swaps.at("count"), kModels) << "a model was never fetched";
    EXPECT_EQ(swaps.at("link_bytes") < swaps.at("bytes"), coded == std::string("on"));
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, GroupsOf, ::testing::ValuesIn(placements()),
                         [](const auto& placement) { return placement.param.name; });

// Replicas with different tp, which only a reproducible job may have.
TEST_F(Groups, OfAnyShapeGiveTheSameBitsWhereTheJobIsReproducible) {
  const TestPlacement mixed{"mixed", 4, {group_json(2, 1, kAll), group_json(1, 2, {"three", "one"})}};
  ServeJob placed = swapping(placed_job(mixed));
  placed.more = {"--reproducible"};
  EXPECT_EQ(results_of(placed), expected(mixed, /*reproducible=*/true));
}

TEST_F(Groups, EachPolicyServesThem) {
  const TestPlacement placement = placements().front();
  const std::vector<std::string> wanted = expected(placement);
  for (const char* policy : {"fifo", "balanced", "throughput"}) {
    ServeJob placed = swapping(placed_job(placement));
    placed.more = {"--policy", policy};
    EXPECT_EQ(results_of(placed), wanted) << policy;
  }
}

TEST_F(Groups, EqualOnesByNumber) {
  ServeJob equal = job();
  equal.ranks = 2;
  equal.more = {"--groups", "2"};
  EXPECT_EQ(results_of(equal), expected({"", 2, {}}));
  ASSERT_EQ(last_metrics_.at("groups").size(), 2u);
  EXPECT_EQ(last_metrics_.at("mesh").at("groups"), 2);
  int total = 0;
  for (const nlohmann::json& group : last_metrics_.at("groups")) {
    total += group.at("requests").at("ok").get<int>();
    EXPECT_GT(group.at("requests").at("ok"), 0) << "a group that served nothing";
    EXPECT_EQ(group.at("models").size(), 3u);
  }
  EXPECT_EQ(total, kRequests);
  EXPECT_EQ(last_metrics_.at("groups").at(1).at("first_rank"), 1);
}

// `computron plan` writes what jobs read: groups, the cuts of their models, and predictions, which stand beside what
// the job comes to.
TEST_F(Groups, ServeAsPlanned) {
  std::string models;
  for (const char* id : kIds) {
    models += fmt::format(R"({}{{"id": "{}", "by_layer": [{{"pp": [2], "blocks": [{{"count": 2, "s": 0.01}}]}}]}})",
                          models.empty() ? "" : ", ", id);
  }
  write_lines(folder_ / "profiles.json", {fmt::format(R"({{"models": [{}]}})", models)});
  const JobOutcome planned =
      run_job(1,
              {served_program(), "plan", folder_ / "profiles.json", "--ranks", "4", "--known", "48", "--objective",
               "makespan", "--swap", "off", "--device-memory", "1MiB", "--output", folder_ / "planned.json"},
              folder_ / ".", healthy_limit_s());
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  ServeJob as_planned = job();
  as_planned.ranks = 4;
  as_planned.placement = text_of(folder_ / "planned.json");
  EXPECT_THAT(as_planned.placement, HasSubstr("predicted"));
  EXPECT_EQ(results_of(as_planned), expected({"", 4, {}}));
  ASSERT_EQ(last_metrics_.at("groups").size(), 2u);
  EXPECT_EQ(last_metrics_.at("groups").at(1).at("pp"), 2);
  EXPECT_EQ(last_metrics_.at("predicted"), nlohmann::json::parse(as_planned.placement).at("predicted"));
  EXPECT_EQ(last_metrics_.at("predicted").at("requests"), kRequests);
  write_lines(folder_ / "metrics.json", {last_metrics_.dump()});
  const JobOutcome reported =
      run_job(1, {served_program(), "report", folder_ / "report.html", "--metrics", folder_ / "metrics.json"},
              folder_ / ".", healthy_limit_s());
  ASSERT_EQ(reported.exit_code, 0) << reported.errors;
  EXPECT_THAT(text_of(folder_ / "report.html"), HasSubstr("Predicted and measured"));
  EXPECT_THAT(text_of(folder_ / "report.html"), ::testing::Not(HasSubstr("not those of the prediction")));
}

// Emulated processors change when things happen, and nothing else. A row is 213,000 operations of the model.
TEST_F(Groups, ComputeTheSameOnEmulatedProcessors) {
  const std::vector<std::string> wanted = results_of(job());
  constexpr double kLeastRow_s = 2e5 / 0.5e9;
  for (const TestPlacement& placement : {placements()[0], placements()[2]}) {
    ServeJob slow = swapping(placed_job(placement));
    slow.program = injected_program();
    slow.more = {"--link-gbps", "0.02", "--inject-gflops", "0.5", "--idle", "sleep:200"};
    EXPECT_EQ(results_of(slow), wanted);
    double compute_s = 0, rows = 0;  // of all groups; of a rank with the stages side by side
    for (const nlohmann::json& group : last_metrics_.at("groups")) {
      compute_s += group.at("steps").at("compute_s").get<double>() * group.at("pp").get<double>();
      rows += group.at("tokens").at("prompt").get<double>() + group.at("tokens").at("generated").get<double>() -
              2 * group.at("requests").at("ok").get<double>();  // the last token of a sequence is in no pass
    }
    EXPECT_GE(compute_s, rows * kLeastRow_s) << "passes ended before their time";
  }
}

// Requests that arrive one after the other, and each half of the lines under a placement of its own.
TEST_F(Groups, ServeArrivalsAndShards) {
  std::vector<std::string> lines;
  for (const std::string& line : request_lines()) {
    nlohmann::json request = nlohmann::json::parse(line);
    request["arrival"] = 0.005 * static_cast<double>(lines.size());
    lines.push_back(request.dump());
  }
  write_lines(folder_ / "requests.jsonl", lines);
  const std::vector<std::string> wanted = expected(placements()[0]);
  std::vector<std::string> found;
  for (const int shard : {0, 1}) {
    ServeJob half = swapping(placed_job(placements()[shard == 0 ? 0 : 3]));
    half.more = {"--replay", "--shard", fmt::format("{}/2", shard)};
    for (std::string& line : results_of(half)) found.push_back(std::move(line));
  }
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, wanted);
}

// Every fourth request is late before it can begin; the others have more time than they need.
TEST_F(Groups, LateRequestsAreServedDroppedOrRejected) {
  std::vector<std::string> lines = request_lines();
  for (std::size_t i = 0; i < lines.size(); i += 4) {
    nlohmann::json request = nlohmann::json::parse(lines[i]);
    request["deadline"] = 0;
    lines[i] = request.dump();
  }
  write_lines(folder_ / "requests.jsonl", lines);
  std::vector<std::string> all;
  for (const char* on_late : {"serve", "drop", "reject"}) {
    SCOPED_TRACE(on_late);
    ServeJob equal = job();
    equal.ranks = 2;
    equal.more = {"--groups", "2", "--slo", "10000", "--on-late", on_late};
    const std::vector<std::string> results = results_of(equal);
    if (all.empty()) all = results;
    ASSERT_EQ(results.size(), all.size());
    int late = 0;
    for (const std::string& line : results) {
      const nlohmann::json result = nlohmann::json::parse(line);
      if (!result.at("error").is_null()) {
        ++late;
        EXPECT_EQ(result.at("error").at("code"), "deadline_exceeded");
        EXPECT_EQ(result.at("error").at("line").get<int>() % 4, 0) << line;
      } else {
        EXPECT_TRUE(std::ranges::binary_search(all, line)) << line;
      }
    }
    EXPECT_EQ(late, on_late == std::string("serve") ? 0 : kRequests / 4);
    const nlohmann::json wanted{
        {"total", kRequests}, {"met", kRequests * 3 / 4}, {"unserved", late}, {"attainment", 0.75}};
    EXPECT_EQ(last_metrics_.at("deadlines"), wanted);
  }
}

TEST_F(Groups, ADryRunPlansEach) {
  ServeJob dry = swapping(placed_job(placements()[1]));
  dry.more = {"--dry-run", "--slo", "1e-7"};
  const Served served = serve(dry, folder_);
  EXPECT_EQ(served.job.exit_code, 0) << served.job.errors;
  EXPECT_THAT(served.job.output, HasSubstr("group 0: tp 2 x pp 1 from rank 0\n"));
  EXPECT_THAT(served.job.output, HasSubstr("group 1: tp 1 x pp 1 from rank 2\n"));
  EXPECT_THAT(served.job.output, HasSubstr("19 requests (0 refused)"));
  EXPECT_THAT(served.job.output, HasSubstr("all 2 groups\n55 requests (0 refused)"));
  EXPECT_THAT(served.job.output, ::testing::ContainsRegex("all models +0.0 % of +48 met, 0 not served"));
}

// Jobs that are killed and go on under other placements; in all of them each model has tp 1.
class KilledGroups : public Groups {
 protected:
  KilledGroups() {
    std::vector<std::string> lines;
    for (int copy = 0; copy < 12; ++copy) {
      for (const std::string& line : request_lines()) {
        nlohmann::json request = nlohmann::json::parse(line);
        request["custom_id"] = fmt::format("{}.{}", request["custom_id"].get<std::string>(), copy);
        lines.push_back(request.dump());
      }
    }
    write_lines(folder_ / "requests.jsonl", lines);
  }

  std::uintmax_t written() const {
    std::error_code absent;
    const auto bytes = fs::file_size(output_.string() + ".partial", absent);
    return absent ? 0 : bytes;
  }
  // Kills rank `victim` once there are new results.
  void kill_one(const TestPlacement& placement, int victim, const std::string& policy) {
    ServeJob slow = swapping(placed_job(placement));
    slow.output = output_;
    slow.more = {"--link-gbps", "0.02", "--max-seqs", "1", "--policy", policy};
    const auto before = written();
    RunningServe running(slow, folder_);
    while (running.mpi().running() && written() <= before) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ASSERT_TRUE(running.mpi().running()) << "it ended before it was killed";
    ASSERT_EQ(kill(running.mpi().rank_process(victim), SIGKILL), 0);
    EXPECT_NE(running.finish(failing_limit_s()).job.exit_code, 0);
  }
  void finish_as(const TestPlacement& placement, const std::vector<std::string>& wanted) {
    ServeJob last = placed_job(placement);
    last.output = output_;
    const Served finished = serve(last, folder_);
    EXPECT_EQ(finished.job.exit_code, 0) << finished.job.errors;
    EXPECT_EQ(sorted_lines(output_), wanted);
    EXPECT_GT(finished.metrics.at("requests").at("before"), 0);
  }

  const std::vector<TestPlacement> placements_ = {placements()[0], placements()[2], placements()[3]};
  const fs::path output_ = folder_ / "killed.jsonl";
};

TEST_F(KilledGroups, GoOnUnderAnotherPlacement) {
  const std::vector<std::string> wanted = expected(placements_[0]);
  kill_one(placements_[0], 1, "fifo");
  kill_one(placements_[1], 3, "balanced");
  kill_one(placements_[2], 2, "balanced");
  finish_as(placements_[0], wanted);
}

TEST_F(KilledGroups, DISABLED_FiftyKillsUnderRandomPlacements) {
  const std::vector<std::string> wanted = expected(placements_[0]);
  std::mt19937 random(7);
  const char* policies[] = {"fifo", "balanced", "throughput"};
  for (int i = 0; i < 50; ++i) {
    const TestPlacement& placement = placements_[random() % placements_.size()];
    const int victim = static_cast<int>(random() % static_cast<unsigned>(placement.ranks));
    const char* policy = policies[random() % 3];
    SCOPED_TRACE(fmt::format("kill {} of {}, rank {}, {}", i, placement.name, victim, policy));
    kill_one(placement, victim, policy);
    if (HasFatalFailure()) return;
  }
  finish_as(placements_[1], wanted);
}

// Other sums: the bits would be of two kinds.
TEST_F(Groups, AreNotResumedWithAnotherTp) {
  ServeJob slow = swapping(placed_job(placements()[0]));
  slow.output = folder_ / "tp.jsonl";
  slow.more = {"--link-gbps", "0.02", "--max-seqs", "1"};
  RunningServe running(slow, folder_);
  while (running.mpi().running() && !fs::exists(running.partial_output())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_EQ(kill(running.mpi().rank_process(0), SIGTERM), 0);
  EXPECT_EQ(running.finish(failing_limit_s()).job.exit_code, 75);
  ServeJob other = placed_job(placements()[1]);
  other.output = slow.output;
  const Served refused = serve(other, folder_);
  EXPECT_EQ(refused.job.exit_code, 78);
  EXPECT_THAT(refused.job.errors, HasSubstr("another tp of model one (1, now 2)"));
}

// Rank 0 is of group 0: what group 1 begins must be noted before that computes anything.
TEST_F(Groups, ComputeNothingThatIsNotNoted) {
  ServeJob late = placed_job({"", 2, {group_json(1, 1, {"one"}), group_json(1, 1, {"two", "three"})}});
  late.program = injected_program();
  late.lines = request_lines();
  late.lines.resize(6);
  late.requests.clear();
  late.more = {"--inject-late-notes", "2"};
  const Served served = serve(late, folder_);
  EXPECT_EQ(served.job.exit_code, 0) << served.job.errors;
  for (const char* id : kIds) {
    const nlohmann::json& first = served.metrics.at("models").at(id).at("ttft_s").at("percentiles");
    EXPECT_GE(first.at(0).get<double>(), 2) << id;
  }
}

TEST_F(Groups, DisagreementIsNamedWithRankAndGroup) {
  ServeJob diverging = placed_job(placements()[1]);
  diverging.program = injected_program();
  diverging.more = {"--inject-divergence", "2:3:lengths"};
  const Served served = serve(diverging, folder_);
  EXPECT_EQ(served.job.exit_code, 70);
  EXPECT_THAT(served.job.errors, HasSubstr("rank 2 (group 1) disagrees with rank 0 after step 3: lengths differ"));
}

TEST_F(Groups, AStoppedRankIsNamedWithItsGroup) {
  ServeJob slow = swapping(placed_job(placements()[1]));
  slow.more = {"--link-gbps", "0.005", "--max-seqs", "1", "--watchdog", "0.05"};
  RunningServe running(slow, folder_);
  while (running.mpi().running() &&
         (!fs::exists(running.partial_output()) || fs::file_size(running.partial_output()) == 0)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_EQ(kill(running.mpi().rank_process(2), SIGSTOP), 0);
  const Served served = running.finish(failing_limit_s() + 30);
  EXPECT_EQ(served.job.exit_code, 79);
  EXPECT_THAT(served.job.errors, HasSubstr("rank 2 (group 1) on "));
}

TEST_F(Groups, WhatDoesNotFitIsRefused) {
  const auto refusal = [&](const std::string& placement, int ranks, int code) {
    ServeJob refused = job();
    refused.ranks = ranks;
    refused.placement = placement;
    const Served served = serve(refused, folder_);
    EXPECT_EQ(served.job.exit_code, code) << placement;
    return served.job.errors;
  };
  EXPECT_THAT(refusal(R"({"groups":[{"models":["one","two","three"]}]})", 2, 78),
              HasSubstr("needs 1 ranks, but the job has 2"));
  EXPECT_THAT(refusal(R"({"groups":[{"models":["one","two"]}]})", 1, 78), HasSubstr("'three' is in no group"));
  EXPECT_THAT(refusal(R"({"groups":[{"models":["four"]}]})", 1, 78), HasSubstr("'four', which the job has not"));
  EXPECT_THAT(refusal(R"({"groups":[{"tp":5,"models":["one","two","three"]}]})", 5, 78), HasSubstr("model one"));
  EXPECT_THAT(refusal(R"({"groups":[{"pp":2,"models":["one","two","three"],"layers":{"two":[2,1]}}]})", 2, 78),
              HasSubstr("model two: stages of 2 + 1 layers"));
  EXPECT_THAT(refusal("{", 1, 64), HasSubstr("placement '"));
}

// As the file says, and not as the parameters would have it.
TEST_F(Groups, StagesHaveTheLayersThatThePlacementSays) {
  ServeJob cut = job();
  cut.ranks = 3;
  write_tiny_checkpoint(folder_ / "four.h5",
                        TinyModel{.layers = 4, .heads = 4, .head_dim = 16, .ffn = 256, .vocab = 128, .seed = 51});
  cut.models = {{"four", folder_ / "four.h5"}};
  cut.requests.clear();
  cut.lines = {completion_line("a", "four", {1, 2, 3}, 6)};
  cut.placement = R"({"groups":[{"pp":3,"models":["four"],"layers":{"four":[1,1,2]}}]})";
  cut.output = folder_ / "cut.jsonl";
  const Served served = serve_ok(cut, folder_);
  ServeJob alone = cut;
  alone.ranks = 0;
  alone.placement.clear();
  alone.output = folder_ / "alone.jsonl";
  serve_ok(alone, folder_);
  EXPECT_EQ(sorted_lines(cut.output), sorted_lines(alone.output));
}

}  // namespace
}  // namespace computron::test
