#include "computron/sched/policy.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "computron/sched/eviction_order.h"
#include "tests/sched/fake_model.h"

namespace computron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelView waiting(ModelId model, double oldest_arrival_s, std::uint64_t oldest_request = 0) {
  return {.model = model,
          .waiting = 1,
          .oldest_arrival_s = oldest_arrival_s,
          .oldest_request = oldest_request,
          .waiting_since_s = oldest_arrival_s,
          .arrivals_s = oldest_arrival_s,
          .swap_s = 1,
          .compute_s = 0.1};
}

ModelView used(ModelId model, StepId last_used) { return {.model = model, .last_used = last_used}; }

// By the policy's keys, as Agenda sorts them.
std::vector<ModelId> run_order(const Policy& policy, const std::vector<ModelView>& views, ActiveModel active = {},
                               double now_s = 10) {
  std::vector<RunKey> keys;
  for (const ModelView& view : views) {
    if (view.has_work()) keys.push_back(policy.run_key(view, active, now_s));
  }
  std::sort(keys.begin(), keys.end());
  std::vector<ModelId> order;
  for (const RunKey& key : keys) order.push_back(key.model);
  return order;
}

// Who loses pages first where every model has one: each of them comes in turn to give it to a newcomer.
std::vector<ModelId> eviction_order(const Policy& policy, std::vector<ModelView> views,
                                    const std::vector<ModelId>& run_order, double now_s = 10) {
  const auto newcomer = static_cast<ModelId>(views.size());
  std::vector<test::FakeModel> models(views.size(), test::small_model(1));
  models.push_back(test::small_model(static_cast<int>(views.size())));
  const test::FakeModelList list(models);
  StagePool pool(list.layouts(0), static_cast<int>(views.size()));
  RunOrder order(models.size());
  for (const ModelId model : run_order) order.push_back(model);
  EvictableModels nobody({});
  for (ModelId m = 0; m < newcomer; ++m) pool.prefetch(m, nobody, /*bytes=*/1, /*reserve=*/0);
  views.push_back({.model = newcomer, .pinned = true});

  EvictionOrder eviction;
  std::vector<ModelId> losers;
  while (const auto first = eviction.first(pool, FrameKind::kWhole, policy, views, order, /*place=*/0, now_s)) {
    losers.push_back(pool.state().owner(*first).model);
    EvictableModels loser({losers.back()});
    pool.prefetch(newcomer, loser, /*bytes=*/1, /*reserve=*/0);
  }
  return losers;
}

// --- fifo -------------------------------------------------------------------------------------------------------

TEST(FifoPolicy, ModelsRunInTheOrderOfTheirOldestRequests) {
  const auto policy = make_fifo_policy();
  EXPECT_THAT(run_order(*policy, {waiting(0, 3), waiting(1, 1), waiting(2, 2)}), ElementsAre(1, 2, 0));
  EXPECT_THAT(run_order(*policy, {waiting(0, 1, 7), waiting(1, 1, 5), waiting(2, 1, 6)}), ElementsAre(1, 2, 0));
}

// What is in memory, how much is missing and how many wait decide nothing.
TEST(FifoPolicy, OnlyTheArrivalCounts) {
  ModelView busy = waiting(0, 2), swapped_out = waiting(1, 1);
  busy.waiting = 1000;
  swapped_out.missing_s = 1000;
  swapped_out.priority = -3;
  EXPECT_THAT(run_order(*make_fifo_policy(), {busy, swapped_out}), ElementsAre(1, 0));
}

TEST(FifoPolicy, ABatchThatHasBegunGoesOn) {
  ModelView running = waiting(0, 5);
  running.running = running.running_urgent = 2;
  EXPECT_THAT(run_order(*make_fifo_policy(), {running, waiting(1, 1)}, {.model = 0}), ElementsAre(0, 1));
  running.running_urgent = 0;
  EXPECT_THAT(run_order(*make_fifo_policy(), {running, waiting(1, 1)}, {.model = 0}), ElementsAre(1, 0));
}

TEST(FifoPolicy, TheLeastRecentlyUsedLosesFirstWhoeverWaits) {
  const auto policy = make_fifo_policy();
  std::vector views{used(0, 30), used(1, 10), used(2, 40), used(3, 0), used(4, 0)};
  views[1].waiting = 10;
  EXPECT_THAT(eviction_order(*policy, views, {2, 1}), ElementsAre(3, 4, 1, 0));
}

// --- All ---------------------------------------------------------------------------------------------------------

TEST(Policies, ModelsWithoutWorkAreNotInTheRunOrder) {
  for (const char* name : {"fifo", "balanced", "throughput"}) {
    EXPECT_THAT(run_order(*make_policy(name), {ModelView{}, waiting(1, 9), used(2, 7)}), ElementsAre(1)) << name;
    EXPECT_THAT(run_order(*make_policy(name), {ModelView{}}), IsEmpty()) << name;
  }
}

TEST(Policies, TheRunningAndPinnedModelsLoseNothing) {
  for (const char* name : {"fifo", "balanced", "throughput"}) {
    std::vector views{waiting(0, 1), waiting(1, 2), used(2, 3), used(3, 4)};
    views[1].pinned = views[3].pinned = true;
    EXPECT_THAT(eviction_order(*make_policy(name), views, {0, 1}), ElementsAre(2)) << name;
  }
}

TEST(Policies, WhatRunsLastLosesFirstButAfterModelsWithoutWork) {
  for (const char* name : {"balanced", "throughput"}) {
    const std::vector views{waiting(0, 1), waiting(1, 2), waiting(2, 3), used(3, 9), used(4, 8)};
    EXPECT_THAT(eviction_order(*make_policy(name), views, {1, 2, 0}), ElementsAre(4, 3, 0, 2)) << name;
  }
}

TEST(Policies, AreFoundByName) {
  for (const char* name : {"fifo", "balanced", "throughput"}) EXPECT_NE(make_policy(name), nullptr);
  try {
    make_policy("lifo");
    FAIL() << "lifo is no policy";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("lifo"));
    EXPECT_THAT(error.what(), HasSubstr("fifo, balanced, throughput"));
  }
}

// --- balanced ----------------------------------------------------------------------------------------------------

std::unique_ptr<Policy> balanced() { return make_balanced_policy({.max_wait_s = 5}); }

TEST(BalancedPolicy, WhatServesMoreForLessGoesFirst) {
  ModelView many = waiting(0, 9), resident = waiting(1, 9), swapped_out = waiting(2, 9);
  many.waiting = 30;
  many.arrivals_s = 30 * 9;
  many.missing_s = swapped_out.missing_s = 1;
  EXPECT_THAT(run_order(*balanced(), {swapped_out, many, resident}), ElementsAre(1, 0, 2));
}

TEST(BalancedPolicy, WaitingMakesUpForCost) {
  ModelView old = waiting(0, 6), fresh = waiting(1, 9.9);
  old.missing_s = 1;
  fresh.missing_s = 0.8;
  EXPECT_THAT(run_order(*balanced(), {fresh, old}), ElementsAre(0, 1));
}

TEST(BalancedPolicy, PriorityDoublesTheWeight) {
  ModelView plain = waiting(0, 9), urgent = waiting(1, 9);
  urgent.missing_s = 0.05;
  EXPECT_THAT(run_order(*balanced(), {plain, urgent}), ElementsAre(0, 1));
  urgent.priority = 2;
  EXPECT_THAT(run_order(*balanced(), {plain, urgent}), ElementsAre(1, 0));
}

TEST(BalancedPolicy, AModelStaysForOneSwapTime) {
  ModelView running = waiting(0, 9), other = waiting(1, 9);
  other.waiting = 100;
  other.arrivals_s = 900;
  const ActiveModel active{.model = 0, .since_s = 9.5};
  EXPECT_THAT(run_order(*balanced(), {running, other}, active, 10), ElementsAre(0, 1));
  EXPECT_THAT(run_order(*balanced(), {running, other}, active, 10.6), ElementsAre(1, 0));
}

TEST(BalancedPolicy, AModelStaysUntilItHasCaughtUpWhoeverWaits) {
  ModelView running = waiting(0, 9), starved = waiting(1, 1);
  const ActiveModel active{.model = 0, .since_s = 1};
  EXPECT_THAT(run_order(*balanced(), {running, starved}, active), ElementsAre(1, 0));
  running.catching_up = true;
  EXPECT_THAT(run_order(*balanced(), {running, starved}, active), ElementsAre(0, 1));
  EXPECT_THAT(run_order(*balanced(), {running, starved}, {.model = 2}), ElementsAre(1, 0));
}

TEST(BalancedPolicy, WhoHasWaitedTooLongGoesFirst) {
  ModelView starved = waiting(0, 1), older = waiting(1, 0.5), busy = waiting(2, 9.9);
  starved.missing_s = older.missing_s = 100;
  busy.waiting = 1000;
  EXPECT_THAT(run_order(*balanced(), {busy, starved, older}), ElementsAre(1, 0, 2));
  starved.waiting_since_s = older.waiting_since_s = 9;  // passes of them have run since
  EXPECT_THAT(run_order(*balanced(), {busy, starved, older}).front(), 2u);
}

// Three models asked for one after another, every second: the one that was asked last will be wanted last.
TEST(BalancedPolicy, RegularModelsAreKeptForTheirNextRequest) {
  std::vector<ModelView> views;
  for (ModelId m = 0; m < 3; ++m) {
    views.push_back(
        {.model = m, .last_arrival_s = 7.0 + m, .arrival_gap_s = 3, .arrival_gap2_s2 = 9, .last_used = m + 1});
  }
  EXPECT_THAT(eviction_order(*balanced(), views, {}, 9.5), ElementsAre(2, 1, 0));
  for (ModelView& view : views) view.arrival_gap2_s2 = 30;  // in bursts: whoever was last will be again
  EXPECT_THAT(eviction_order(*balanced(), views, {}, 9.5), ElementsAre(0, 1, 2));
}

TEST(BalancedPolicy, ModelsWhoseRequestsComeRegularlyAreExpected) {
  const auto expected = [](double last_s, double gap_s, double gap2_s2, double now_s) {
    return balanced()->is_expected({.last_arrival_s = last_s, .arrival_gap_s = gap_s, .arrival_gap2_s2 = gap2_s2},
                                   now_s);
  };
  EXPECT_TRUE(expected(9, 2, 4.1, 10));
  EXPECT_TRUE(expected(8, 10, 101, 10));
  EXPECT_FALSE(expected(9, 1.5, 9, 10)) << "in bursts";
  EXPECT_FALSE(expected(9, 2, 4.1, 40)) << "who is long overdue is no longer expected";
  EXPECT_FALSE(expected(9, 0, 0, 10)) << "nobody has asked twice";
}

// --- throughput --------------------------------------------------------------------------------------------------

double makespan(const std::vector<ModelView>& views, const std::vector<ModelId>& order) {
  double link_s = 0, compute_s = 0;
  for (const ModelId model : order) {
    link_s += views[model].missing_s;
    compute_s = std::max(compute_s, link_s) + views[model].compute_s;
  }
  return compute_s;
}

// Against every order there is.
TEST(ThroughputPolicy, NoOrderHidesTransfersBetter) {
  const double times[][2] = {{3, 1}, {1, 4}, {2, 2}, {5, 6}, {0, 2}};
  std::vector<ModelView> views;
  for (const auto& [missing_s, compute_s] : times) {
    ModelView& view = views.emplace_back(waiting(static_cast<ModelId>(views.size()), 0));
    view.missing_s = missing_s;
    view.compute_s = compute_s;
  }
  const double ours_s = makespan(views, run_order(*make_throughput_policy(), views));
  std::vector<ModelId> order{0, 1, 2, 3, 4};
  do {
    EXPECT_LE(ours_s, makespan(views, order));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(ThroughputPolicy, TheRunningModelFinishesAndPrioritiesGoNext) {
  ModelView running = waiting(0, 0), plain = waiting(1, 0), urgent = waiting(2, 0);
  urgent.priority = 1;
  urgent.missing_s = 100;
  EXPECT_THAT(run_order(*make_throughput_policy(), {plain, urgent, running}, {.model = 0}), ElementsAre(0, 2, 1));
}

}  // namespace
}  // namespace computron
