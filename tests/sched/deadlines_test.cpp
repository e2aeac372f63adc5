// Requests that have a deadline, where late ones are dropped; scheduler_random_test.cpp has random ones.
#include "computron/sched/deadlines.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/sched/driver.h"

namespace computron::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Request part_of(RequestId line, std::uint32_t part, double arrival_s, double deadline_s) {
  Request request = make_request(line, 0, 3 + static_cast<int>(line % 5), 2, arrival_s);
  request.part = part;
  request.deadline_s = deadline_s;
  request.ignore_eos = true;
  return request;
}

std::vector<std::pair<RequestId, std::uint32_t>> names_of(const std::vector<Request>& requests) {
  std::vector<std::pair<RequestId, std::uint32_t>> names;
  for (const Request& request : requests) names.emplace_back(request.id, request.part);
  std::sort(names.begin(), names.end());
  return names;
}

// --- The queue --------------------------------------------------------------------------------------------------

// A queue beside a sorted list of the same requests, which looks at all of them each time.
class QueueAndList {
 public:
  explicit QueueAndList(std::uint64_t seed) : random_(seed) {}

  void push_line(RequestId line) {
    const double arrival_s = random_() % 3 == 0 ? now_s_ - 0.5 : now_s_;
    const double deadline_s = random_() % 3 == 0 ? kNoDeadline : 0.25 * static_cast<double>(random_() % 20);
    for (std::uint32_t part = 0; part < 1 + random_() % 3; ++part) {
      list_.push_back(part_of(line, part, arrival_s, deadline_s));
      queue_.push(list_.back());
    }
    std::sort(list_.begin(), list_.end(), arrives_earlier);
  }
  void pop() {
    if (list_.empty()) return;
    const Request popped = queue_.pop();
    ASSERT_EQ(names_of({popped}), names_of({list_.front()}));
    list_.erase(list_.begin());
  }
  void take_youngest() {
    for (const Request& taken : queue_.take_youngest(random_() % 5)) {
      ASSERT_EQ(std::erase_if(list_, [&](const Request& r) { return names_of({r}) == names_of({taken}); }), 1u);
    }
  }
  void take_late(double now_s) {
    now_s_ = now_s;
    std::map<RequestId, bool> late;  // lines of which nothing is gone
    for (const Request& request : list_) late[request.id] |= request.part == 0 && request.due_s() < now_s;
    std::vector<Request> expected;
    std::ranges::copy_if(list_, std::back_inserter(expected), [&](const Request& r) { return late[r.id]; });
    std::erase_if(list_, [&](const Request& request) { return late[request.id]; });
    const std::vector<Request> taken = queue_.take_late(now_s);
    ASSERT_EQ(names_of(taken), names_of(expected));
    for (const Request& request : taken) ASSERT_FALSE(request.prompt.empty());
    taken_ += taken.size();
  }
  void expect_same() const {
    ASSERT_EQ(queue_.size(), list_.size());
    ASSERT_EQ(queue_.empty(), list_.empty());
    std::size_t bytes = 0, prompt_tokens = 0;
    double first_due_s = kNoDeadline;
    for (const Request& request : list_) {
      bytes += request.bytes();
      prompt_tokens += request.prompt.size();
      if (request.part == 0) first_due_s = std::min(first_due_s, request.due_s());
    }
    ASSERT_EQ(queue_.bytes(), bytes);
    ASSERT_EQ(queue_.backlog().prompt_tokens, prompt_tokens);
    ASSERT_EQ(queue_.first_due_s(), first_due_s);
    if (list_.empty()) return;
    ASSERT_EQ(names_of({queue_.front()}), names_of({list_.front()}));
  }
  std::size_t taken() const { return taken_; }

 private:
  std::mt19937_64 random_;
  WaitingQueue queue_{kBlockTokens, /*watches_deadlines=*/true};
  std::vector<Request> list_;
  double now_s_ = 0;
  std::size_t taken_ = 0;
};

TEST(WaitingQueueDeadlines, LateLinesLeaveItFromAnywhere) {
  std::size_t taken = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    QueueAndList both(seed);
    std::mt19937_64 random(seed + 1000);
    for (int i = 0; i < 300 && !::testing::Test::HasFatalFailure(); ++i) {
      const auto what = random() % 8;
      if (what < 4) both.push_line(static_cast<RequestId>(i));
      if (what == 4) both.take_youngest();
      if (what > 4 && what < 7) both.pop();
      if (what == 7) both.take_late(0.05 * i);
      both.expect_same();
    }
    taken += both.taken();
  }
  EXPECT_GT(taken, 2000u);
}

TEST(WaitingQueueDeadlines, NobodyIsLateWhereNobodyWatches) {
  WaitingQueue queue(kBlockTokens);
  queue.push(part_of(1, 0, 0, 0));
  EXPECT_EQ(queue.first_due_s(), kNoDeadline);
  EXPECT_THAT(queue.take_late(100), IsEmpty());
}

// --- The scheduler ----------------------------------------------------------------------------------------------

constexpr SchedulerOptions kOneAtATime{
    .frames = 100, .max_batch_tokens = 1000, .max_seqs = 1, .steps_in_flight = 1, .on_late = OnLate::kDrop};

class DropUnder : public ::testing::TestWithParam<const char*> {};

TEST_P(DropUnder, ARequestThatHasNotBegunByItsDeadlineEndsThen) {
  const FakeModelList model_list({small_model(3), small_model(2)});
  Driver driver(model_list, kOneAtATime, GetParam());
  for (RequestId id = 0; id < 6; ++id) {
    Request request = make_request(id, id < 3 ? 0 : 1, 5, 40);
    request.ignore_eos = true;
    if (id % 3 == 1) request.deadline_s = 0.001;  // none of the second and fifth begins at once
    driver.submit(request);
  }
  ASSERT_EQ(driver.run(), "");
  for (const RequestId id : {0, 2, 3, 5}) EXPECT_EQ(driver.completion(id).error_code, "") << id;
  for (const RequestId id : {1, 4}) {
    EXPECT_EQ(driver.completion(id).error_code, "deadline_exceeded");
    EXPECT_THAT(driver.completion(id).error_message, HasSubstr("its deadline of 0.001 s had passed"));
    EXPECT_LT(driver.completion(id).finished_s, driver.completion(id < 3 ? 2 : 5).finished_s);
  }
}

TEST_P(DropUnder, OneThatHasBegunIsServedToItsEnd) {
  const FakeModelList model_list({small_model(3)});
  Driver driver(model_list, kOneAtATime, GetParam());
  Request request = make_request(0, 0, 5, 40);
  request.deadline_s = 0;  // passes as it begins
  request.ignore_eos = true;
  driver.submit(request);
  ASSERT_EQ(driver.run(), "");
  EXPECT_EQ(driver.completion(0).error_code, "");
  EXPECT_EQ(driver.completion(0).generated_tokens, 40);
  EXPECT_FALSE(met_deadline(driver.completion(0)));
}

INSTANTIATE_TEST_SUITE_P(Policies, DropUnder, ::testing::Values("fifo", "balanced", "throughput"),
                         [](const auto& policy) { return std::string(policy.param); });

// Runs passes as they are planned, each of which takes a second, until nothing can be planned.
std::vector<Completion> run_by_hand(Scheduler& scheduler, double begin_s) {
  std::vector<Completion> completions;
  for (double now_s = begin_s;; now_s += 1) {
    Decision decision = scheduler.next(now_s);
    if (const auto* planned = std::get_if<PlannedStep>(&decision)) {
      const std::vector<SampledRow> rows(static_cast<std::size_t>(planned->step.logit_rows()),
                                         SampledRow{.token = 7, .finite = true, .top = {}});
      scheduler.completed(planned->step.id, {rows, {}}, now_s + 1);
    }
    for (Completion& completion : scheduler.take_completions()) completions.push_back(std::move(completion));
    if (!std::holds_alternative<PlannedStep>(decision)) return completions;
  }
}

std::vector<std::tuple<RequestId, std::uint32_t, bool>> ends_of(const std::vector<Completion>& completions) {
  std::vector<std::tuple<RequestId, std::uint32_t, bool>> ends;
  for (const Completion& c : completions) ends.emplace_back(c.id, c.part, c.error_code == "deadline_exceeded");
  std::sort(ends.begin(), ends.end());
  return ends;
}

// The parts of the first line take two seconds each; those of the second wait for all of them.
TEST(DropOfLines, ALineOfWhichAPartHasBegunIsServedAndAnyOtherIsDroppedAsAWhole) {
  const FakeModelList model_list({small_model(3)});
  Scheduler scheduler(model_list.shapes(), model_list.names(), make_policy("fifo"), kOneAtATime);
  for (const RequestId line : {1, 2}) {
    for (std::uint32_t part = 0; part < 3; ++part) scheduler.submit(part_of(line, part, 0, 1.5));
  }
  scheduler.submit(part_of(3, 0, 0, kNoDeadline));
  const double quote_s = scheduler.quote_s(0, part_of(4, 0, 0, kNoDeadline), 0);
  scheduler.close_input();
  const std::vector<Completion> completions = run_by_hand(scheduler, 0);
  using End = std::tuple<RequestId, std::uint32_t, bool>;
  EXPECT_THAT(ends_of(completions), ElementsAre(End{1, 0, false}, End{1, 1, false}, End{1, 2, false}, End{2, 0, true},
                                                End{2, 1, true}, End{2, 2, true}, End{3, 0, false}));
  EXPECT_EQ(scheduler.open().count(), 0u);
  EXPECT_EQ(scheduler.waiting(), 0u);
  EXPECT_EQ(scheduler.held().waiting_bytes, 0u);
  EXPECT_LT(scheduler.quote_s(0, part_of(4, 0, 0, kNoDeadline), 20), quote_s);
}

// What is late in the last decision of all ends all the same.
TEST(DropOfLines, ASchedulerOfWhichAllRequestsAreLateIsDone) {
  const FakeModelList model_list({small_model(3)});
  Scheduler scheduler(model_list.shapes(), model_list.names(), make_policy("balanced"), kOneAtATime);
  for (RequestId line = 0; line < 5; ++line) scheduler.submit(part_of(line, 0, 1, 1));
  scheduler.close_input();
  EXPECT_TRUE(std::holds_alternative<AllDone>(scheduler.next(2.5)));
  const std::vector<Completion> completions = scheduler.take_completions();
  ASSERT_EQ(completions.size(), 5u);
  EXPECT_EQ(completions[0].finished_s, 2.5);
  EXPECT_EQ(completions[0].due_s, 2);
}

// --- Counting ---------------------------------------------------------------------------------------------------

TEST(DeadlineCount, ALineHasMetItsDeadlineIfAllItsPartsHave) {
  const auto part = [](double finished_s, const char* error = "") {
    Completion completion;
    completion.due_s = 3;
    completion.finished_s = finished_s;
    completion.error_code = error;
    return completion;
  };
  DeadlineCount count;
  count.add(std::vector{part(2), part(3)});
  EXPECT_EQ(count.met, 1u);
  count.add(std::vector{part(2), part(3.5)});
  count.add(std::vector{part(2), part(2, "numerical_error")});
  EXPECT_EQ(count.met, 1u);
  EXPECT_EQ(count.unserved, 0u);
  count.add(std::vector{part(3.5, "deadline_exceeded"), part(3.5, "deadline_exceeded")});
  EXPECT_EQ(count.unserved, 1u);
  EXPECT_EQ(count.total, 4u);
  Completion without = part(1e9);
  without.due_s = kNoDeadline;
  count.add(std::vector{without});
  EXPECT_EQ(count.total, 4u) << "it had no deadline";
}

}  // namespace
}  // namespace computron::test
