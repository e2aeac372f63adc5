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

std::vector<PageId> resident(const StageState& state, ModelId model) {
  std::vector<PageId> pages;
  for (PageId p = 0; p < static_cast<PageId>(state.image(model).pages()); ++p) {
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
  StagePool make(int frames) { return StagePool(roster_.images(0), frames); }
  StagePlan fetch(StagePool& pool, ModelId model, std::vector<ModelId> coldest_first = {}) {
    StagePlan plan;
    pool.fetch_missing(model, coldest_first, plan);
    return plan;
  }
  StagePlan resize(StagePool& pool, ModelId model, int frames, std::vector<ModelId> coldest_first = {}) {
    StagePlan plan;
    pool.resize_cache(model, frames, coldest_first, plan);
    return plan;
  }
  FakeRoster roster_{{small_model(4), small_model(3), small_model(5)}};
};

TEST_F(StagePoolTest, MissingPagesAreFetchedInOrderAndPresentOnesAreNot) {
  StagePool pool = make(8);
  EXPECT_EQ(pool.missing_pages(0), 4);
  EXPECT_THAT(fetched(fetch(pool, 0)), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(pool.missing_pages(0), 0);
  EXPECT_THAT(fetch(pool, 0).fetches, IsEmpty());
  EXPECT_THAT(fetched(fetch(pool, 1)), ElementsAre(0, 1, 2));
}

TEST_F(StagePoolTest, FreeFramesGoBeforeAnybodysPages) {
  StagePool pool = make(12);
  fetch(pool, 0);
  fetch(pool, 1);
  fetch(pool, 2, {0, 1});
  EXPECT_EQ(pool.missing_pages(0) + pool.missing_pages(1) + pool.missing_pages(2), 0);
}

TEST_F(StagePoolTest, TheColdestModelLosesItsLastPages) {
  StagePool pool = make(10);
  fetch(pool, 0);
  fetch(pool, 1);
  EXPECT_THAT(fetched(fetch(pool, 2, {0, 1})), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(resident(pool.state(), 0), ElementsAre(0, 1));
  EXPECT_THAT(resident(pool.state(), 1), ElementsAre(0, 1, 2));
  EXPECT_THAT(fetched(fetch(pool, 0, {1, 2})), ElementsAre(2, 3)) << "the head is still there";
}

TEST_F(StagePoolTest, TheNextColdestLosesPagesWhenTheColdestHasNone) {
  StagePool pool = make(7);
  fetch(pool, 0);
  fetch(pool, 1);
  fetch(pool, 2, {1, 0});
  EXPECT_THAT(resident(pool.state(), 1), IsEmpty());
  EXPECT_THAT(resident(pool.state(), 0), ElementsAre(0, 1));
}

TEST_F(StagePoolTest, CacheGrowsAndShrinksAtItsEnd) {
  StagePool pool = make(6);
  const StagePlan grown = resize(pool, 0, 4);
  ASSERT_THAT(grown.caches, SizeIs(1));
  EXPECT_EQ(grown.caches[0].added, pool.state().cache(0));
  EXPECT_EQ(grown.caches[0].taken, 0u);
  const std::vector<FrameId> before = pool.state().cache(0);

  const StagePlan shrunk = resize(pool, 0, 1);
  ASSERT_THAT(shrunk.caches, SizeIs(1));
  EXPECT_EQ(shrunk.caches[0].taken, 3u);
  EXPECT_THAT(shrunk.caches[0].added, IsEmpty());
  EXPECT_THAT(pool.state().cache(0), ElementsAre(before[0]));
  EXPECT_THAT(resize(pool, 0, 1).caches, IsEmpty()) << "a change of nothing";
}

TEST_F(StagePoolTest, CacheTakesPagesOfTheColdestToo) {
  StagePool pool = make(6);
  fetch(pool, 0);
  resize(pool, 1, 4, {0});
  EXPECT_THAT(resident(pool.state(), 0), ElementsAre(0, 1));
  EXPECT_EQ(pool.cache_frames(1), 4);
}

TEST_F(StagePoolTest, FramesOfACacheGivenBackAreFreeAgain) {
  StagePool pool = make(6);
  resize(pool, 0, 3);
  fetch(pool, 1);
  resize(pool, 0, 0);
  fetch(pool, 1);
  resize(pool, 2, 3, {1});
  EXPECT_EQ(pool.missing_pages(1), 0) << "pages were given up beside free frames";
}

TEST_F(StagePoolTest, CacheAndModelsNotNamedAreNeverGivenUp) {
  StagePool pool = make(6);
  fetch(pool, 0);
  resize(pool, 1, 2);
  EXPECT_THROW(resize(pool, 1, 3, {1, 2}), Error);
  EXPECT_EQ(pool.missing_pages(0), 0);
  EXPECT_EQ(pool.cache_frames(1), 2);
}

// What a plan says is what the pool did: a rank that carries it out is in the same state.
TEST_F(StagePoolTest, PlansCarryEverythingOver) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    const int frames = 12 + static_cast<int>(random() % 4);
    StagePool pool = make(frames);
    StageState rank(roster_.images(0), frames);
    for (StepId id = 1; id <= 12; ++id) {
      const auto model = static_cast<ModelId>(random() % 3);
      std::vector<ModelId> others{(model + 1) % 3, (model + 2) % 3};
      if (random() % 2 == 0) std::swap(others[0], others[1]);
      Step step{.id = id, .model = model, .closed = {}, .chunks = {}, .stages = std::vector<StagePlan>(1)};
      for (const ModelId other : others) {
        const int kept = std::min(pool.cache_frames(other), static_cast<int>(random() % 2));
        pool.resize_cache(other, kept, {}, step.stages[0]);
      }
      pool.resize_cache(model, static_cast<int>(random() % 5), others, step.stages[0]);
      pool.fetch_missing(model, others, step.stages[0]);
      rank.apply(step, 0);
      ASSERT_EQ(rank.digest(), pool.state().digest()) << "round " << round << " step " << id;
      ASSERT_EQ(pool.missing_pages(model), 0);
    }
  }
}

}  // namespace
}  // namespace computron::test
