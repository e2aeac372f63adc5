#include "computron/sched/stage_pool.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr std::size_t kEverything = std::size_t{1} << 40;

std::vector<PageId> resident(const StageState& state, ModelId model) {
  std::vector<PageId> pages;
  for (PageId p = 0; p < static_cast<PageId>(state.layout(model).pages()); ++p) {
    if (state.frame_of(model, p) != kNoFrame) pages.push_back(p);
  }
  return pages;
}

std::vector<PageId> fetched(const StagePlan& plan) {
  std::vector<PageId> pages;
  for (const Fetch& fetch : plan.fetches) pages.push_back(fetch.page);
  return pages;
}

// Three models of 4, 3 and 5 pages.
class StagePoolTest : public ::testing::Test {
 protected:
  StagePool make(int frames, int host_slots = 0) { return StagePool(model_list_.layouts(0), frames, host_slots); }
  StagePlan pass(StagePool& pool, ModelId model, std::vector<ModelId> evictable = {}, bool again = false) {
    EvictableModels models(std::move(evictable));
    pool.plan_pass(++step_, model, models, again);
    return pool.take_plan();
  }
  StagePlan prefetch(StagePool& pool, ModelId model, std::vector<ModelId> evictable = {},
                     std::size_t bytes = kEverything, int reserve = 0) {
    EvictableModels models(std::move(evictable));
    pool.prefetch(model, models, bytes, reserve);
    return pool.take_plan();
  }
  StagePlan grow(StagePool& pool, ModelId model, int frames, std::vector<ModelId> evictable = {}) {
    EvictableModels models(std::move(evictable));
    pool.grow_cache(model, frames, models);
    return pool.take_plan();
  }
  StagePlan release(StagePool& pool, ModelId model) {
    pool.release_cache(model);
    return pool.take_plan();
  }
  FakeModelList model_list_{{small_model(4), small_model(3), small_model(5)}};
  StepId step_ = 0;
};

TEST_F(StagePoolTest, MissingPagesAreFetchedInOrderAndPresentOnesAreNot) {
  StagePool pool = make(8);
  const std::size_t bytes = pool.counts().missing_bytes(0);
  EXPECT_GT(bytes, 0u);
  EXPECT_THAT(fetched(pass(pool, 0)), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(pool.missing_pages(0), 0);
  EXPECT_EQ(pool.counts().missing_bytes(0), 0u);
  EXPECT_THAT(pass(pool, 0).fetches, IsEmpty());
  EXPECT_THAT(fetched(pass(pool, 1)), ElementsAre(0, 1, 2));
}

TEST_F(StagePoolTest, FreeFramesGoBeforeAnybodysPages) {
  StagePool pool = make(12);
  pass(pool, 0);
  pass(pool, 1);
  pass(pool, 2, {0, 1});
  EXPECT_EQ(pool.missing_pages(0) + pool.missing_pages(1) + pool.missing_pages(2), 0);
}

TEST_F(StagePoolTest, EvictsTheLastPagesOfTheFirstCandidate) {
  StagePool pool = make(10);
  pass(pool, 0);
  pass(pool, 1);
  EXPECT_THAT(fetched(pass(pool, 2, {0, 1})), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(resident(pool.state(), 0), ElementsAre(0, 1));
  EXPECT_THAT(resident(pool.state(), 1), ElementsAre(0, 1, 2));
  EXPECT_GT(pool.counts().missing_bytes(0), 0u);
  EXPECT_THAT(fetched(pass(pool, 0, {1, 2})), ElementsAre(2, 3)) << "the head is still there";
  EXPECT_EQ(pool.counts().missing_bytes(0), 0u);
}

TEST_F(StagePoolTest, EvictsFromTheNextCandidateWhenTheFirstHasNoPages) {
  StagePool pool = make(7);
  pass(pool, 0);
  pass(pool, 1);
  pass(pool, 2, {1, 0});
  EXPECT_THAT(resident(pool.state(), 1), IsEmpty());
  EXPECT_THAT(resident(pool.state(), 0), ElementsAre(0, 1));
}

// A frame is free behind the last use of what it holds, not before.
TEST_F(StagePoolTest, AFetchWaitsForTheLastUseOfWhatTheFrameHolds) {
  StagePool pool = make(4);
  pass(pool, 0);  // step 1: uses 0 1 2 3 0
  pass(pool, 0);  // step 2
  const StagePlan plan = pass(pool, 1, {0});
  ASSERT_THAT(plan.fetches, SizeIs(3));
  EXPECT_EQ(plan.fetches[0].after, (ReleasePoint{2, 1}));
  EXPECT_EQ(plan.fetches[1].after, (ReleasePoint{2, 2}));
  EXPECT_EQ(plan.fetches[2].after, (ReleasePoint{2, 3}));
}

std::vector<FrameId> frames_of(const StagePlan& plan) {
  std::vector<FrameId> frames;
  for (const Fetch& fetch : plan.fetches) frames.push_back(fetch.frame);
  return frames;
}

// Of a plan's frames, how often the next page's is not the next one.
int breaks(const StagePlan& plan) {
  const std::vector<FrameId> frames = frames_of(plan);
  int count = 0;
  for (std::size_t i = 1; i < frames.size(); ++i) count += frames[i] == frames[i - 1] + 1 ? 0 : 1;
  return count;
}

// Devices read pages in neighbouring frames as one. These models' first pages are used
// last, which takes a break or two.
TEST_F(StagePoolTest, ModelsThatTakeTurnsLieInNeighbouringFrames) {
  StagePool pool = make(5);
  EXPECT_THAT(frames_of(pass(pool, 2)), ElementsAre(0, 1, 2, 3, 4));
  for (int turn = 0; turn < 10; ++turn) {
    for (const auto& [model, other] : {std::pair{0, 2}, {2, 0}, {1, 2}, {2, 1}}) {
      const StagePlan plan = pass(pool, static_cast<ModelId>(model), {static_cast<ModelId>(other)});
      EXPECT_GE(plan.fetches.size(), 3u);
      EXPECT_LE(breaks(plan), 2) << turn;
    }
  }
}

// A model with a tied head uses its first page last: what waits for that comes behind what need not.
TEST_F(StagePoolTest, FramesThatBecomeFreeEarlierAreFilledEarlier) {
  StagePool pool = make(5);
  pass(pool, 2);  // uses 0 1 2 3 4 0
  const StagePlan plan = pass(pool, 0, {2});
  ASSERT_THAT(frames_of(plan), ElementsAre(1, 2, 3, 4));
  const StagePlan next = pass(pool, 2, {0});
  EXPECT_THAT(frames_of(next), ElementsAre(2, 3, 4, 1)) << "frame 1 holds page 0 of the other, which is used last";
}

// What nobody has used for a while is idle, in whatever order it was used.
TEST_F(StagePoolTest, IdleFramesAreFilledFromTheFirst) {
  StagePool pool = make(8);
  pass(pool, 0);
  for (int step = 0; step < 20; ++step) pass(pool, 1);
  EXPECT_THAT(frames_of(pass(pool, 2, {0})), ElementsAre(0, 1, 2, 3, 7));
}

TEST_F(StagePoolTest, PrefetchTakesWhatIsAskedForAndLeavesTheReserve) {
  StagePool pool = make(8);
  EXPECT_THAT(fetched(prefetch(pool, 2, {}, /*bytes=*/1)), ElementsAre(0));
  EXPECT_THAT(fetched(prefetch(pool, 2, {}, /*bytes=*/kPageBytes + 1)), ElementsAre(1, 2));
  EXPECT_THAT(fetched(prefetch(pool, 2, {}, kEverything, /*reserve=*/4)), ElementsAre(3));
  EXPECT_THAT(fetched(prefetch(pool, 2)), ElementsAre(4));
  EXPECT_THAT(fetched(prefetch(pool, 2)), IsEmpty());
}

TEST_F(StagePoolTest, PrefetchStopsWhereNoFrameIsToBeHad) {
  StagePool pool = make(6);
  pass(pool, 0);
  EXPECT_THAT(fetched(prefetch(pool, 2)), ElementsAre(0, 1));
  EXPECT_THAT(resident(pool.state(), 0), SizeIs(4));
}

// --- Caches -----------------------------------------------------------------------------------------------------

TEST_F(StagePoolTest, CacheGrowsAndIsReleased) {
  StagePool pool = make(6);
  const StagePlan grown = grow(pool, 0, 4);
  ASSERT_THAT(grown.caches, SizeIs(1));
  EXPECT_EQ(grown.caches[0].added, pool.state().cache(0));
  EXPECT_THAT(grow(pool, 0, 4).caches, IsEmpty()) << "a change of nothing";
  const StagePlan released = release(pool, 0);
  ASSERT_THAT(released.caches, SizeIs(1));
  EXPECT_EQ(released.caches[0].taken, 4u);
  EXPECT_THAT(pool.state().cache(0), IsEmpty());
  EXPECT_EQ(pool.free_frames(), 6);
  EXPECT_THAT(release(pool, 0).caches, IsEmpty());
}

TEST_F(StagePoolTest, CacheEvictsPagesToo) {
  StagePool pool = make(6);
  pass(pool, 0);
  grow(pool, 1, 4, {0});
  EXPECT_THAT(resident(pool.state(), 0), ElementsAre(0, 1));
  EXPECT_EQ(pool.cache_frames(1), 4);
  EXPECT_GT(pool.counts().missing_bytes(0), 0u);
}

// The cache's last reader was a pass: what comes into its frames waits for the end of that.
TEST_F(StagePoolTest, AFrameOfAReleasedCacheIsFreeBehindItsModelsLastPass) {
  StagePool pool = make(4);
  grow(pool, 1, 1);
  pass(pool, 1);
  release(pool, 1);
  const StagePlan plan = prefetch(pool, 0, {});
  ASSERT_THAT(plan.fetches, SizeIs(1));
  EXPECT_EQ(plan.fetches[0].after, (ReleasePoint{1, ReleasePoint::kEnd}));
}

TEST_F(StagePoolTest, CacheAndModelsNotNamedAreNeverGivenUp) {
  StagePool pool = make(6);
  pass(pool, 0);
  grow(pool, 1, 2);
  EXPECT_THROW(grow(pool, 1, 3, {1, 2}), Error);
  EXPECT_EQ(pool.missing_pages(0), 0);
  EXPECT_EQ(pool.cache_frames(1), 2);
}

TEST_F(StagePoolTest, AnOffloadedCacheIsReloadedIntoOtherFrames) {
  StagePool pool = make(8, /*host_slots=*/5);
  grow(pool, 1, 2);
  pass(pool, 1);
  pool.offload_cache(1);
  const StagePlan out = pool.take_plan();
  ASSERT_THAT(out.caches, SizeIs(1));
  EXPECT_EQ(out.caches[0].after, (ReleasePoint{1, ReleasePoint::kEnd}));
  EXPECT_TRUE(pool.offloaded(1));
  EXPECT_EQ(pool.free_slots(), 3);
  pass(pool, 2, {1});
  EvictableModels second({2});
  pool.reload_cache(1, second);
  const StagePlan back = pool.take_plan();
  ASSERT_THAT(back.caches, SizeIs(1));
  EXPECT_EQ(back.caches[0].slots, out.caches[0].slots);
  EXPECT_FALSE(pool.offloaded(1));
  EXPECT_EQ(pool.cache_frames(1), 2);
  EXPECT_EQ(pool.free_slots(), 5);
}

TEST_F(StagePoolTest, KnowsWhoHasPages) {
  StagePool pool(model_list_.layouts(0), /*frames=*/9, 0, {false, true, false});
  EXPECT_THAT(pool.counts().resident_models(), IsEmpty());
  pass(pool, 0);
  pass(pool, 1);
  EXPECT_THAT(pool.counts().resident_models(), UnorderedElementsAre(0, 1));
  EXPECT_EQ(pool.counts().unpinned_pages(), 4) << "model 1 is pinned";
  pass(pool, 2, {0});
  EXPECT_EQ(pool.counts().unpinned_pages(), 6);
  grow(pool, 1, 1, {0});
  EXPECT_THAT(pool.counts().resident_models(), UnorderedElementsAre(1, 2)) << "the last page of model 0 became cache";
  EXPECT_EQ(pool.counts().unpinned_pages(), 5);
}

// --- Larger than the pool ---------------------------------------------------------------------------------------

// The plan of a pass of model 0, of which another will follow.
StagePlan pass_alone(StagePool& pool, StepId step) {
  EvictableModels nobody({});
  pool.plan_pass(step, 0, nobody, /*again=*/true);
  return pool.take_plan();
}

// Every page use finds its page, and a page only ever goes when its use in this pass is over or far.
TEST(StagePoolOutOfCore, EachPassFetchesWhatThePoolLacksAndTheRotatingFrames) {
  for (const int span : {1, 2, 4}) {
    for (const int frames : {10, 20, 45}) {
      FakeModel model = small_model(50);
      model.span = span;
      const FakeModelList model_list({model});
      StagePool pool(model_list.layouts(0), frames);
      for (StepId step = 1; step <= 6; ++step) {
        const StagePlan plan = pass_alone(pool, step);
        const int turning = std::clamp(frames / 4, span, 2 * span);
        EXPECT_TRUE(step <= 2 || std::ssize(plan.fetches) <= 50 - frames + turning + 2) << frames << " " << span;
        EXPECT_EQ(pool.missing_pages(0), 50 - frames);
      }
    }
  }
}

// A page of a few that stay, then a few that rotate: the link has work while the first are computed with.
TEST(StagePoolOutOfCore, FetchesAreSpreadOverThePass) {
  const FakeModelList model_list({small_model(100)});
  StagePool pool(model_list.layouts(0), 50);
  StagePlan plan;
  for (StepId step = 1; step <= 4; ++step) {
    plan = pass_alone(pool, step);
  }
  for (std::size_t i = 1; i < plan.fetches.size(); ++i) {
    const auto gap = static_cast<int>(plan.fetches[i].page) - static_cast<int>(plan.fetches[i - 1].page);
    EXPECT_LE(gap, 3);  // negative: the first page of the next pass
  }
}

// A tied head: page 0 is used last and first.
TEST(StagePoolOutOfCore, WhatAPassEndsWithAndTheNextBeginsWithStays) {
  for (const int frames : {10, 20, 45}) {
    const FakeModelList model_list({small_model(50)});
    StagePool pool(model_list.layouts(0), frames);
    for (StepId step = 1; step <= 6; ++step) {
      const StagePlan plan = pass_alone(pool, step);
      EXPECT_NE(pool.state().frame_of(0, 0), kNoFrame) << frames << " frames, step " << step;
      EXPECT_TRUE(step == 1 || plan.fetches.front().page != 0) << frames << " frames, step " << step;
    }
  }
}
TEST(StagePoolOutOfCore, ThePoolCannotBeSmallerThanAnOperation) {
  FakeModel model = small_model(20);
  model.span = 5;
  const FakeModelList model_list({model});
  StagePool enough(model_list.layouts(0), 5), short_of_one(model_list.layouts(0), 4);
  EXPECT_EQ(enough.fewest_frames(0), 5);
  EXPECT_NO_THROW(pass_alone(enough, 1));
  EXPECT_THROW(pass_alone(short_of_one, 1), Error);
}

// What a plan says is what the pool did: a rank that carries it out is in the same state.
TEST_F(StagePoolTest, PlansCarryEverythingOver) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    const int frames = 8 + static_cast<int>(random() % 8);
    StagePool pool = make(frames, /*host_slots=*/20);
    StageState rank(model_list_.layouts(0), frames, 20);
    for (StepId id = 1; id <= 12; ++id) {
      const auto model = static_cast<ModelId>(random() % 3);
      std::vector<ModelId> others{(model + 1) % 3, (model + 2) % 3};
      if (random() % 2 == 0) std::swap(others[0], others[1]);
      for (const ModelId other : others) {
        if (pool.cache_frames(other) > 0) random() % 2 == 0 ? pool.offload_cache(other) : pool.release_cache(other);
      }
      EvictableModels all({others[0], others[1], model}), both(others), second({others[1]});
      if (pool.offloaded(model)) pool.reload_cache(model, all);
      pool.grow_cache(model, static_cast<int>(random() % 4), all);
      pool.plan_pass(id, model, both, random() % 2 == 0);
      pool.prefetch(others[0], second, random() % 4000, static_cast<int>(random() % 3));
      const Step step{.id = id, .model = model, .closed = {}, .chunks = {}, .stages = {pool.take_plan()}};
      rank.apply(step, 0);
      ASSERT_EQ(rank.digest(), pool.state().digest()) << "round " << round << " step " << id;
    }
  }
}

}  // namespace
}  // namespace computron::test
