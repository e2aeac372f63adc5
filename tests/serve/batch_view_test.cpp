// What people and programs see of several batches of a job: sums over them.
#include "computron/serve/batch_view.h"

#include <gmock/gmock.h>

#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "tests/requests/requests_support.h"
#include "tests/sched/fake_model.h"

namespace computron {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Two batches: six lines, of which two had their results before, and four.
class TwoBatches : public ::testing::Test {
 protected:
  TwoBatches() {
    RequestReader once(folder_ / "a.jsonl", RequestParser(two_models(), {}), {});
    read(once, [&](const IncomingRequest& request) { history_.note(request.line, request.key); });
    for (const RequestId line : {0, 3}) history_.set_done(line, true);
    for (std::size_t i = 0; i < 2; ++i) {
      readers_[i].emplace(folder_ / (i == 0 ? "a.jsonl" : "b.jsonl"), RequestParser(two_models(), {}), ReaderLimits{},
                          i == 0 ? &history_ : nullptr);
      counts_[i].reader = &*readers_[i];
    }
    counts_[0].done_before = 2;
    counts_[1].done_before = 1;
    counts_[0].queues = {{1, 2}, {0, 1}};
    counts_[1].queues = {{4, 0}, {0, 3}};
  }
  static std::string lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += R"({"custom_id":"r)" + std::to_string(i) +
              R"(","method":"POST","url":"/v1/completions","body":{"model":"opt-a","prompt":[4]}})" + "\n";
    }
    return text;
  }
  template <class Visit>
  static void read(RequestReader& reader, Visit&& visit) {
    while (!reader.finished()) {
      if (const auto request = reader.poll()) visit(*request);
    }
  }
  void read_all() {
    for (auto& reader : readers_) read(*reader, [](const IncomingRequest&) {});
  }
  void make_view(bool progress_line = false) {
    view_.emplace(std::vector<const BatchCounts*>{&counts_[0], &counts_[1]}, metrics_,
                  std::vector<std::string>{"opt-a", "opt-b"}, /*start_s=*/0,
                  ViewOptions{.progress_line = progress_line,
                              .status_file = folder_ / "status",
                              .progress_file = folder_ / "progress",
                              .done_before = 5});
  }
  void generate(std::size_t tokens) {
    Report report;
    report.rows.resize(tokens);
    view_->step_done({report});
  }
  // What was given is written when the view goes.
  std::string last_status() {
    view_.reset();
    return read_file(folder_ / "status");
  }
  nlohmann::json last_progress() {
    view_.reset();
    return nlohmann::json::parse(read_file(folder_ / "progress"));
  }
  void wait_for_status(const std::string& text) const {
    for (int i = 0; i < 5000 && read_file(folder_ / "status").find(text) == std::string::npos; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const TemporaryFolder folder_;
  const std::string a_ = folder_.write("a.jsonl", lines(6)), b_ = folder_.write("b.jsonl", lines(4));
  LineHistory history_;
  std::optional<RequestReader> readers_[2];
  BatchCounts counts_[2];
  Metrics metrics_{{"opt-a", "opt-b"}};
  std::optional<BatchView> view_;
};

TEST_F(TwoBatches, AreCountedTogether) {
  make_view();
  read_all();
  view_->show({}, 0);
  EXPECT_FALSE(metrics_.queues().due(0));
  generate(60);
  metrics_.add(std::vector<Completion>(1));
  metrics_.add_failure();
  view_->end("finished", 20);
  const std::string status = last_status();
  EXPECT_THAT(status, HasSubstr("computron: finished after 0:20: 2/8 requests done, 1 of them failed\n"));
  EXPECT_THAT(status, ContainsRegex("opt-a +5 +2 +1 "));
  EXPECT_THAT(status, ContainsRegex("opt-b +0 +4 +0 "));
  const nlohmann::json progress = last_progress();
  EXPECT_EQ(progress["total"], 8 + 2 + 1 + 5);
  EXPECT_EQ(progress["done"], 2 + 2 + 1 + 5);
  EXPECT_EQ(progress["failed"], 1);
  EXPECT_EQ(progress["tokens_per_s"], 3);
}

// Before they are read again.
TEST_F(TwoBatches, TheTotalHasTheLinesOfEarlierAttemptsFromTheStart) {
  counts_[0].known_before = 60;
  counts_[1].known_before = 40;
  make_view();
  view_->show({}, 0);
  EXPECT_EQ(last_progress()["total"], 60 + 40 + 5);
}

TEST_F(TwoBatches, AreKnownWhenBothHaveBeenRead) {
  make_view();
  read(*readers_[1], [](const IncomingRequest&) {});
  view_->show({}, 1);
  EXPECT_THAT(last_status(), ContainsRegex("0:01: 0/[0-9]+[+] requests done"));
}

// Of the last ten seconds or so.
TEST_F(TwoBatches, RatesAreLately) {
  make_view();
  read_all();
  view_->show({}, 0);
  generate(600);
  for (int now = 1; now <= 30; ++now) view_->show({}, now);
  EXPECT_EQ(last_progress()["tokens_per_s"], 0);
}

TEST_F(TwoBatches, AreSaidWithWhatEachGroupRuns) {
  const test::FakeModelList model_list({test::small_model(3), test::small_model(2)});
  std::deque<Scheduler> schedulers;
  std::vector<DispatchGroup> groups;
  for (int group = 0; group < 2; ++group) {
    schedulers.emplace_back(model_list.shapes(), model_list.names(), make_policy("balanced"),
                            SchedulerOptions{.frames = 20});
    groups.push_back({&schedulers.back(), {0, 1}});
  }
  Dispatcher dispatcher(groups, 2);
  dispatcher.submit(test::make_request(0, 0, 4, 4));
  while (const auto group = dispatcher.due(0)) dispatcher.next(*group, 0);
  testing::internal::CaptureStderr();
  make_view(/*progress_line=*/true);
  read_all();
  counts_[0].generated_tokens = 40;
  counts_[1].generated_tokens = 20;
  const std::vector<GroupActivity> activity{{.running = 0, .swapping = true}, {.running = 1}};
  view_->show({.groups = activity, .dispatcher = &dispatcher}, 6);
  wait_for_status("0:06");
  const std::string status = read_file(folder_ / "status");
  EXPECT_THAT(status, ContainsRegex("0 +1  runs opt-a, swapping\n"));
  EXPECT_THAT(status, ContainsRegex("1 +0  runs opt-b\n"));
  view_->end("stopped", 7);
  EXPECT_THAT(last_status(), ContainsRegex("opt-a .* 100 %")) << "as of the last activity";
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_THAT(line, HasSubstr("requests 0/8, 10.0 tokens/s, opt-a, opt-b, swapping\n"));
}

// A launcher hands a signal to every rank: what follows at once is the same request.
TEST_F(TwoBatches, ArePrintedOnRequestOnce) {
  testing::internal::CaptureStderr();
  make_view();
  read_all();
  view_->show({}, 1);
  wait_for_status("0:01: 0/8");
  metrics_.add_failure();
  view_->show({.status_requests = 1}, 1.5);
  wait_for_status("0:01: 1/8");
  view_->show({.status_requests = 2}, 1.9);
  view_->show({.status_requests = 2}, 2);
  wait_for_status("0:02: 1/8");
  metrics_.add_failure();
  view_->show({.status_requests = 3}, 2.5);
  wait_for_status("0:02: 2/8");
  view_.reset();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, ContainsRegex("0:01: 1/8 requests done.*0:02: 2/8 requests done"));
  std::size_t times = 0;
  for (std::size_t at = 0; (at = said.find("requests done", at)) != std::string::npos; ++at) ++times;
  EXPECT_EQ(times, 2u);
}

}  // namespace
}  // namespace computron
