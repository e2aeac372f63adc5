#include "computron/dispatch/dispatcher.h"

#include <gmock/gmock.h>

#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// Groups of one rank, driven by hand: a step is reported when the test says so.
class Groups {
 public:
  struct Options {
    int models = 1;
    int pages = 4;            // of each
    int frames = 64;          // of each group's pool
    int frames_of_first = 0;  // of the first group's, if not that
    int max_seqs = 8;
    std::size_t max_waiting = 1 << 16;
    std::string policy = "balanced";
    double link_bytes_per_s = 1e9;
    OnLate on_late = OnLate::kServe;
  };

  // `placement[group]`: the job's numbers of the models that it holds.
  Groups(const Options& options, const std::vector<std::vector<ModelId>>& placement)
      : list_(std::vector<FakeModel>(static_cast<std::size_t>(options.models), small_model(options.pages))) {
    SchedulerOptions scheduler_options{.frames = options.frames,
                                       .max_seqs = options.max_seqs,
                                       .max_waiting = options.max_waiting,
                                       .on_late = options.on_late,
                                       .costs = {.link_bytes_per_s = options.link_bytes_per_s, .step_s = 1e-3}};
    std::vector<DispatchGroup> groups;
    for (const std::vector<ModelId>& models : placement) {
      std::vector<ModelShape> shapes;
      std::vector<std::string> names;
      for (const ModelId model : models) {
        shapes.push_back(list_.shape(model));
        names.push_back(list_.names()[model]);
      }
      const bool smaller = schedulers_.empty() && options.frames_of_first > 0;
      scheduler_options.frames = smaller ? options.frames_of_first : options.frames;
      schedulers_.push_back(std::make_unique<Scheduler>(shapes, names, make_policy(options.policy), scheduler_options));
      groups.push_back({schedulers_.back().get(), models});
      models_in_.push_back(models.size());
    }
    in_flight_.resize(placement.size());
    dispatcher_ = std::make_unique<Dispatcher>(std::move(groups), static_cast<std::size_t>(options.models));
  }

  Dispatcher* operator->() { return dispatcher_.get(); }

  // Asks every group that is due, until none is. Returns the groups in the order in which they planned a step.
  std::vector<std::size_t> decide(double now_s) {
    std::vector<std::size_t> planned_by;
    while (const auto group = dispatcher_->due(now_s)) {
      if (decide_of(*group, now_s)) planned_by.push_back(*group);
    }
    return planned_by;
  }
  // One decision. Whether the group planned a step.
  bool decide_of(std::size_t group, double now_s) {
    const std::size_t open = schedulers_[group]->open().count();
    Decision decision = dispatcher_->next(group, now_s);
    stolen_ += schedulers_[group]->open().count() - open;
    auto* planned = std::get_if<PlannedStep>(&decision);
    if (planned == nullptr) return false;
    for (const RequestId id : planned->begun) begun_in_.emplace_back(id, group);
    in_flight_[group].push_back(std::move(planned->step));
    return true;
  }
  // The group's oldest step is over.
  void report(std::size_t group, double now_s) {
    const Step step = take_front(in_flight_[group]);
    const std::vector<SampledRow> rows = rows_of(step);
    dispatcher_->completed(group, step.id, {rows, {}}, now_s);
  }
  // All steps that are in flight, and those planned behind them, until nothing is.
  void finish(double now_s) {
    decide(now_s);
    for (bool any = true; any;) {
      any = false;
      for (std::size_t group = 0; group < in_flight_.size(); ++group) {
        if (in_flight_[group].empty()) continue;
        any = true;
        report(group, now_s);
      }
      decide(now_s);
    }
  }
  // Before anything is dispatched: every model is resident in every group that holds it,
  void make_resident() {
    for (std::size_t group = 0; group < schedulers_.size(); ++group) make_resident(group);
  }
  // or in this one,
  void make_resident(std::size_t group) {
    for (ModelId model = 0; model < schedulers_[group]->costs().models(); ++model) make_resident(group, model);
  }
  // or that of its models there.
  void make_resident(std::size_t group, ModelId model) {
    Scheduler& scheduler = *schedulers_[group];
    scheduler.submit(make_request(0, model, 4, 1));
    while (scheduler.has_work(0)) {
      const Step step = std::get<PlannedStep>(scheduler.next(0)).step;
      const std::vector<SampledRow> rows = rows_of(step);
      scheduler.completed(step.id, {rows, {}}, 0);
    }
    scheduler.take_completions();
  }
  std::size_t in_flight(std::size_t group) const { return in_flight_[group].size(); }
  // [group] requests that it was given and that are not done.
  std::vector<std::size_t> open() const {
    std::vector<std::size_t> open;
    for (const auto& scheduler : schedulers_) open.push_back(scheduler->open().count());
    return open;
  }
  // Requests that groups had from others when they decided.
  std::size_t stolen() const { return stolen_; }
  // Of the requests that have begun so far: which, and where.
  const std::vector<std::pair<RequestId, std::size_t>>& begun_in() const { return begun_in_; }

 private:
  static Step take_front(std::deque<Step>& steps) {
    Step step = std::move(steps.front());
    steps.pop_front();
    return step;
  }
  static std::vector<SampledRow> rows_of(const Step& step) {
    SampledRow row;
    row.finite = true;
    return std::vector<SampledRow>(static_cast<std::size_t>(step.logit_rows()), row);
  }

  FakeModelList list_;
  std::vector<std::unique_ptr<Scheduler>> schedulers_;
  std::vector<std::size_t> models_in_;  // [group]
  std::vector<std::deque<Step>> in_flight_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::vector<std::pair<RequestId, std::size_t>> begun_in_;
  std::size_t stolen_ = 0;
};

std::vector<RequestId> ids_of(const std::vector<Completion>& completions) {
  std::vector<RequestId> ids;
  for (const Completion& completion : completions) ids.push_back(completion.id);
  return ids;
}

TEST(Dispatcher, CompletionsBearTheJobsNumbersOfModels) {
  Groups groups({.models = 3}, {{2}, {1, 0}});
  for (const ModelId model : {0, 1, 2}) groups->submit(make_request(model, model, 4, 1));
  groups->close_input();
  groups.finish(1);
  std::vector<Completion> completions = groups->take_completions();
  ASSERT_EQ(completions.size(), 3u);
  for (const Completion& completion : completions) EXPECT_EQ(completion.id, completion.model);
  EXPECT_EQ(groups->job_model(1, 0), 1u);
  EXPECT_TRUE(groups->all_done());
}

TEST(Dispatcher, GroupsThatAreDueTakeTurnsOneDecisionEach) {
  Groups groups({.models = 1}, {{0}, {0}, {0}});
  for (std::size_t group = 0; group < 3; ++group) {
    ASSERT_EQ(groups->due(0), group);
    ASSERT_TRUE(std::holds_alternative<WaitUntil>(groups->next(group, 0)));
  }
  EXPECT_EQ(groups->due(0), std::nullopt);
  EXPECT_EQ(groups->due_s(), std::numeric_limits<double>::infinity());
  for (RequestId id = 0; id < 3; ++id) groups->submit(make_request(id, 0, 4, 1));
  EXPECT_THAT(groups.decide(0), ElementsAre(0, 1, 2));
  EXPECT_EQ(groups->due(0), std::nullopt);
  groups.report(1, 0.5);
  EXPECT_EQ(groups->due(0.5), 1u) << "a report has come for it, and for no other";
}

TEST(Dispatcher, ARequestIsGivenToAGroupWhenItArrives) {
  Groups groups({.models = 1}, {{0}, {0}});
  groups->submit(make_request(0, 0, 4, 1, /*arrival_s=*/2));
  groups->submit(make_request(1, 0, 4, 1, /*arrival_s=*/1));
  groups->close_input();
  EXPECT_THAT(groups.decide(0), IsEmpty());
  EXPECT_EQ(groups->due_s(), 1);
  EXPECT_EQ(groups->waiting(), 2u);
  EXPECT_GT(groups->waiting_bytes(), 0u);
  EXPECT_FALSE(groups->has_work(0.5));
  EXPECT_TRUE(groups->has_work(1));
  EXPECT_FALSE(groups->all_done());
  groups.finish(1);
  EXPECT_THAT(ids_of(groups->take_completions()), ElementsAre(1));
  EXPECT_FALSE(groups->all_done()) << "one is still to come";
  EXPECT_EQ(groups->due_s(), 2);
  groups.finish(2);
  EXPECT_THAT(ids_of(groups->take_completions()), ElementsAre(0));
  EXPECT_EQ(groups->waiting(), 0u);
  EXPECT_EQ(groups->waiting_bytes(), 0u);
  EXPECT_TRUE(groups->all_done());
}

TEST(Dispatcher, AGroupIsDoneWhileOthersWork) {
  Groups groups({.models = 2}, {{0}, {1}});
  groups->submit(make_request(0, 0, 4, 1));
  groups->submit(make_request(1, 1, 4, 2));
  groups->close_input();
  groups.decide(0);
  groups.report(0, 1);
  ASSERT_EQ(groups->due(1), 0u);
  EXPECT_TRUE(std::holds_alternative<AllDone>(groups->next(0, 1)));
  EXPECT_EQ(groups->due(1), std::nullopt) << "nothing more is to be had of it";
  EXPECT_FALSE(groups->all_done());
  groups.report(1, 1);
  groups.finish(2);
  EXPECT_TRUE(groups->all_done());
}

// A line that brought the job down runs alone behind all others: the input has ended, and is closed only then.
TEST(Dispatcher, ARequestHeldBackComesBehindTheEndOfTheInput) {
  for (const char* policy : {"balanced", "fifo", "throughput"}) {
    Groups groups({.models = 1, .policy = policy}, {{0}, {0}});
    groups->submit(make_request(0, 0, 4, 1));
    groups->note_input_end();
    groups.finish(1);
    ASSERT_THAT(ids_of(groups->take_completions()), ElementsAre(0)) << policy;
    EXPECT_FALSE(groups->all_done());
    groups->submit(make_request(1, 0, 4, 1));
    groups.finish(2);
    ASSERT_THAT(ids_of(groups->take_completions()), ElementsAre(1)) << policy;
    groups->close_input();
    groups.finish(3);
    EXPECT_TRUE(groups->all_done()) << policy;
  }
}

TEST(Dispatcher, RefusedRequestsCompleteToo) {
  Groups groups({.models = 1, .frames = 6}, {{0}, {0}});
  groups->submit(make_request(0, 0, 4000, 1));
  groups->close_input();
  groups.finish(0);
  const std::vector<Completion> completions = groups->take_completions();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].error_code, "context_length_exceeded");
  EXPECT_FALSE(groups->has_work(0));
}

// --- The choice of a group --------------------------------------------------------------------------------------

TEST(Dispatcher, PartsOfALineGoToOneGroup) {
  Groups groups({.models = 1}, {{0}, {0}, {0}});
  for (RequestId line = 0; line < 3; ++line) {
    for (std::uint32_t part = 0; part < 3; ++part) {
      Request request = make_request(line, 0, 4, 1, /*arrival_s=*/line == 2 ? 0.5 : 0);
      request.part = part;
      groups->submit(std::move(request));
    }
  }
  groups.decide(0.5);
  const auto& begun = groups.begun_in();
  ASSERT_EQ(begun.size(), 9u);
  for (const auto& [line, group] : begun) EXPECT_EQ(group, line);
}

// However many lines are given out in one go, it ends between two of them.
TEST(Dispatcher, ABurstOfLinesIsGivenOutWhole) {
  Groups groups({.models = 1}, {{0}, {0}, {0}});
  for (RequestId line = 0; line < 40; ++line) {
    for (std::uint32_t part = 0; part < 3; ++part) {
      Request request = make_request(line, 0, 4, 1, /*arrival_s=*/0.5);
      request.part = part;
      groups->submit(std::move(request));
    }
  }
  for (int call = 0; call < 6; ++call) {
    groups->due(0.5);
    std::size_t given = 0;
    for (std::size_t group = 0; group < 3; ++group) given += groups->scheduler(group).open().count();
    EXPECT_EQ(given % 3, 0u) << "a line is cut after call " << call;
  }
}

// AlpaServe's rule: the group with the fewest requests that are not done, of those that hold the model.
std::size_t shortest_queue(const std::vector<std::vector<ModelId>>& placement, const std::vector<std::size_t>& open,
                           ModelId model) {
  std::size_t best = placement.size();
  for (std::size_t group = 0; group < placement.size(); ++group) {
    const std::vector<ModelId>& models = placement[group];
    if (std::find(models.begin(), models.end(), model) == models.end()) continue;
    if (best == placement.size() || open[group] < open[best]) best = group;
  }
  return best;
}

// Equal models that are all resident, one request at a time in a group: whatever arrives and ends when.
TEST(Dispatcher, WithEverythingResidentAndEqualItIsTheShortestQueue) {
  const std::vector<std::vector<ModelId>> placement{{0, 1}, {1, 2}, {0, 1, 2}, {2, 0}};
  std::size_t busy = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    Groups groups({.models = 3, .max_seqs = 1}, placement);
    groups.make_resident();
    std::mt19937 random(seed);
    for (RequestId id = 100; id < 400; ++id) {
      const double now_s = 10;  // passes in flight have just begun
      for (int events = static_cast<int>(random() % 3); events > 0; --events) {
        const std::size_t group = random() % placement.size();
        if (groups.in_flight(group) == 0) continue;
        groups.report(group, now_s);
        groups.decide(now_s);
      }
      const auto model = static_cast<ModelId>(random() % 3);
      std::vector<std::size_t> open = groups.open();
      const std::size_t expected = shortest_queue(placement, open, model);
      busy += open[expected] > 0;
      ++open[expected];
      groups->submit(make_request(id, model, 4, 1, now_s));
      groups->due(now_s);
      ASSERT_EQ(groups.open(), open) << "request " << id << ", seed " << seed;
      groups.decide(now_s);
    }
    groups->close_input();
    groups.finish(1000);
    ASSERT_TRUE(groups->all_done());
    EXPECT_EQ(groups->take_completions().size(), 300u);
  }
  EXPECT_GT(busy, 1000u);
}

// --- Late requests ----------------------------------------------------------------------------------------------

Request with_deadline(Request request, double deadline_s) {
  request.deadline_s = deadline_s;
  return request;
}

std::vector<RequestId> rejected_among(const std::vector<Completion>& completions) {
  std::vector<RequestId> ids;
  for (const Completion& completion : completions) {
    if (completion.error_code == "deadline_exceeded") ids.push_back(completion.id);
  }
  return ids;
}

// One request at a time of one model: the queue is all that makes anybody late.
Groups one_group(const std::string& policy, OnLate on_late) {
  Groups groups({.models = 1, .max_seqs = 1, .policy = policy, .on_late = on_late}, {{0}});
  if (policy != "throughput") groups.make_resident();  // that one would wait for the end of the input
  return groups;
}
double alone_s(Groups& groups) { return groups->scheduler(0).quote_s(0, make_request(0, 0, 4, 5), 0); }

class DispatcherRejecting : public ::testing::TestWithParam<const char*> {
 protected:
  Groups one_group(OnLate on_late = OnLate::kReject) const { return test::one_group(GetParam(), on_late); }
};

TEST_P(DispatcherRejecting, EndsARequestThatWouldBeLateInsteadOfGivingItToAGroup) {
  Groups groups = one_group();
  const double alone_s = test::alone_s(groups);
  groups->submit(with_deadline(make_request(1, 0, 4, 5), 1.01 * alone_s));
  groups->submit(with_deadline(make_request(2, 0, 4, 5), 1.01 * alone_s));
  groups->submit(make_request(3, 0, 4, 5));
  groups->submit(with_deadline(make_request(4, 0, 4, 5), 100 * alone_s));
  groups->close_input();
  groups.finish(0);
  const std::vector<Completion> completions = groups->take_completions();
  EXPECT_EQ(completions.size(), 4u);
  EXPECT_THAT(rejected_among(completions), ElementsAre(2));
  EXPECT_TRUE(groups->all_done());
  for (const auto& [id, group] : groups.begun_in()) EXPECT_NE(id, 2u);
}

TEST_P(DispatcherRejecting, NobodyIsRejectedWhereThatIsNotWanted) {
  for (const OnLate on_late : {OnLate::kServe, OnLate::kDrop}) {
    Groups groups = one_group(on_late);
    for (RequestId id = 1; id < 5; ++id) groups->submit(with_deadline(make_request(id, 0, 4, 5), 1e-6));
    groups->close_input();
    groups.finish(0);
    EXPECT_THAT(rejected_among(groups->take_completions()), IsEmpty());
    EXPECT_TRUE(groups->all_done());
  }
}

TEST_P(DispatcherRejecting, ALineFaresAsItsFirstPart) {
  Groups groups = one_group();
  const double alone_s = test::alone_s(groups);
  for (const RequestId line : {1, 2}) {
    for (std::uint32_t part = 0; part < 3; ++part) {
      Request request = with_deadline(make_request(line, 0, 4, 5), 1.01 * alone_s);
      request.part = part;
      groups->submit(std::move(request));
    }
  }
  groups->close_input();
  groups.finish(0);
  const std::vector<Completion> completions = groups->take_completions();
  EXPECT_EQ(completions.size(), 6u);
  EXPECT_THAT(rejected_among(completions), ElementsAre(2, 2, 2));
}

TEST_P(DispatcherRejecting, WhatCanNeverBeServedHasAnErrorOfItsOwnAndWhatNeedsNoPassHasNone) {
  Groups groups = one_group();
  Request echo = with_deadline(make_request(2, 0, 4, 0), 0);
  echo.echo = true;
  groups->submit(with_deadline(make_request(1, 0, 40000, 5), 0));
  groups->submit(std::move(echo));
  groups->close_input();
  groups.finish(0);
  const std::vector<Completion> completions = groups->take_completions();
  ASSERT_EQ(completions.size(), 2u);
  for (const Completion& completion : completions) {
    EXPECT_EQ(completion.error_code, completion.id == 1 ? "context_length_exceeded" : "");
  }
}

// Predictions are learned from passes. Where one is wrong, rejecting everybody would leave it wrong.
TEST_P(DispatcherRejecting, AGroupWithNothingToDoServesOneThatIsPredictedToBeLate) {
  Groups groups = one_group();
  const double alone_s = test::alone_s(groups);
  for (const RequestId id : {1, 2}) groups->submit(with_deadline(make_request(id, 0, 4, 5), 0.5 * alone_s));
  groups->submit(with_deadline(make_request(3, 0, 4, 5), 0));
  groups->close_input();
  groups.finish(0);
  EXPECT_THAT(rejected_among(groups->take_completions()), ElementsAre(2, 3));
  EXPECT_TRUE(groups->all_done());
}

TEST_P(DispatcherRejecting, TheFirstOfAModelIsServedBehindOthers) {
  Groups groups({.models = 2, .max_seqs = 1, .policy = GetParam(), .on_late = OnLate::kReject}, {{0, 1}});
  const double alone_s = test::alone_s(groups);
  groups->submit(make_request(1, 0, 4, 5));
  for (const RequestId id : {2, 3}) groups->submit(with_deadline(make_request(id, 1, 4, 5), 0.5 * alone_s));
  groups->close_input();
  groups.finish(0);
  EXPECT_THAT(rejected_among(groups->take_completions()), ElementsAre(3));
}

// However many lines one call of due() deals with.
TEST_P(DispatcherRejecting, TheInputEndsWhereTheLastLinesAreRejected) {
  for (RequestId lines = 1; lines <= 17; ++lines) {
    Groups groups = one_group();
    for (RequestId id = 1; id <= lines; ++id) {
      groups->submit(with_deadline(make_request(id, 0, 4, 5, /*arrival_s=*/1), 0));
    }
    groups->close_input();
    groups.decide(0);
    while (groups->due_s() <= 1) groups.decide(1);
    EXPECT_EQ(groups->take_completions().size(), lines);
    EXPECT_TRUE(groups->all_done()) << lines << " lines";
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, DispatcherRejecting, ::testing::Values("fifo", "balanced", "throughput"),
                         [](const auto& policy) { return std::string(policy.param); });

// The queue that counts is that at its arrival. (Where the policy plans ahead, all are judged when all are known.)
TEST(DispatcherRejecting, JudgesARequestWhenItArrives) {
  for (const char* policy : {"fifo", "balanced"}) {
    Groups groups = one_group(policy, OnLate::kReject);
    const double alone_s = test::alone_s(groups);
    for (RequestId id = 1; id < 4; ++id) groups->submit(make_request(id, 0, 4, 5));
    groups->submit(with_deadline(make_request(4, 0, 4, 5, /*arrival_s=*/1), 1.5 * alone_s));
    groups->submit(with_deadline(make_request(5, 0, 4, 5, /*arrival_s=*/1), 1.5 * alone_s));
    groups->close_input();
    EXPECT_EQ(groups->waiting(), 5u);
    groups.finish(0.5);
    EXPECT_THAT(rejected_among(groups->take_completions()), IsEmpty());
    EXPECT_FALSE(groups->all_done());
    EXPECT_EQ(groups->due_s(), 1);
    groups.finish(1);
    EXPECT_THAT(rejected_among(groups->take_completions()), ElementsAre(5));
    EXPECT_TRUE(groups->all_done());
  }
}

// --- Swaps ------------------------------------------------------------------------------------------------------

// A model's transfer takes 4 ms here, a pass 1 ms.
Groups::Options slow_links() { return {.models = 2, .max_seqs = 1, .link_bytes_per_s = kPageBytes / 0.001}; }

TEST(Dispatcher, PrefersTheGroupWhereTheModelIsResident) {
  Groups groups(slow_links(), {{0}, {0}});
  groups.make_resident(1);
  for (RequestId id = 0; id < 3; ++id) groups->submit(make_request(id, 0, 4, 1));
  EXPECT_THAT(groups.open(), ElementsAre(0, 3)) << "three passes take less than a transfer";
}

TEST(Dispatcher, SwapsAModelInWhereTheQueueIsLongerThanThat) {
  Groups groups(slow_links(), {{0}, {0}});
  groups.make_resident(1);
  for (RequestId id = 0; id < 12; ++id) groups->submit(make_request(id, 0, 4, 1));
  EXPECT_GT(groups.open()[0], 2u);
  EXPECT_GT(groups.open()[1], 4u);
}

// Group 0 has one long request of another model, group 1 three short ones, and would be ready sooner: but three would
// wait for the swap there.
TEST(Dispatcher, SwapsWhereFewerRequestsWaitForIt) {
  Groups groups(slow_links(), {{0, 1}, {0, 1}});
  groups.make_resident(0, 0);
  groups.make_resident(1, 0);
  groups->submit(make_request(0, 0, 4, 12));
  for (RequestId id = 1; id < 4; ++id) groups->submit(make_request(id, 0, 4, 1));
  ASSERT_THAT(groups.open(), ElementsAre(1, 3));
  groups->submit(make_request(9, 1, 4, 1));
  EXPECT_THAT(groups.open(), ElementsAre(2, 3));
}

TEST(Dispatcher, ARequestGoesWhereItCanBeServed) {
  Groups groups({.models = 1, .frames_of_first = 6}, {{0}, {0}});
  groups->submit(make_request(0, 0, 4000, 1));
  EXPECT_THAT(groups.open(), ElementsAre(0, 1));
  EXPECT_THAT(groups->take_completions(), IsEmpty());
}

TEST(Dispatcher, APartOfALineGoesWhereItCanBeServed) {
  Groups groups({.models = 1, .frames_of_first = 6}, {{0}, {0}});
  for (const std::uint32_t part : {0, 1, 2}) {
    Request request = make_request(0, 0, part == 1 ? 4000 : 4, 1);
    request.part = part;
    groups->submit(std::move(request));
  }
  EXPECT_THAT(groups.open(), ElementsAre(1, 2)) << "the last one follows the one before";
  EXPECT_THAT(groups->take_completions(), IsEmpty());
}

// --- Stealing ---------------------------------------------------------------------------------------------------

// Of 9 requests for model 0 one is under way in group 0, alone; group 1, which holds it as well, had a long queue of
// its own when they came.
class DispatcherStealing : public ::testing::Test {
 protected:
  void begin(Groups& groups, double deadline_s = kNoDeadline) {
    for (RequestId id = 100; id < 110; ++id) groups->submit(make_request(id, 1, 4, 1));
    for (RequestId id = 0; id < 9; ++id) groups->submit(with_deadline(make_request(id, 0, 4, 1), deadline_s));
    ASSERT_THAT(groups.open(), ElementsAre(9, 10));
    groups.decide(0);
  }
  static void empty_group_1(Groups& groups) {
    for (int i = 0; i < 10; ++i) {
      groups.report(1, 1);
      groups->due(1);
      groups.decide_of(1, 1);
    }
  }
};

TEST_F(DispatcherStealing, AnIdleGroupTakesHalfOfWhatWaits) {
  Groups groups({.models = 2, .max_seqs = 1}, {{0}, {0, 1}});
  groups.make_resident();
  begin(groups);
  empty_group_1(groups);
  EXPECT_THAT(groups.open(), ElementsAre(5, 4)) << "one is under way, four wait, four were taken";
  groups->close_input();
  groups.finish(2);
  EXPECT_TRUE(groups->all_done());
  EXPECT_EQ(groups->take_completions().size(), 19u);
  std::set<RequestId> begun;
  for (const auto& [id, group] : groups.begun_in()) EXPECT_TRUE(begun.insert(id).second) << id << " began twice";
}

// They were judged when the first group was given them.
TEST_F(DispatcherStealing, TakesRequestsThatAreLateByThenAndEndsNone) {
  Groups groups({.models = 2, .max_seqs = 1, .on_late = OnLate::kReject}, {{0}, {0, 1}});
  groups.make_resident();
  begin(groups, /*deadline_s=*/0.5);
  empty_group_1(groups);
  EXPECT_THAT(groups.open(), ElementsAre(5, 4));
  groups->close_input();
  groups.finish(2);
  EXPECT_THAT(rejected_among(groups->take_completions()), IsEmpty());
}

TEST_F(DispatcherStealing, TakesNothingWhereItsSwapCostsMore) {
  Groups groups({.models = 2, .max_seqs = 1, .link_bytes_per_s = kPageBytes / 0.01}, {{0}, {0, 1}});
  groups.make_resident(0);
  groups.make_resident(1, 1);
  begin(groups);
  empty_group_1(groups);
  EXPECT_THAT(groups.open(), ElementsAre(9, 0)) << "a swap takes 40 ms, half of the others 4 ms";
}

TEST_F(DispatcherStealing, AGroupThatDoesNotHoldTheModelTakesNothing) {
  Groups groups({.models = 2, .max_seqs = 1}, {{0}, {1}});
  groups.make_resident();
  begin(groups);
  empty_group_1(groups);
  EXPECT_THAT(groups.open(), ElementsAre(9, 0));
}

// Group 0, which is to steal, has room for 256 tokens at most: every other line has a part that is longer.
TEST_F(DispatcherStealing, AGroupTakesOnlyLinesThatItCanServe) {
  Groups groups({.models = 2, .frames_of_first = 3, .max_seqs = 1}, {{0, 1}, {0}});
  groups.make_resident();
  for (RequestId id = 100; id < 110; ++id) groups->submit(make_request(id, 1, 4, 40));
  std::set<RequestId> long_lines;
  for (RequestId id = 0; id < 16; ++id) {
    const bool is_long = id % 2 == 1;
    if (is_long) long_lines.insert(id);
    for (const std::uint32_t part : {0, 1, 2}) {
      Request request = make_request(id, 0, is_long && part == 1 ? 400 : 4, 1);
      request.part = part;
      groups->submit(std::move(request));
    }
  }
  ASSERT_THAT(groups.open(), ElementsAre(10, 48));
  groups.decide(0);
  while (groups->scheduler(0).held().waiting > 0 || groups.in_flight(0) > 0) {
    groups.report(0, 1);
    groups->due(1);
    groups.decide_of(0, 1);
  }
  groups->close_input();
  groups.finish(2);
  EXPECT_TRUE(groups->all_done());
  EXPECT_GT(groups.stolen(), 0u);
  const std::vector<Completion> completions = groups->take_completions();
  EXPECT_EQ(completions.size(), 58u);
  for (const Completion& completion : completions) EXPECT_EQ(completion.error_code, "") << completion.id;
  for (const auto& [id, group] : groups.begun_in()) EXPECT_FALSE(group == 0 && long_lines.contains(id)) << id;
}

TEST_F(DispatcherStealing, WhatHasBegunStays) {
  Groups groups({.models = 2, .max_seqs = 16}, {{0}, {0, 1}});
  groups.make_resident();
  begin(groups);  // all of them are in a pass
  groups.report(1, 1);
  groups.decide(1);
  EXPECT_THAT(groups.open(), ElementsAre(9, 0));
}

// Group 0 has a backlog of which group 1 first takes nothing; when it has grown, group 1 is asked again.
TEST_F(DispatcherStealing, AnIdleGroupIsAskedAgainWhenABacklogHasGrown) {
  Groups groups({.models = 1, .max_seqs = 1, .link_bytes_per_s = kPageBytes / 0.01}, {{0}, {0}});
  groups.make_resident(0);
  for (RequestId id = 0; id < 4; ++id) groups->submit(make_request(id, 0, 4, 1));
  ASSERT_THAT(groups.open(), ElementsAre(4, 0));
  groups.decide(0);
  EXPECT_EQ(groups->due(0), std::nullopt);
  for (RequestId id = 10; id < 30; ++id) groups->submit(make_request(id, 0, 4, 1));
  ASSERT_THAT(groups.open(), ElementsAre(24, 0)) << "a swap takes 40 passes";
  std::set<std::size_t> asked;
  for (int i = 0; i < 10; ++i) {
    const auto group = groups->due(0.001);
    if (!group) break;
    asked.insert(*group);
    groups.decide_of(*group, 0.001);
  }
  EXPECT_TRUE(asked.contains(1));
}

// --- Known from the start ---------------------------------------------------------------------------------------

TEST(DispatcherThroughput, NobodyBeginsBeforeAllIsKnownAndThenAllDo) {
  Groups groups({.models = 2, .policy = "throughput"}, {{0, 1}, {0, 1}, {0}});
  for (RequestId id = 0; id < 60; ++id) groups->submit(make_request(id, static_cast<ModelId>(id % 2), 4, 1));
  EXPECT_THAT(groups.decide(0), IsEmpty());
  EXPECT_TRUE(groups->waits_for_input(0));
  EXPECT_TRUE(groups->has_work(0));
  EXPECT_EQ(groups->due_s(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(groups->waiting(), 60u);
  groups->note_input_end();
  EXPECT_FALSE(groups->waits_for_input(0));
  const std::vector<std::size_t> planned_by = groups.decide(1);
  EXPECT_GE(std::set<std::size_t>(planned_by.begin(), planned_by.end()).size(), 2u);
  groups->close_input();
  groups.finish(2);
  EXPECT_TRUE(groups->all_done());
  EXPECT_EQ(groups->take_completions().size(), 60u);
}

// Interactive requests are served when they arrive, wherever in the input they stand; batch work is dealt when all of
// it is known.
TEST(DispatcherThroughput, InteractiveRequestsDoNotWaitForTheInput) {
  Groups groups({.models = 2, .policy = "throughput"}, {{0, 1}, {0, 1}});
  const auto interactive = [](RequestId id, double arrival_s) {
    Request request = make_request(id, 1, 4, 1, arrival_s);
    request.priority = Request::kInteractive;
    return request;
  };
  groups->submit(interactive(100, 0));
  for (RequestId id = 0; id < 20; ++id) groups->submit(make_request(id, static_cast<ModelId>(id % 2), 4, 1));
  groups->submit(interactive(101, 5));
  EXPECT_THAT(groups.decide(0), SizeIs(1));
  EXPECT_TRUE(groups->waits_for_input(0));
  EXPECT_EQ(groups->due_s(), 5);
  EXPECT_EQ(groups->waiting(), 21u);
  groups.finish(4.9);
  EXPECT_THAT(groups.begun_in(), ElementsAre(Pair(100, _)));
  EXPECT_FALSE(groups.decide(5).empty());
  groups.finish(5.1);
  EXPECT_THAT(groups.begun_in(), ElementsAre(Pair(100, _), Pair(101, _)));
  groups->submit(interactive(102, 7));
  groups->close_input();
  groups.finish(6);
  std::map<std::size_t, int> batch;
  for (const auto& [id, group] : groups.begun_in()) batch[group] += id < 20;
  EXPECT_THAT(batch, ElementsAre(Pair(0, 10), Pair(1, 10)));
  EXPECT_FALSE(groups->all_done()) << "one arrives later";
  EXPECT_FALSE(groups->has_work(6.9));
  EXPECT_TRUE(groups->has_work(7));
  groups.finish(7);
  EXPECT_TRUE(groups->all_done());
  EXPECT_EQ(groups->take_completions().size(), 23u);
}

// Sequences that more urgent ones have preempted again and again take room like those that wait.
TEST(Dispatcher, IsFullWhereManyHaveBeenPreempted) {
  Groups groups({.models = 2, .max_seqs = 1, .max_waiting = 5, .policy = "balanced"}, {{0}, {1}});
  for (RequestId id = 0; id < 7; ++id) {
    EXPECT_FALSE(groups->is_full()) << id;
    Request request = make_request(id, 0, 4, 400);
    request.priority = -static_cast<std::int32_t>(id);
    groups->submit(std::move(request));
    groups.decide(0);
    while (groups.in_flight(0) > 0) groups.report(0, 0);
  }
  EXPECT_EQ(groups->waiting(), 0u);
  EXPECT_TRUE(groups->is_full()) << "2 run, 5 have been preempted";
}

TEST(DispatcherThroughput, GroupsBeginWhenNoMoreFits) {
  Groups groups({.models = 2, .max_waiting = 20, .policy = "throughput"}, {{0, 1}, {0, 1}});
  for (RequestId id = 0; id < 20; ++id) {
    EXPECT_FALSE(groups->is_full());
    EXPECT_THAT(groups.decide(0), IsEmpty());
    groups->submit(make_request(id, static_cast<ModelId>(id % 2), 4, 1));
  }
  EXPECT_TRUE(groups->is_full());
  EXPECT_FALSE(groups.decide(0).empty());
  for (RequestId id = 20; id < 30; ++id) groups->submit(make_request(id, static_cast<ModelId>(id % 2), 4, 1));
  groups->close_input();
  groups.finish(1);
  EXPECT_TRUE(groups->all_done());
  EXPECT_EQ(groups->take_completions().size(), 30u);
}

TEST(DispatcherThroughput, LinesAreDealtWhole) {
  Groups groups({.models = 1, .policy = "throughput"}, {{0}, {0}});
  for (RequestId line = 0; line < 10; ++line) {
    for (std::uint32_t part = 0; part < 5; ++part) {
      Request request = make_request(line, 0, 4, 1);
      request.part = part;
      groups->submit(std::move(request));
    }
  }
  groups->close_input();
  groups.finish(1);
  std::map<RequestId, std::set<std::size_t>> where;
  for (const auto& [line, group] : groups.begun_in()) where[line].insert(group);
  std::set<std::size_t> used;
  for (const auto& [line, in] : where) {
    EXPECT_EQ(in.size(), 1u) << line;
    used.insert(*in.begin());
  }
  EXPECT_EQ(used.size(), 2u) << "both groups have some";
}

// --- Anything ---------------------------------------------------------------------------------------------------

// Whether a group of the placement could serve it; all: whether each that holds its model could.
bool can_be_served(Groups& groups, const std::vector<std::vector<ModelId>>& placement, const Request& request,
                   bool by_all = false) {
  bool by_one = false;
  for (std::size_t group = 0; group < placement.size(); ++group) {
    const auto found = std::ranges::find(placement[group], request.model);
    if (found == placement[group].end()) continue;
    const auto local = static_cast<ModelId>(found - placement[group].begin());
    const bool here = groups->scheduler(group).why_refused(request, local).empty();
    if (by_all && !here) return false;
    by_one |= here;
  }
  return by_one;
}

// Whatever is placed where, arrives when, and ends when: every request that some group can serve is served once, in one
// group that holds its model, and whole lines in one where all groups can serve them. Others are refused. Of every
// other placement the first group has less room.
TEST(DispatcherRandom, EveryRequestIsServedOnce) {
  std::size_t stolen = 0, refused = 0, divided = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    const auto from = [&random](int least, int most) {
      return least + static_cast<int>(random() % (most - least + 1));
    };
    const int models = from(1, 5), count = from(2, 5);
    std::vector<std::vector<ModelId>> placement(count);
    for (int m = 0; m < models; ++m) {
      for (auto& group : placement) {
        if (random() % 2 == 0) group.push_back(static_cast<ModelId>(m));
      }
      auto& sure = placement[random() % count];
      if (std::find(sure.begin(), sure.end(), m) == sure.end()) sure.push_back(static_cast<ModelId>(m));
    }
    std::erase_if(placement, [](const auto& group) { return group.empty(); });
    Groups groups({.models = models,
                   .frames = from(6, 30),
                   .frames_of_first = seed % 2 == 0 ? 0 : from(3, 5),
                   .max_seqs = from(1, 8),
                   .max_waiting = static_cast<std::size_t>(from(5, 100)),
                   .policy = std::vector<std::string>{"fifo", "balanced", "throughput"}[seed % 3],
                   .link_bytes_per_s = 1.0 * kPageBytes * from(100, 10000)},
                  placement);
    std::size_t submitted = 0;
    std::map<std::pair<RequestId, std::uint32_t>, bool> to_serve;
    std::set<RequestId> may_be_divided;
    double now_s = 0;
    for (RequestId line = 0; line < 60; ++line) {
      const auto model = static_cast<ModelId>(random() % models);
      const int parts = random() % 4 == 0 ? from(2, 4) : 1;
      const double arrival_s = random() % 3 == 0 ? now_s + 0.01 * from(0, 30) : now_s;
      for (int part = 0; part < parts; ++part) {
        const int prompt = seed % 2 == 1 && random() % 3 == 0 ? from(250, 600) : from(1, 20);
        Request request = make_request(line, model, prompt, from(1, 6), arrival_s);
        request.part = static_cast<std::uint32_t>(part);
        to_serve[{line, request.part}] = can_be_served(groups, placement, request);
        if (!can_be_served(groups, placement, request, /*by_all=*/true)) may_be_divided.insert(line);
        groups->submit(std::move(request));
        ++submitted;
      }
      if (line == 50) groups->note_input_end();
      now_s += 0.001 * from(0, 20);
      groups.decide(now_s);
      for (int events = from(0, 4); events > 0; --events) {
        const std::size_t group = random() % placement.size();
        if (groups.in_flight(group) == 0) continue;
        groups.report(group, now_s);
        groups.decide(now_s);
      }
    }
    groups->close_input();
    groups.finish(now_s);
    while (!groups->all_done()) {
      ASSERT_TRUE(std::isfinite(groups->due_s())) << "nothing will ever happen, seed " << seed;
      now_s = std::max(now_s, groups->due_s());
      groups.finish(now_s);
    }
    std::set<std::pair<RequestId, std::uint32_t>> done;
    for (const Completion& completion : groups->take_completions()) {
      EXPECT_TRUE(done.insert({completion.id, completion.part}).second) << completion.id << ", seed " << seed;
      const bool served = to_serve[{completion.id, completion.part}];
      EXPECT_EQ(completion.error_code, served ? "" : "context_length_exceeded") << completion.id << ", seed " << seed;
      refused += !served;
    }
    ASSERT_EQ(done.size(), submitted) << "seed " << seed;
    std::map<RequestId, std::set<std::size_t>> where;
    for (const auto& [line, group] : groups.begun_in()) where[line].insert(group);
    for (const auto& [line, in] : where) {
      EXPECT_TRUE(in.size() == 1u || may_be_divided.contains(line)) << "line " << line << ", seed " << seed;
    }
    divided += may_be_divided.size();
    EXPECT_EQ(groups->waiting(), 0u);
    EXPECT_EQ(groups->waiting_bytes(), 0u);
    stolen += groups.stolen();
  }
  EXPECT_GT(stolen, 20u);
  EXPECT_GT(refused, 20u);
  EXPECT_GT(divided, 2 * refused) << "of others a group could serve them";
}

}  // namespace
}  // namespace computron::test
