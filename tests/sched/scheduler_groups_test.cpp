// What a dispatcher over several schedulers asks of one: how long its queue is, and requests back.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<RequestId> ids_of(const std::vector<Request>& requests) {
  std::vector<RequestId> ids;
  for (const Request& request : requests) ids.push_back(request.id);
  return ids;
}

class SchedulerDispatch : public ::testing::Test {
 protected:
  Scheduler make(int frames, int max_seqs = 4) {
    return {
        model_list_.shapes(),
        model_list_.names(),
        make_policy("balanced"),
        {.frames = frames, .max_seqs = max_seqs, .costs = {.link_bytes_per_s = kPageBytes / 0.001, .step_s = 1e-3}}};
  }
  static PlannedStep plan(Scheduler& scheduler, double now_s) { return std::get<PlannedStep>(scheduler.next(now_s)); }
  // Its requests end here, if their one token was asked for.
  static void complete(Scheduler& scheduler, const PlannedStep& planned, double now_s) {
    const std::vector<SampledRow> rows(static_cast<std::size_t>(planned.step.logit_rows()));
    scheduler.completed(planned.step.id, {.rows = rows}, now_s);
  }
  FakeModelList model_list_{{small_model(4), small_model(4), small_model(4)}};
};

TEST_F(SchedulerDispatch, CountsRequestsUntilTheyAreDone) {
  Scheduler scheduler = make(20);
  EXPECT_EQ(scheduler.open().count(), 0u);
  for (RequestId id = 0; id < 3; ++id) scheduler.submit(make_request(id, 0, 5, /*max_tokens=*/1));
  scheduler.submit(make_request(3, 0, 5, /*max_tokens=*/10000));  // refused
  scheduler.submit(make_request(4, 1, 5, 1, /*arrival_s=*/9));
  EXPECT_EQ(scheduler.open().count(), 4u);
  const PlannedStep planned = plan(scheduler, 0);
  EXPECT_EQ(scheduler.open().count(), 4u);
  complete(scheduler, planned, 1);
  EXPECT_EQ(scheduler.open().count(), 1u);
}

TEST_F(SchedulerDispatch, AQuoteForLaterCountsFromTheArrival) {
  Scheduler scheduler = make(20);
  scheduler.submit(make_request(0, 0, 5, 1));
  complete(scheduler, plan(scheduler, 0), 0);
  const double alone_s = scheduler.quote_s(0, make_request(1, 0, 5, 1, /*arrival_s=*/3), 10);
  EXPECT_EQ(scheduler.quote_s(0, make_request(1, 0, 5, 1, /*arrival_s=*/10), 10), alone_s);
  EXPECT_EQ(scheduler.quote_s(0, make_request(1, 0, 5, 1, /*arrival_s=*/13), 10), alone_s + 3);
}

// Whatever they are doing, and whichever of equal models they are for.
TEST_F(SchedulerDispatch, AQuoteGrowsByTheSameForEachOpenRequest) {
  Scheduler scheduler = make(20);
  for (ModelId m = 0; m < 3; ++m) scheduler.submit(make_request(m, m, 5, 1));
  for (double now_s = 0; scheduler.open().count() > 0; now_s += 1) complete(scheduler, plan(scheduler, now_s), now_s);
  for (ModelId m = 0; m < 3; ++m) ASSERT_EQ(scheduler.resident_ratio(m), 1);

  const Request next = make_request(99, 0, 7, 5);
  std::vector<double> quotes{scheduler.quote_s(0, next, 10)};
  for (RequestId id = 10; id < 30; ++id) {
    scheduler.submit(make_request(id, id % 3, 7, 5));
    quotes.push_back(scheduler.quote_s(0, next, 10));
  }
  const double step_s = quotes[1] - quotes[0];
  EXPECT_GT(step_s, 0);
  for (std::size_t i = 1; i < quotes.size(); ++i) EXPECT_NEAR(quotes[i] - quotes[i - 1], step_s, 1e-9);
  EXPECT_EQ(scheduler.quote_s(1, next, 10), quotes.back()) << "for any of equal models";
  const PlannedStep begun = plan(scheduler, 10);
  EXPECT_EQ(scheduler.quote_s(0, next, 10), quotes.back()) << "those under way count whole";
  EXPECT_NEAR(scheduler.quote_s(0, next, 10.0005), quotes.back() - 0.0005, 1e-9) << "but for what is computed";
  const double overdue_s = scheduler.quote_s(0, next, 10.5);
  EXPECT_LT(overdue_s, quotes.back() - 0.001) << "a pass of a millisecond and a little";
  EXPECT_EQ(scheduler.quote_s(0, next, 11), overdue_s) << "no more than the pass";
}

// One at a time, passes that take as long whatever their rows: with one token it is the prompt's.
TEST_F(SchedulerDispatch, APromptsOwnPassGivesTheFirstToken) {
  const auto more_s = [this](int max_tokens) {
    Scheduler scheduler = make(20, /*max_seqs=*/1);
    scheduler.submit(make_request(0, 0, 5, 1));
    complete(scheduler, plan(scheduler, 0), 0);  // the model is resident
    const double before_s = scheduler.quote_s(0, make_request(99, 0, 5, 1), 10);
    scheduler.submit(make_request(1, 0, 5, max_tokens));
    return scheduler.quote_s(0, make_request(99, 0, 5, 1), 10) - before_s;
  };
  const double pass_s = more_s(1);
  EXPECT_NEAR(pass_s, 1e-3, 1e-4);
  EXPECT_NEAR(more_s(2) / pass_s, 2, 0.01);
  EXPECT_NEAR(more_s(7) / pass_s, 7, 0.01);
}

TEST_F(SchedulerDispatch, AQuoteHasTheTransferOfWhatTheModelLacks) {
  Scheduler scheduler = make(20);
  const Request next = make_request(99, 1, 7, 5);
  scheduler.submit(make_request(0, 0, 5, 1));
  for (double now_s = 0; scheduler.open().count() > 0; now_s += 1) complete(scheduler, plan(scheduler, now_s), now_s);
  const double resident_s = scheduler.quote_s(0, next, 10), missing_s = scheduler.quote_s(1, next, 10);
  const double model_s =
      static_cast<double>(model_list_.shape(1).layouts[0]->total_used_bytes()) / (kPageBytes / 0.001);
  EXPECT_NEAR(missing_s - resident_s, model_s, 1e-9);
  scheduler.submit(make_request(1, 2, 5, 1, /*arrival_s=*/10));
  EXPECT_NEAR(scheduler.quote_s(1, next, 10) - resident_s, 2 * model_s, 1e-9) << "behind what an open one lacks";
}

TEST_F(SchedulerDispatch, RecallGivesTheYoungestBackThatNoStepHasHad) {
  Scheduler scheduler = make(20, /*max_seqs=*/2);
  for (RequestId id = 0; id < 6; ++id) scheduler.submit(make_request(id, 0, 5, 3, 0.1 * static_cast<double>(id)));
  scheduler.submit(make_request(6, 1, 5, 3, /*arrival_s=*/9));
  const PlannedStep planned = plan(scheduler, 0.45);  // 0 and 1 run, 2, 3 and 4 wait, 5 is to come
  EXPECT_EQ(planned.step.chunks.size(), 2u);
  EXPECT_THAT(ids_of(scheduler.recall(0, 2)), ElementsAre(5, 4));
  EXPECT_EQ(scheduler.open().count(), 5u);
  EXPECT_EQ(scheduler.waiting(), 3u);
  EXPECT_THAT(ids_of(scheduler.recall(0, 10)), ElementsAre(3, 2));
  EXPECT_THAT(scheduler.recall(0, 10), IsEmpty()) << "what a step has had stays";
  EXPECT_EQ(scheduler.held().waiting_bytes, make_request(6, 1, 5, 3).bytes());
  EXPECT_THAT(ids_of(scheduler.recall(1, 1)), ElementsAre(6));
  EXPECT_EQ(scheduler.held().waiting_bytes, 0u);
}

TEST_F(SchedulerDispatch, WhatIsRecalledNeverRuns) {
  Scheduler scheduler = make(20, /*max_seqs=*/2);
  for (RequestId id = 0; id < 5; ++id) scheduler.submit(make_request(id, 0, 5, 1));
  EXPECT_THAT(ids_of(scheduler.recall(0, 2)), ElementsAre(4, 3));
  scheduler.close_input();
  std::vector<RequestId> done;
  for (double now_s = 0; scheduler.open().count() > 0; now_s += 1) {
    complete(scheduler, plan(scheduler, now_s), now_s);
    for (const Completion& completion : scheduler.take_completions()) done.push_back(completion.id);
  }
  EXPECT_THAT(done, ElementsAre(0, 1, 2));
  EXPECT_TRUE(std::holds_alternative<AllDone>(scheduler.next(100)));
}

TEST_F(SchedulerDispatch, AQuoteIsThatOfWhatIsLeftAfterARecall) {
  Scheduler scheduler = make(20);
  const Request next = make_request(99, 0, 7, 5);
  for (RequestId id = 0; id < 3; ++id) scheduler.submit(make_request(id, 0, 7, 5));
  const double before_s = scheduler.quote_s(0, next, 0);
  for (RequestId id = 3; id < 40; ++id) scheduler.submit(make_request(id, 0, 7, 5));
  EXPECT_GT(scheduler.quote_s(0, next, 0), before_s);
  scheduler.recall(0, 37);
  EXPECT_EQ(scheduler.quote_s(0, next, 0), before_s);
}

Request part_of(RequestId id, std::uint32_t part, double arrival_s = 0) {
  Request request = make_request(id, 0, 5, 1, arrival_s);
  request.part = part;
  return request;
}

TEST_F(SchedulerDispatch, TheRequestsOfALineMoveTogetherOrStay) {
  Scheduler scheduler = make(20, /*max_seqs=*/2);
  for (const RequestId id : {1, 2, 3}) {
    for (std::uint32_t part = 0; part < 3; ++part) scheduler.submit(part_of(id, part));
  }
  scheduler.submit(part_of(4, 0));
  plan(scheduler, 0);  // two parts of line 1
  EXPECT_THAT(ids_of(scheduler.recall(0, 3)), ElementsAre(4)) << "a line of three is too many";
  EXPECT_THAT(ids_of(scheduler.recall(0, 100)), ElementsAre(3, 3, 3, 2, 2, 2)) << "a line that has begun stays whole";
  EXPECT_EQ(scheduler.open().count(), 3u);
  EXPECT_EQ(scheduler.waiting(), 1u);
  for (std::uint32_t part = 0; part < 2; ++part) scheduler.submit(part_of(5, part, /*arrival_s=*/7));
  EXPECT_THAT(scheduler.recall(0, 1), IsEmpty());
  EXPECT_THAT(ids_of(scheduler.recall(0, 2)), ElementsAre(5, 5));
}

TEST_F(SchedulerDispatch, OnlyLinesGoOfWhichEveryRequestIsAccepted) {
  Scheduler scheduler = make(20, /*max_seqs=*/2);
  for (const RequestId id : {1, 2, 3}) {
    for (std::uint32_t part = 0; part < 3; ++part) scheduler.submit(part_of(id, part));
  }
  for (std::uint32_t part = 0; part < 2; ++part) scheduler.submit(part_of(4, part, /*arrival_s=*/7));
  plan(scheduler, 0);  // two parts of line 1
  const auto accepts = [](const Request& request) { return request.id == 3 || request.part != 1; };
  EXPECT_THAT(ids_of(scheduler.recall(0, 100, accepts)), ElementsAre(3, 3, 3));
  EXPECT_THAT(scheduler.recall(0, 100, accepts), IsEmpty());
  EXPECT_EQ(scheduler.open().count(), 8u) << "5 of them wait here";
  EXPECT_THAT(ids_of(scheduler.recall(0, 100)), ElementsAre(4, 4, 2, 2, 2));
}

// It is asked again and again.
TEST_F(SchedulerDispatch, ARecallThatIsRefusedLooksAtFewOnly) {
  Scheduler scheduler = make(20);
  for (RequestId id = 0; id < 2000; ++id) scheduler.submit(make_request(id, 0, 5, 1));
  std::size_t asked = 0;
  const auto accepts = [&asked](const Request& request) {
    ++asked;
    return request.id == 0;
  };
  EXPECT_THAT(scheduler.recall(0, 1000, accepts), IsEmpty());
  EXPECT_EQ(asked, WaitingQueue::kMostRefused);
}

}  // namespace
}  // namespace computron::test
