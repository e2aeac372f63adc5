#include "computron/sched/dispatcher.h"

#include <gmock/gmock.h>

#include <deque>
#include <memory>
#include <random>

#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Groups of one rank, driven by hand: a step is reported when the test says so.
class Groups {
 public:
  struct Options {
    int models = 1;
    int pages = 4;    // of each
    int frames = 64;  // of each group's pool
    int max_seqs = 8;
    std::size_t max_waiting = 1 << 16;
    std::string policy = "balanced";
  };

  // `placement[group]`: the job's numbers of the models that it holds.
  Groups(const Options& options, const std::vector<std::vector<ModelId>>& placement)
      : list_(std::vector<FakeModel>(static_cast<std::size_t>(options.models), small_model(options.pages))) {
    const SchedulerOptions scheduler_options{
        .frames = options.frames, .max_seqs = options.max_seqs, .max_waiting = options.max_waiting};
    std::vector<DispatchGroup> groups;
    for (const std::vector<ModelId>& models : placement) {
      std::vector<ModelShape> shapes;
      std::vector<std::string> names;
      for (const ModelId model : models) {
        shapes.push_back(list_.shape(model));
        names.push_back(list_.names()[model]);
      }
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
      Decision decision = dispatcher_->next(*group, now_s);
      auto* planned = std::get_if<PlannedStep>(&decision);
      if (planned == nullptr) continue;
      for (const RequestId id : planned->begun) begun_in_.emplace_back(id, *group);
      in_flight_[*group].push_back(std::move(planned->step));
      planned_by.push_back(*group);
    }
    return planned_by;
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
  // Every model is resident in every group that holds it, before anything is dispatched.
  void make_resident() {
    for (std::size_t group = 0; group < schedulers_.size(); ++group) {
      Scheduler& scheduler = *schedulers_[group];
      for (ModelId model = 0; model < models_in_[group]; ++model) {
        scheduler.submit(make_request(0, model, 4, 1));
        while (scheduler.has_work(0)) {
          const Step step = std::get<PlannedStep>(scheduler.next(0)).step;
          const std::vector<SampledRow> rows = rows_of(step);
          scheduler.completed(step.id, {rows, {}}, 0);
        }
        scheduler.take_completions();
      }
    }
  }
  std::size_t in_flight(std::size_t group) const { return in_flight_[group].size(); }
  // [group] requests that it was given and that are not done.
  std::vector<std::size_t> open() const {
    std::vector<std::size_t> open;
    for (const auto& scheduler : schedulers_) open.push_back(scheduler->open_requests());
    return open;
  }
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
      const double now_s = 10.0 + static_cast<double>(id);
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

}  // namespace
}  // namespace computron::test
