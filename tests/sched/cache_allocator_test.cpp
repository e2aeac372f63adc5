#include "computron/sched/cache_allocator.h"

#include <gmock/gmock.h>

#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Models 0, 1 and 2 of four pages each. A frame holds eight blocks.
class CacheAllocatorTest : public ::testing::Test {
 protected:
  explicit CacheAllocatorTest(std::vector<FakeModel> models = {3, small_model(4)}) : list_(std::move(models)) {}

  void make(int frames, int host_slots = 0, double link_bytes_per_s = kPageBytes / 0.001) {
    const SchedulerOptions options{.frames = frames,
                                   .host_slots = host_slots,
                                   .max_batch_tokens = 1000,
                                   .max_seqs = 4,
                                   .costs = {.link_bytes_per_s = link_bytes_per_s, .step_s = 0.01}};
    state_ = std::make_unique<SchedulerState>(list_.shapes(), make_fifo_policy(), options);
    caches_ = std::make_unique<CacheAllocator>(*state_, list_.names());
  }
  // In this order they are to run.
  void order(const std::vector<ModelId>& models) {
    double arrival_s = 0;
    for (const ModelId model : models) {
      state_->agenda.show({.model = model, .waiting = 1, .oldest_arrival_s = ++arrival_s});
    }
    state_->agenda.decide(models, {}, /*expects_more=*/false, /*now_s=*/9);
  }
  void fetch(ModelId model) {
    auto evictable = state_->agenda.evictable_for(model, 0);
    pool().prefetch(model, evictable, std::size_t{1} << 30, /*reserve=*/0);
  }
  // A request for the model whose prompt takes so many blocks. Its first pass is in flight.
  ModelWork::Handle begin(ModelId model, int blocks) {
    const SequenceId id = ++state_->last_sequence;
    const auto admit = [&](ModelWork& work) {
      work.enqueue(make_request(id, model, blocks * kBlockTokens - 5, /*max_tokens=*/5));
      work.admit_next(id);
    };
    state_->work.edit(model, admit);
    EXPECT_TRUE(caches_->allocate(model, state_->work[model].cache().count() + blocks));
    std::vector<SequenceChunk> chunks;
    const auto members = state_->work.edit(model, [&](ModelWork& work) {
      const PassPlan pass = work.choose({.tokens = 1000, .prompt_tokens = 1000, .logit_rows = 100, .blocks = 1000});
      return work.begin_pass(pass, ++step_, /*now_s=*/0, chunks);
    });
    for (const SequenceChunk& chunk : chunks) pool().state().extend(model, chunk);
    return members.at(0);
  }
  void report(ModelId model, ModelWork::Handle member, TokenId token = 7) {
    const SampledRow row{.token = token, .top = {}};
    PassResults results{.rows = {&row, 1}};
    state_->work.edit(model, [&](ModelWork& work) { work.take_results(member, results, /*now_s=*/1); });
  }
  StagePool& pool() { return state_->pools[0]; }

  FakeModelList list_;
  std::unique_ptr<SchedulerState> state_;
  std::unique_ptr<CacheAllocator> caches_;
  StepId step_ = 0;
};

TEST_F(CacheAllocatorTest, ACacheHasTheRoomBesideItsModelsPagesAndCachesThatAreWanted) {
  make(/*frames=*/10);
  order({0, 1});
  EXPECT_EQ(caches_->blocks_beside_others(0), 6 * 8);
  const auto member = begin(1, /*blocks=*/12);  // two frames
  EXPECT_EQ(caches_->blocks_beside_others(0), 4 * 8);
  EXPECT_EQ(caches_->blocks_beside_others(1), 6 * 8) << "its own cache is not in its way";
  report(1, member);
  EXPECT_EQ(caches_->blocks_beside_others(0), 4 * 8);
}

TEST_F(CacheAllocatorTest, WhatIsInReachIsFreeOrRunsLater) {
  make(/*frames=*/14);
  order({0, 1});
  for (const ModelId model : {0, 1, 2}) fetch(model);
  EXPECT_EQ(caches_->blocks_in_free_frames(0), 2 * 8);
  EXPECT_EQ(caches_->blocks_in_reach(0), 10 * 8) << "pages of models 1 and 2";
  EXPECT_EQ(caches_->blocks_in_reach(1), 6 * 8) << "those of model 0, which runs first, are not";
}

TEST_F(CacheAllocatorTest, AModelExceedsThePoolWithTooLargeACache) {
  make(/*frames=*/10);
  EXPECT_FALSE(caches_->exceeds_pool(0, 6 * 8));
  EXPECT_TRUE(caches_->exceeds_pool(0, 6 * 8 + 1));
  EXPECT_TRUE(caches_->can_ever_fit(0, 9 * 8)) << "a page at a time";
  EXPECT_FALSE(caches_->can_ever_fit(0, 9 * 8 + 1));
}

TEST_F(CacheAllocatorTest, AllocatingTakesFreeFramesThenPagesThenItsOwn) {
  make(/*frames=*/9);
  order({0, 1});
  fetch(0);
  fetch(1);
  EXPECT_TRUE(caches_->allocate(0, 8));
  EXPECT_EQ(pool().missing_pages(1), 0);
  EXPECT_TRUE(caches_->allocate(0, 3 * 8));
  EXPECT_EQ(pool().missing_pages(1), 2);
  EXPECT_EQ(pool().missing_pages(0), 0);
  EXPECT_TRUE(caches_->allocate(0, 6 * 8));
  EXPECT_EQ(pool().missing_pages(1), 4);
  EXPECT_EQ(pool().missing_pages(0), 1);
  EXPECT_EQ(pool().cache_frames(0), 6);
  EXPECT_EQ(state_->work[0].cache().count(), 6 * 8);
}

TEST_F(CacheAllocatorTest, ACacheInFlightIsNotEvictedAndNothingElseChangesEither) {
  make(/*frames=*/10);
  order({0, 1});
  const auto member = begin(1, /*blocks=*/20);
  pool().take_plan();
  EXPECT_FALSE(caches_->allocate(0, 5 * 8));
  EXPECT_THAT(pool().plan().caches, IsEmpty());
  report(1, member);
  EXPECT_TRUE(caches_->allocate(0, 5 * 8));
  EXPECT_EQ(pool().cache_frames(1), 0);
  EXPECT_THAT(state_->closed, ElementsAre(1)) << "it begins again, under a new number";
  EXPECT_EQ(state_->last_sequence, 2u);
  EXPECT_EQ(state_->work[1].sequences().computed_tokens(), 0);
}

TEST_F(CacheAllocatorTest, ACacheIsOffloadedWhereThatIsCheaper) {
  make(/*frames=*/10, /*host_slots=*/5, /*link_bytes_per_s=*/1e12);
  order({0, 1});
  report(1, begin(1, /*blocks=*/20));
  EXPECT_TRUE(caches_->allocate(0, 5 * 8));
  EXPECT_TRUE(pool().offloaded(1));
  EXPECT_THAT(state_->closed, IsEmpty());
  EXPECT_EQ(state_->work[1].cache().count(), 20) << "blocks keep their numbers";
  order({1});
  EXPECT_TRUE(caches_->allocate(1, 20));
  EXPECT_FALSE(pool().offloaded(1));
  EXPECT_EQ(pool().cache_frames(1), 3);
}

// What was counted before, when nobody had asked for room.
TEST_F(CacheAllocatorTest, AnOffloadedCacheIsInNobodysWay) {
  make(/*frames=*/10, /*host_slots=*/5, /*link_bytes_per_s=*/1e12);
  order({0, 1, 2});
  report(1, begin(1, /*blocks=*/20));
  EXPECT_EQ(caches_->blocks_beside_others(2), 3 * 8);
  EXPECT_TRUE(caches_->allocate(0, 5 * 8));
  ASSERT_TRUE(pool().offloaded(1));
  EXPECT_EQ(caches_->blocks_beside_others(2), 6 * 8);
}

TEST_F(CacheAllocatorTest, ThoseThatRunLastAreEvictedFirstAndNoMoreThanItTakes) {
  make(/*frames=*/12);
  order({0, 2, 1});
  report(1, begin(1, /*blocks=*/8));
  report(2, begin(2, /*blocks=*/16));
  EXPECT_TRUE(caches_->allocate(0, 6 * 8)) << "four pages, six frames, and two are left";
  EXPECT_EQ(pool().cache_frames(1), 0);
  EXPECT_EQ(pool().cache_frames(2), 2);
}

TEST_F(CacheAllocatorTest, TrimmingGivesBackWhatNobodyUses) {
  make(/*frames=*/12);
  order({0, 1});
  EXPECT_TRUE(caches_->allocate(2, 16));
  report(1, begin(1, /*blocks=*/8));
  EXPECT_TRUE(caches_->allocate(1, 3 * 8));
  caches_->trim(/*runs=*/1);
  EXPECT_EQ(pool().cache_frames(2), 0) << "no sequence runs";
  EXPECT_EQ(pool().cache_frames(1), 3) << "it is its turn";
  caches_->trim(std::nullopt);
  EXPECT_EQ(pool().cache_frames(1), 1);
  EXPECT_EQ(state_->work[1].cache().count(), 8);
}

class CacheAllocatorPinnedTest : public CacheAllocatorTest {
 protected:
  CacheAllocatorPinnedTest() : CacheAllocatorTest({small_model(4), pinned_model()}) {}
  static FakeModel pinned_model() {
    FakeModel model = small_model(3);
    model.pinned = true;
    return model;
  }
};

TEST_F(CacheAllocatorPinnedTest, PinnedPagesAreInEverybodysWayButTheirModels) {
  make(/*frames=*/10);
  order({0, 1});
  EXPECT_EQ(caches_->blocks_beside_others(0), 3 * 8);
  EXPECT_EQ(caches_->blocks_beside_others(1), 7 * 8);
  EXPECT_TRUE(caches_->can_ever_fit(0, 6 * 8));
  EXPECT_FALSE(caches_->can_ever_fit(0, 6 * 8 + 1));
  EXPECT_FALSE(caches_->can_ever_fit(1, 7 * 8 + 1)) << "all of a pinned model stays";
  fetch(1);
  EXPECT_EQ(caches_->blocks_in_reach(0), 7 * 8);
}

TEST_F(CacheAllocatorPinnedTest, APoolThatIsTooSmallIsRefused) {
  try {
    make(/*frames=*/4);
    FAIL() << "3 pinned pages, a page of model 0 and its cache need five frames";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model-0: on stage 0"));
  }
}

}  // namespace
}  // namespace computron::test
