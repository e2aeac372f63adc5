#include "computron/sched/prefetcher.h"

#include <gmock/gmock.h>

#include <limits>

#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr double kPage_s = 0.01;
constexpr double kNever = std::numeric_limits<double>::infinity();

// Models of one page of kPageBytes, whose transfer takes kPage_s; fetches are issued two pages ahead.
class PrefetcherTest : public ::testing::Test {
 protected:
  void make(int models, int frames, const char* policy = "fifo") {
    list_ = std::make_unique<FakeModelList>(std::vector<FakeModel>(static_cast<std::size_t>(models), model_));
    const SchedulerOptions options{
        .frames = frames, .fetch_ahead_s = 1.9 * kPage_s, .costs = {.link_bytes_per_s = kPageBytes / kPage_s}};
    state_ = std::make_unique<SchedulerState>(list_->shapes(), make_policy(policy), options);
    caches_ = std::make_unique<CacheAllocator>(*state_, list_->names());
    prefetcher_ = std::make_unique<Prefetcher>(*state_, *caches_);
  }
  void order(const std::vector<ModelId>& models) {
    double arrival_s = 0;
    for (const ModelId model : models) {
      state_->agenda.show({.model = model, .waiting = 1, .oldest_arrival_s = ++arrival_s});
    }
    state_->agenda.decide(models, {}, /*expects_more=*/true, /*now_s=*/0);
  }
  std::vector<ModelId> fetched() {
    std::vector<ModelId> models;
    for (const Fetch& fetch : state_->pools[0].take_plan().fetches) models.push_back(fetch.model);
    return models;
  }
  // A step has been executed; so many pages have been copied by then.
  void report(int pages, double now_s) {
    const StageTimes times{.link_bytes = static_cast<std::size_t>(pages) * kPageBytes, .link_busy_s = pages * kPage_s};
    prefetcher_->observe({.id = 1, .model = 0, .rows = 0, .members = {}, .end_s = 0}, {&times, 1}, now_s);
  }
  double wait_s(ModelId model, double now_s) const { return prefetcher_->wait_s(model, now_s); }

  FakeModel model_ = small_model(1);
  std::unique_ptr<FakeModelList> list_;
  std::unique_ptr<SchedulerState> state_;
  std::unique_ptr<CacheAllocator> caches_;
  std::unique_ptr<Prefetcher> prefetcher_;
};

TEST_F(PrefetcherTest, FetchesAheadInTheRunOrderUntilTheLinkHasWorkForAWhile) {
  make(/*models=*/5, /*frames=*/10);
  order({3, 1, 4, 0, 2});
  prefetcher_->prefetch(0);
  EXPECT_THAT(fetched(), ElementsAre(3, 1));
  prefetcher_->prefetch(0);
  EXPECT_THAT(fetched(), IsEmpty());
  prefetcher_->prefetch(kPage_s);
  EXPECT_THAT(fetched(), ElementsAre(4));
}

// Two pages' time is that of four, where half of each crosses the link.
TEST_F(PrefetcherTest, FetchesMoreAheadWherePagesAreCoded) {
  model_.link_share = 0.5;
  make(/*models=*/5, /*frames=*/10);
  order({3, 1, 4, 0, 2});
  EXPECT_DOUBLE_EQ(wait_s(3, 0), kPage_s / 2);
  EXPECT_EQ(state_->pools[0].counts().missing_bytes(3), kPageBytes / 2);
  prefetcher_->prefetch(0);
  EXPECT_THAT(fetched(), ElementsAre(3, 1, 4, 0));
  EXPECT_DOUBLE_EQ(wait_s(0, 0), 2 * kPage_s);
  report(1, kPage_s);  // a page's bytes: two coded pages
  EXPECT_NEAR(wait_s(0, kPage_s), kPage_s, 1e-9);
}

TEST_F(PrefetcherTest, CountsFromTheEndOfWhatIsComputed) {
  make(5, 10);
  order({3, 1, 4, 0, 2});
  state_->in_flight.push_back({.id = 1, .model = 3, .rows = 1, .members = {}, .end_s = 2 * kPage_s});
  prefetcher_->prefetch(0);
  EXPECT_THAT(fetched(), ElementsAre(3, 1, 4, 0));
}

TEST_F(PrefetcherTest, TakesNoPageOfAModelThatRunsSooner) {
  make(5, 2);
  order({3, 1, 4});
  prefetcher_->prefetch(0);
  prefetcher_->prefetch(5 * kPage_s);
  EXPECT_THAT(fetched(), ElementsAre(3, 1));
  order({4, 3, 1});
  EXPECT_TRUE(prefetcher_->can_go_on(4));
  prefetcher_->prefetch(10 * kPage_s);
  EXPECT_THAT(fetched(), ElementsAre(4)) << "in place of model 1, and model 3 stays";
  EXPECT_EQ(state_->pools[0].missing_pages(3), 0);
}

TEST_F(PrefetcherTest, WaitsForWhatIsMissingOrOnItsWay) {
  make(3, 10);
  order({0, 1, 2});
  EXPECT_DOUBLE_EQ(wait_s(0, 0), kPage_s);
  prefetcher_->prefetch(0);  // 0, then 1
  EXPECT_DOUBLE_EQ(wait_s(0, 0), kPage_s);
  EXPECT_DOUBLE_EQ(wait_s(1, 0), 2 * kPage_s);
  EXPECT_DOUBLE_EQ(wait_s(2, 0), 3 * kPage_s) << "behind both";
  EXPECT_FALSE(prefetcher_->is_ready(0, 0.5 * kPage_s));
  EXPECT_TRUE(prefetcher_->is_ready(0, 1.01 * kPage_s));
  EXPECT_FALSE(prefetcher_->is_ready(2, 9)) << "it has not been fetched";
}

// What ranks report moves the end of the link's work, and with it whatever was to land there.
TEST_F(PrefetcherTest, PredictionsFollowReports) {
  make(3, 10);
  order({0, 1, 2});
  prefetcher_->prefetch(0);  // 0, then 1
  fetched();
  report(/*pages=*/1, /*now_s=*/1.5 * kPage_s);  // late by half a page
  EXPECT_NEAR(wait_s(1, 1.5 * kPage_s), kPage_s, 1e-9);
  EXPECT_EQ(wait_s(0, 1.5 * kPage_s), 0) << "landed";
  report(/*pages=*/1, /*now_s=*/4 * kPage_s);  // very late
  EXPECT_NEAR(wait_s(1, 4 * kPage_s), kPage_s, 1e-9);
  EXPECT_EQ(wait_s(0, 4 * kPage_s), 0);
  report(/*pages=*/2, /*now_s=*/4.5 * kPage_s);
  EXPECT_NEAR(wait_s(1, 4.5 * kPage_s), 0, 1e-9);
  EXPECT_NEAR(wait_s(2, 4.5 * kPage_s), kPage_s, 1e-9) << "the link is free";
}

TEST_F(PrefetcherTest, NothingLandsLaterThanTheLinkIsThrough) {
  make(3, 10);
  order({0, 1, 2});
  prefetcher_->prefetch(0);
  report(/*pages=*/2, /*now_s=*/0.2 * kPage_s);  // faster than predicted
  EXPECT_NEAR(wait_s(0, 0.2 * kPage_s), 0, 1e-9);
  EXPECT_NEAR(wait_s(1, 0.2 * kPage_s), 0, 1e-9);
}

TEST_F(PrefetcherTest, AStepOfFetchesIsPlannedWhereALinkWouldRunDry) {
  make(4, 10);
  order({2, 1, 3});
  EXPECT_EQ(prefetcher_->plan_fetch_step(0), 2u);
  EXPECT_THAT(fetched(), ElementsAre(2, 1));
  EXPECT_EQ(prefetcher_->plan_fetch_step(0.5 * kPage_s), std::nullopt) << "half of the time ahead is left";
  const double wakes_s = prefetcher_->wakes_s(0.5 * kPage_s);
  EXPECT_GT(wakes_s, 0.5 * kPage_s);
  EXPECT_EQ(prefetcher_->plan_fetch_step(wakes_s + 1e-9), 2u);
  EXPECT_THAT(fetched(), ElementsAre(3));
  EXPECT_EQ(prefetcher_->wakes_s(wakes_s + 1e-9), kNever) << "all is there";
  EXPECT_EQ(prefetcher_->plan_fetch_step(10), std::nullopt);
}

TEST_F(PrefetcherTest, FetchesCandidatesWhereNobodyHasWork) {
  make(4, 10, "balanced");
  for (const ModelId model : {1, 2}) {
    const double gap_s = 10.0 - model;
    state_->agenda.show({.model = model, .arrival_gap_s = gap_s, .arrival_gap2_s2 = gap_s * gap_s});
  }
  state_->agenda.decide({}, {}, /*expects_more=*/true, /*now_s=*/1);
  EXPECT_EQ(prefetcher_->plan_fetch_step(1), 2u) << "it is wanted sooner";
  EXPECT_THAT(fetched(), ElementsAre(2, 1));
  state_->agenda.decide({}, {}, /*expects_more=*/true, /*now_s=*/2);
  EXPECT_EQ(prefetcher_->plan_fetch_step(2), std::nullopt);
}

TEST_F(PrefetcherTest, TellsOnceThatASwapBegins) {
  make(2, 10);
  order({0, 1});
  prefetcher_->prefetch(0);
  EXPECT_THAT(prefetcher_->take_swaps(), ElementsAre(0, 1));
  EXPECT_THAT(prefetcher_->take_swaps(), IsEmpty());
  EvictableModels both({0, 1});
  state_->pools[0].grow_cache(1, 10, both);
  state_->pools[0].release_cache(1);
  prefetcher_->forget_swap(1);
  order({0, 1});
  prefetcher_->fetch_missing(/*step=*/1, 0, /*again=*/false, /*now_s=*/1);
  prefetcher_->fetch_missing(/*step=*/2, 1, /*again=*/false, /*now_s=*/1);
  EXPECT_THAT(prefetcher_->take_swaps(), ElementsAre(1)) << "model 0 is still in its first";
}

TEST_F(PrefetcherTest, APassFetchesAllThatItsModelLacks) {
  list_ = std::make_unique<FakeModelList>(std::vector<FakeModel>{small_model(5)});
  const SchedulerOptions options{.frames = 8, .costs = {.link_bytes_per_s = kPageBytes / kPage_s}};
  state_ = std::make_unique<SchedulerState>(list_->shapes(), make_fifo_policy(), options);
  caches_ = std::make_unique<CacheAllocator>(*state_, list_->names());
  prefetcher_ = std::make_unique<Prefetcher>(*state_, *caches_);
  order({0});
  EXPECT_TRUE(caches_->allocate(0, 8));
  prefetcher_->fetch_missing(/*step=*/1, 0, /*again=*/true, /*now_s=*/0);
  EXPECT_THAT(fetched(), SizeIs(5));
  EXPECT_NEAR(wait_s(0, 0), static_cast<double>(list_->shape(0).layouts[0]->total_used_bytes()) / kPageBytes * kPage_s,
              1e-9);
}

}  // namespace
}  // namespace computron::test
