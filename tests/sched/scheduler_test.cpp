#include "computron/sched/scheduler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <cmath>

#include "tests/sched/driver.h"

namespace computron::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr SchedulerOptions kRoomy{.frames = 100, .max_batch_tokens = 1000, .max_seqs = 100, .steps_in_flight = 1};

// Runs to the end under all rules.
void run(Driver& driver) { ASSERT_EQ(driver.run(), ""); }

// Models by batch of the fifo policy: a batch begins where requests stop waiting.
std::vector<ModelId> batches(const Driver& driver) {
  std::vector<ModelId> models;
  for (const ExecutedStep& executed : driver.steps()) {
    if (executed.waiting_after < executed.waiting_before) models.push_back(executed.step.model);
  }
  return models;
}

// Requests of each batch.
std::vector<std::size_t> batch_sizes(const Driver& driver) {
  std::vector<std::size_t> sizes;
  for (const ExecutedStep& executed : driver.steps()) {
    if (executed.waiting_after < executed.waiting_before) {
      sizes.push_back(executed.waiting_before - executed.waiting_after);
    }
  }
  return sizes;
}

std::vector<PageId> resident(const Driver& driver, ModelId model) {
  const StageState& state = driver.stage(0);
  std::vector<PageId> pages;
  for (PageId p = 0; p < static_cast<PageId>(state.layout(model).pages()); ++p) {
    if (state.frame_of(model, p) != kNoFrame) pages.push_back(p);
  }
  return pages;
}

Request endless(RequestId id, ModelId model, int prompt_tokens, int max_tokens, double arrival_s = 0) {
  Request request = make_request(id, model, prompt_tokens, max_tokens, arrival_s);
  request.ignore_eos = true;
  return request;
}

// --- Order ------------------------------------------------------------------------------------------------------

TEST(SchedulerOrder, TheModelWithTheOldestRequestRunsAllItHasThenTheNext) {
  const FakeModelList model_list({small_model(3), small_model(2), small_model(4)});
  Driver driver(model_list, kRoomy);
  const ModelId models[] = {1, 0, 1, 2, 0};
  for (RequestId id = 0; id < 5; ++id) driver.submit(endless(id, models[id], 5, 3));
  run(driver);
  EXPECT_THAT(batches(driver), ElementsAre(1, 0, 2));
  EXPECT_THAT(driver.finished(), ElementsAre(0, 2, 1, 4, 3));
}

// Requests that arrive during a batch wait for the next one, even of the model that runs.
TEST(SchedulerOrder, ABatchRunsToCompletionWhoeverArrives) {
  const FakeModelList model_list({small_model(1), small_model(1)});
  Driver driver(model_list, kRoomy);
  driver.submit(endless(0, 0, 5, 50, 0));
  driver.submit(endless(1, 1, 5, 50, 0.01));
  driver.submit(endless(2, 0, 5, 50, 0.02));
  run(driver);
  EXPECT_THAT(batches(driver), ElementsAre(0, 1, 0));
  EXPECT_THAT(driver.finished(), ElementsAre(0, 1, 2));
}

TEST(SchedulerOrder, AnOlderRequestReadLateStillGoesFirst) {
  const FakeModelList model_list({small_model(1), small_model(1), small_model(1)});
  Driver driver(model_list, {.frames = 100, .max_seqs = 1, .steps_in_flight = 1});
  driver.submit(endless(0, 0, 5, 50, 0));
  driver.submit(endless(1, 1, 5, 5, 0.004));
  driver.submit(endless(2, 2, 5, 5, 0.003));
  driver.submit(endless(3, 1, 5, 5, 0.001), /*at_s=*/0.01);
  run(driver);
  EXPECT_THAT(driver.finished(), ElementsAre(0, 3, 2, 1));
}

TEST(SchedulerOrder, SaysHowLongToWait) {
  const FakeModelList model_list({small_model(1)});
  Scheduler scheduler(model_list.shapes(), model_list.names(), make_fifo_policy(), kRoomy);
  const auto wait = [&](double now_s) {
    const Decision decision = scheduler.next(now_s);
    return std::holds_alternative<WaitUntil>(decision) ? std::get<WaitUntil>(decision).time_s : -1;
  };
  EXPECT_TRUE(std::isinf(wait(0))) << "a request may still come";
  scheduler.submit(endless(1, 0, 5, 1, 4.5));
  scheduler.submit(endless(0, 0, 5, 1, 2.5));
  EXPECT_EQ(wait(0), 2.5);
  EXPECT_EQ(wait(2.4), 2.5);
  EXPECT_EQ(scheduler.waiting(), 2u);
  const Decision decision = scheduler.next(2.5);
  ASSERT_TRUE(std::holds_alternative<PlannedStep>(decision));
  EXPECT_EQ(scheduler.waiting(), 1u);
  EXPECT_EQ(scheduler.running_model(), 0u);
  EXPECT_EQ(wait(2.6), 4.5) << "unless the step completes before";
  const SampledRow row{.token = 7, .top = {}};
  scheduler.completed(std::get<PlannedStep>(decision).step.id, {std::span(&row, 1)}, 3.0);
  EXPECT_EQ(wait(3.0), 4.5);
  const auto completions = scheduler.take_completions();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].first_token_s, 3.0);
  EXPECT_EQ(completions[0].finished_s, 3.0);
  EXPECT_EQ(completions[0].arrival_s, 2.5);
}

TEST(SchedulerOrder, IsDoneWhenTheInputIsClosedAndNothingIsLeft) {
  const FakeModelList model_list({small_model(1)});
  Scheduler scheduler(model_list.shapes(), model_list.names(), make_fifo_policy(), kRoomy);
  scheduler.submit(endless(0, 0, 5, 1, 1.0));
  scheduler.close_input();
  EXPECT_TRUE(std::holds_alternative<WaitUntil>(scheduler.next(0)));
  const Decision decision = scheduler.next(1.0);
  ASSERT_TRUE(std::holds_alternative<PlannedStep>(decision));
  EXPECT_TRUE(std::holds_alternative<WaitUntil>(scheduler.next(1.0)));
  const SampledRow row{.token = 7, .top = {}};
  scheduler.completed(1, {std::span(&row, 1)}, 2.0);
  EXPECT_TRUE(std::holds_alternative<AllDone>(scheduler.next(2.0)));
}

// Who submits may hold requests back until others are done. A policy that wants to know all requests does not wait for
// those, or each would wait for the other.
TEST(SchedulerOrder, EveryPolicyDecidesOnceTheInputHasEndedThoughRequestsAreHeldBack) {
  for (const char* policy : {"fifo", "balanced", "throughput"}) {
    SCOPED_TRACE(policy);
    const FakeModelList model_list({small_model(1)});
    Scheduler scheduler(model_list.shapes(), model_list.names(), make_policy(policy), kRoomy);
    const auto serve = [&](RequestId id) {
      scheduler.submit(endless(id, 0, 5, 1));
      EXPECT_TRUE(scheduler.has_work(0));
      const Decision decision = scheduler.next(0);
      ASSERT_TRUE(std::holds_alternative<PlannedStep>(decision));
      const SampledRow row{.token = 7, .top = {}};
      scheduler.completed(std::get<PlannedStep>(decision).step.id, {std::span(&row, 1)}, 0);
      EXPECT_FALSE(scheduler.has_work(0));
    };
    scheduler.note_input_end();
    for (const RequestId id : {0, 1, 2}) {
      serve(id);
      EXPECT_TRUE(std::holds_alternative<WaitUntil>(scheduler.next(0))) << "another is held back";
    }
    scheduler.close_input();
    EXPECT_TRUE(std::holds_alternative<AllDone>(scheduler.next(0)));
  }
}

TEST(SchedulerOrder, OnlyAPolicyThatPlansAheadWaitsForTheInput) {
  const FakeModelList model_list({small_model(1)});
  for (const char* policy : {"fifo", "balanced", "throughput"}) {
    SCOPED_TRACE(policy);
    const bool plans_ahead = make_policy(policy)->plans_ahead();
    Scheduler scheduler(model_list.shapes(), model_list.names(), make_policy(policy), kRoomy);
    EXPECT_EQ(scheduler.waits_for_input(0), plans_ahead);
    scheduler.submit(endless(0, 0, 5, 1, /*arrival_s=*/1));
    EXPECT_FALSE(scheduler.has_work(0.5));
    EXPECT_TRUE(scheduler.has_work(1));
    EXPECT_EQ(std::holds_alternative<WaitUntil>(scheduler.next(1)), plans_ahead);
    scheduler.note_input_end();
    EXPECT_FALSE(scheduler.waits_for_input(0));
  }
}

TEST(SchedulerOrder, StepsThatCompleteWronglyAreRefused) {
  const FakeModelList model_list({small_model(1)});
  Scheduler scheduler(model_list.shapes(), model_list.names(), make_fifo_policy(), kRoomy);
  EXPECT_THROW(scheduler.completed(1, {}, 0), Error) << "nothing is in flight";
  scheduler.submit(endless(0, 0, 5, 3));
  scheduler.submit(endless(1, 0, 5, 3));
  scheduler.next(0);
  const std::vector<SampledRow> rows(3);
  EXPECT_THROW(scheduler.completed(2, {std::span(rows).first(2)}, 0), Error) << "another step";
  EXPECT_THROW(scheduler.completed(1, {rows}, 0), Error) << "a row too many";
}

// --- Pools ------------------------------------------------------------------------------------------------------

// One request a model, far apart.
void visit(Driver& driver, std::initializer_list<ModelId> models) {
  RequestId id = 0;
  for (const ModelId model : models) {
    driver.submit(endless(id, model, 5, 2, static_cast<double>(id)));
    ++id;
  }
}

std::vector<std::size_t> fetches_by_swap(const Driver& driver) {
  std::vector<std::size_t> counts;
  for (const ExecutedStep& executed : driver.steps()) {
    if (!executed.swaps.empty()) counts.push_back(executed.step.stages[0].fetches.size());
  }
  return counts;
}

TEST(SchedulerPools, ModelsThatFitTogetherAreFetchedOnce) {
  const FakeModelList model_list({small_model(4), small_model(4)});
  Driver driver(model_list, {.frames = 9});
  visit(driver, {0, 1, 0, 1});
  run(driver);
  EXPECT_THAT(fetches_by_swap(driver), ElementsAre(4, 4));
}

TEST(SchedulerPools, TheLeastRecentlyUsedModelLosesOnlyAsManyPagesAsNeededFromItsEnd) {
  const FakeModelList model_list({small_model(4), small_model(4), small_model(3)});
  Driver driver(model_list, {.frames = 10});  // each batch needs one frame of cache
  visit(driver, {0, 1, 0, 2});
  run(driver);
  EXPECT_THAT(resident(driver, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(resident(driver, 1), ElementsAre(0, 1));
  EXPECT_THAT(resident(driver, 2), ElementsAre(0, 1, 2));
}

TEST(SchedulerPools, AModelThatLostItsTailFetchesOnlyThat) {
  const FakeModelList model_list({small_model(4), small_model(4), small_model(3)});
  Driver driver(model_list, {.frames = 10});
  visit(driver, {0, 1, 0, 2, 1});
  run(driver);
  EXPECT_THAT(fetches_by_swap(driver), ElementsAre(4, 4, 3, 2));
  EXPECT_THAT(resident(driver, 0), ElementsAre(0, 1));
}

TEST(SchedulerPools, WhenTheColdestHasNothingLeftTheNextColdestLoses) {
  const FakeModelList model_list({small_model(2), small_model(4), small_model(5)});
  Driver driver(model_list, {.frames = 8});
  visit(driver, {0, 1, 2});
  run(driver);
  EXPECT_THAT(resident(driver, 0), IsEmpty());
  EXPECT_THAT(resident(driver, 1), ElementsAre(0, 1));
}

// A request of the running model may need more cache than the last: other models pay for it.
TEST(SchedulerPools, CacheGrowsAtTheCostOfOtherModels) {
  const FakeModelList model_list({small_model(4), small_model(4)});
  Driver driver(model_list, {.frames = 9});
  driver.submit(endless(0, 0, 5, 2, 0));
  driver.submit(endless(1, 1, 5, 2, 1));
  driver.submit(endless(2, 1, 3 * kSlotsPerFrame * kBlockTokens, 1, 2));  // three frames
  run(driver);
  EXPECT_THAT(resident(driver, 0), ElementsAre(0, 1));
  EXPECT_THAT(resident(driver, 1), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(driver.stage(0).cache(1).size(), 3u);
  EXPECT_EQ(driver.stage(0).cache(0).size(), 0u) << "its batch is over";
}

TEST(SchedulerPools, AModelThatNoPassOfFitsIsRefusedAtOnce) {
  // Three pages at a time; a block of cache takes two frames.
  const FakeModelList model_list({small_model(3), {.pages = {8}, .layers = {16}, .span = 3}});
  const auto make = [&](int frames) {
    return Scheduler(model_list.shapes(), model_list.names(), make_fifo_policy(), {.frames = frames});
  };
  EXPECT_NO_THROW(make(5));
  try {
    make(4);
    FAIL() << "5 frames into a pool of 4";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("model-1"), HasSubstr("stage 0"), HasSubstr("3 pages at a time"),
                                    HasSubstr("2 of cache"), HasSubstr("4 frames")));
  }
}

TEST(SchedulerPools, PinnedModelsThatLeaveNoRoomAreRefusedAtOnce) {
  const FakeModelList model_list(
      {{.pages = {5}, .layers = {1}, .pinned = true}, {.pages = {4}, .layers = {1}, .span = 2}});
  const auto make = [&](int frames) {
    return Scheduler(model_list.shapes(), model_list.names(), make_fifo_policy(), {.frames = frames});
  };
  EXPECT_NO_THROW(make(8));
  EXPECT_THROW(make(7), ConfigError);
}

TEST(SchedulerPools, TheStageThatIsTooSmallIsNamed) {
  const FakeModelList model_list({{.pages = {3, 9}, .layers = {1, 1}, .span = 9}});
  try {
    const Scheduler refused(model_list.shapes(), model_list.names(), make_fifo_policy(), {.frames = 9});
    FAIL() << "10 frames into a pool of 9";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("model-0"), HasSubstr("stage 1")));
  }
}

// Some pages stay, the others rotate: each pass fetches no more than the pool lacks and the rotating frames.
TEST(SchedulerPools, AModelTwiceThePoolRunsThroughIt) {
  const FakeModelList model_list({{.pages = {40}, .layers = {1}, .span = 2}});
  Driver driver(model_list, {.frames = 21});
  driver.submit(endless(0, 0, 5, 10));
  run(driver);
  ASSERT_EQ(driver.steps().size(), 10u);
  for (std::size_t i = 1; i + 1 < driver.steps().size(); ++i) {
    EXPECT_LE(driver.steps()[i].step.stages[0].fetches.size(), 40u - 20u + 4u + 2u) << "2: the tied page comes twice";
  }
}

TEST(SchedulerPools, APinnedModelStaysWhoeverComes) {
  const FakeModelList model_list({{.pages = {4}, .layers = {1}, .pinned = true}, small_model(4), small_model(4)});
  for (const char* policy : {"fifo", "balanced", "throughput"}) {
    Driver driver(model_list, {.frames = 10}, policy);
    visit(driver, {0, 1, 2, 1, 2});
    run(driver);
    EXPECT_THAT(resident(driver, 0), ElementsAre(0, 1, 2, 3)) << policy;
  }
}

// --- Prefetch ---------------------------------------------------------------------------------------------------

// Fetches of a model before the first pass of it.
std::size_t fetched_before_running(const Driver& driver, ModelId model) {
  std::size_t count = 0;
  for (const ExecutedStep& executed : driver.steps()) {
    if (!executed.step.chunks.empty() && executed.step.model == model) break;
    for (const Fetch& fetch : executed.step.stages[0].fetches) count += fetch.model == model;
  }
  return count;
}

// Costs like the driver's: a page takes 0.5 ms, a pass at least 1 ms.
constexpr CostOptions kCosts{.link_bytes_per_s = kPageBytes / 0.0005, .memory_bytes_per_s = 1e12, .step_s = 1e-3};

TEST(SchedulerPrefetch, TheNextModelComesInWhileTheFirstComputes) {
  const FakeModelList model_list({small_model(4), small_model(6)});
  for (const char* policy : {"fifo", "balanced", "throughput"}) {
    Driver driver(model_list, {.frames = 12, .costs = kCosts}, policy);
    driver.submit(endless(0, 0, 5, 40));
    driver.submit(endless(1, 1, 5, 40));
    run(driver);
    EXPECT_EQ(fetched_before_running(driver, 1), 6u) << policy;
  }
}

TEST(SchedulerPrefetch, TakesNoFrameThatTheRunningModelNeeds) {
  const FakeModelList model_list({small_model(4), small_model(6)});
  Driver driver(model_list, {.frames = 8, .costs = kCosts}, "throughput");  // 4 pages, 1 of cache, 1 for the next one's
  driver.submit(endless(0, 0, 5, 40));
  driver.submit(endless(1, 1, 5, 40));
  run(driver);
  // Two pages while the first model runs, and the rest behind its last pass at the earliest.
  for (const ExecutedStep& executed : driver.steps()) {
    if (executed.step.model != 0 || executed.step.chunks.empty()) continue;
    for (const Fetch& fetch : executed.step.stages[0].fetches) {
      EXPECT_TRUE(fetch.model == 0 || fetch.after.step == 0 || executed.step.id + 1 >= 40) << executed.step.id;
    }
  }
}

// However much is missing, only so much is on its way that plans can still change.
TEST(SchedulerPrefetch, IsIssuedAShortTimeAhead) {
  const FakeModelList model_list({small_model(2), small_model(400)});
  SchedulerOptions options{.frames = 410, .fetch_ahead_s = 0.005, .costs = kCosts};
  Driver driver(model_list, options, "throughput");
  driver.submit(endless(0, 0, 5, 200));
  driver.submit(endless(1, 1, 5, 2));
  run(driver);
  for (const ExecutedStep& executed : driver.steps()) {
    EXPECT_TRUE(executed.step.model != 0 || executed.step.stages[0].fetches.size() <= 20);
  }
}

TEST(SchedulerPrefetch, TheNextModelsFirstPassStandsBehindTheLastOneOfTheModelBefore) {
  const FakeModelList model_list({small_model(2), small_model(2)});
  Driver driver(model_list, {.frames = 8, .steps_in_flight = 2, .costs = kCosts}, "throughput");
  driver.submit(endless(0, 0, 5, 3));
  driver.submit(endless(1, 1, 5, 3));
  run(driver);
  std::vector<ModelId> overlapped;
  for (const ExecutedStep& executed : driver.steps()) {
    if (executed.in_flight == 2) overlapped.push_back(executed.step.model);
  }
  EXPECT_THAT(overlapped, ElementsAre(1u));
}

// --- Caches -----------------------------------------------------------------------------------------------------

struct CacheMoves {
  int offloads = 0, reloads = 0, restarts = 0;
};

CacheMoves cache_moves(const Driver& driver) {
  CacheMoves moves;
  std::set<TokenId> begun;
  for (const ExecutedStep& executed : driver.steps()) {
    for (const SequenceChunk& chunk : executed.step.chunks) {
      moves.restarts += chunk.start == 0 && !begun.insert(chunk.tokens[0]).second;
    }
    for (const CacheChange& change : executed.step.stages[0].caches) {
      moves.offloads += change.kind == CacheChange::kOffload;
      moves.reloads += change.kind == CacheChange::kReload;
    }
  }
  return moves;
}

// A long answer of one model is interrupted by requests for another that needs nearly the whole pool.
CacheMoves interrupt(int frames, SchedulerOptions options) {
  const FakeModelList model_list({small_model(4), small_model(8)});
  options.frames = frames;
  Driver driver(model_list, options, "balanced");
  driver.submit(endless(0, 0, 100, 400));
  driver.submit(endless(1, 1, 5, 3, /*arrival_s=*/0.05));
  EXPECT_EQ(driver.run(), "");
  EXPECT_EQ(driver.finished().front(), 1u) << "nobody waits for a whole answer";
  return cache_moves(driver);
}

TEST(SchedulerCaches, AModelThatIsInterruptedKeepsItsCacheWhileThereIsRoom) {
  const CacheMoves moves = interrupt(20, {.host_slots = 10, .costs = kCosts});
  EXPECT_EQ(moves.offloads + moves.restarts, 0);
}

TEST(SchedulerCaches, OtherwiseItMovesToHostMemoryWhereThatIsCheaper) {
  CostOptions costs = kCosts;
  costs.step_s = 1;  // computing again is dear
  const CacheMoves moves = interrupt(10, {.host_slots = 10, .costs = costs});
  EXPECT_EQ(moves.offloads, 1);
  EXPECT_EQ(moves.reloads, 1);
  EXPECT_EQ(moves.restarts, 0);
}

TEST(SchedulerCaches, AndIsComputedAgainWhereThatIsCheaper) {
  CostOptions costs = kCosts;
  costs.link_bytes_per_s /= 100;
  const CacheMoves moves = interrupt(10, {.host_slots = 10, .costs = costs});
  EXPECT_EQ(moves.offloads, 0);
  EXPECT_EQ(moves.restarts, 1);
}

TEST(SchedulerCaches, OrWhereHostMemoryHasNoRoom) {
  CostOptions costs = kCosts;
  costs.step_s = 1;
  const CacheMoves moves = interrupt(10, {.host_slots = 0, .costs = costs});
  EXPECT_EQ(moves.offloads, 0);
  EXPECT_EQ(moves.restarts, 1);
}

// Computing either cache again takes longer than anybody is to wait (0.2 s): still each model gets somewhere while it
// is active.
TEST(SchedulerCaches, CachesThatAreLostAgainAndAgainDoNotStopProgress) {
  const FakeModelList model_list({small_model(4), small_model(4)});
  Driver driver(model_list, {.frames = 28, .max_batch_tokens = 100, .costs = kCosts}, "balanced");
  driver.submit(endless(0, 0, 2500, 40));
  driver.submit(endless(1, 1, 2500, 40));
  run(driver);
  EXPECT_GE(cache_moves(driver).restarts, 2);
}

// --- Limits -----------------------------------------------------------------------------------------------------

TEST(SchedulerLimits, ARequestThatCanNeverFitIsRefusedAlone) {
  const FakeModelList model_list({{.pages = {4}, .layers = {1}, .span = 4}});
  Driver driver(model_list, {.frames = 6});  // two frames of cache: 256 tokens
  driver.submit(endless(0, 0, 100, 20));
  driver.submit(endless(1, 0, 200, 58));
  driver.submit(endless(2, 0, 200, 57));
  driver.submit(endless(3, 0, 257, 1));
  driver.submit(endless(4, 0, 256, 1));
  run(driver);
  for (const RequestId refused : {1, 3}) {
    const Completion& completion = driver.completion(refused);
    EXPECT_EQ(completion.error_code, "context_length_exceeded");
    EXPECT_THAT(completion.error_message, AllOf(HasSubstr("257 tokens"), HasSubstr("model-0")));
    EXPECT_THAT(completion.tokens, IsEmpty());
  }
  for (const RequestId served : {0, 2, 4}) EXPECT_EQ(driver.completion(served).error_code, "");
}

// The stage with the most layers for its frames decides.
TEST(SchedulerLimits, EveryStageMustHaveRoomForARequest) {
  const FakeModelList model_list({{.pages = {1, 1}, .layers = {1, 8}}});
  Driver driver(model_list, {.frames = 3});  // stage 1: a frame a block, so two blocks
  driver.submit(endless(0, 0, 33, 1));
  driver.submit(endless(1, 0, 32, 1));
  run(driver);
  EXPECT_EQ(driver.completion(0).error_code, "context_length_exceeded");
  EXPECT_EQ(driver.completion(1).error_code, "");
}

TEST(SchedulerLimits, ABatchHasAtMostMaxSeqs) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, {.frames = 100, .max_seqs = 2});
  for (RequestId id = 0; id < 5; ++id) driver.submit(endless(id, 0, 5, 3));
  run(driver);
  EXPECT_THAT(batch_sizes(driver), ElementsAre(2, 2, 1));
}

TEST(SchedulerLimits, ABatchHasAtMostTheCacheThatFits) {
  const FakeModelList model_list({small_model(4)});
  Driver driver(model_list, {.frames = 6});  // two frames: 16 blocks
  for (RequestId id = 0; id < 5; ++id) driver.submit(endless(id, 0, 6 * kBlockTokens, 1));
  run(driver);
  EXPECT_THAT(batch_sizes(driver), ElementsAre(2, 2, 1));
}

TEST(SchedulerLimits, PromptsLongerThanAStepComeInPieces) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, {.frames = 100, .max_batch_tokens = 4});
  driver.submit(endless(0, 0, 10, 3));
  run(driver);
  std::vector<std::size_t> sizes;
  std::vector<SequenceChunk::Output> logits;
  for (const ExecutedStep& executed : driver.steps()) {
    sizes.push_back(executed.step.chunks[0].tokens.size());
    logits.push_back(executed.step.chunks[0].output);
  }
  EXPECT_THAT(sizes, ElementsAre(4, 4, 2, 1, 1));
  EXPECT_THAT(logits, ElementsAre(SequenceChunk::kNone, SequenceChunk::kNone, SequenceChunk::kLast,
                                  SequenceChunk::kLast, SequenceChunk::kLast));
}

TEST(SchedulerLimits, AStepIsFilledUpWithPartOfAPrompt) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, {.frames = 100, .max_batch_tokens = 16});
  driver.submit(endless(0, 0, 10, 1));
  driver.submit(endless(1, 0, 10, 1));
  run(driver);
  ASSERT_EQ(driver.steps().size(), 2u);
  EXPECT_EQ(driver.steps()[0].step.rows(), 16);
  EXPECT_EQ(driver.steps()[1].step.rows(), 4);
}

// More sequences than a step has tokens for: all advance alike.
TEST(SchedulerLimits, SequencesTakeTurnsWhenAStepHasNoRoomForAll) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, {.frames = 100, .max_batch_tokens = 2});
  for (RequestId id = 0; id < 6; ++id) driver.submit(endless(id, 0, 1, 10));
  run(driver);
  EXPECT_EQ(driver.steps().size(), 30u);
  EXPECT_THAT(driver.finished(), ElementsAre(0, 1, 2, 3, 4, 5)) << "in the last three steps";
  EXPECT_LT(driver.completion(5).first_token_s, driver.steps()[3].finished_s);
}

// What does not fit into the rest of a step is first in the next one, however many shorter ones come behind it.
TEST(SchedulerLimits, AnEncodersInputWaitsForAStepThatHoldsAllOfIt) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, {.frames = 100, .max_batch_tokens = 10});
  const std::vector<int> tokens = {4, 10, 3, 7, 3, 3, 3, 3};
  for (RequestId id = 0; id < tokens.size(); ++id) driver.submit(make_encoder_request(id, 0, tokens[id], 2));
  run(driver);
  std::vector<std::vector<std::size_t>> steps;
  for (const ExecutedStep& executed : driver.steps()) {
    auto& sizes = steps.emplace_back();
    for (const SequenceChunk& chunk : executed.step.chunks) sizes.push_back(chunk.tokens.size());
  }
  EXPECT_THAT(steps, ElementsAre(ElementsAre(4, 3, 3), ElementsAre(10), ElementsAre(7, 3), ElementsAre(3, 3)));
}

TEST(SchedulerLimits, AnEncodersInputThatNoStepHoldsIsRefused) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, {.frames = 100, .max_batch_tokens = 10});
  driver.submit(make_encoder_request(0, 0, 11, 2));
  driver.submit(make_encoder_request(1, 0, 10, 2));
  run(driver);
  EXPECT_EQ(driver.completion(0).error_code, "context_length_exceeded");
  EXPECT_EQ(driver.completion(1).error_code, "");
}

TEST(SchedulerLimits, ItIsFullWhenWhatWaitsTakesTooManyBytes) {
  const FakeModelList model_list({small_model(1)});
  SchedulerOptions options = kRoomy;
  options.max_waiting_bytes = 1000;
  options.steps_in_flight = 2;
  Scheduler scheduler(model_list.shapes(), model_list.names(), make_fifo_policy(), options);
  Request image = make_encoder_request(0, 0, 1, 1, /*arrival_s=*/0);
  image.patches.assign(200, 0.5f);
  scheduler.submit(image);
  EXPECT_FALSE(scheduler.is_full());
  image.id = 1;
  image.arrival_s = 5;
  scheduler.submit(image);
  EXPECT_TRUE(scheduler.is_full());
  EXPECT_TRUE(std::holds_alternative<PlannedStep>(scheduler.next(0)));
  EXPECT_FALSE(scheduler.is_full()) << "one of them is on its way";
  scheduler.next(5);
  EXPECT_EQ(scheduler.held().waiting_bytes, 0u) << "the next pass has the other";
}

TEST(SchedulerLimits, EncodersAndDecodersServeBesideEachOther) {
  const FakeModelList model_list({small_model(4, {0, 1, 2}), small_model(3), small_model(5)});
  for (const char* policy : {"fifo", "balanced", "throughput"}) {
    for (const int frames : {9, 30}) {
      SCOPED_TRACE(fmt::format("{}, {} frames", policy, frames));
      Driver driver(model_list, {.frames = frames, .max_batch_tokens = 20, .steps_in_flight = 2}, policy);
      for (RequestId id = 0; id < 30; ++id) {
        const int tokens = 1 + static_cast<int>(id * 7 % 20);
        const double arrival_s = 0.01 * static_cast<double>(id);
        driver.submit(id % 3 == 0 ? make_request(id, 0, tokens, 9, arrival_s)
                                  : make_encoder_request(id, static_cast<ModelId>(id % 3), tokens, 3, arrival_s));
      }
      run(driver);
    }
  }
}

// --- Batches that change ----------------------------------------------------------------------------------------

// Tokens of the request in each step, until its last; recognised by its first token, so it must not be interrupted.
std::vector<std::size_t> chunk_sizes(const Driver& driver, RequestId request) {
  std::vector<std::size_t> sizes;
  SequenceId id = 0;
  for (const ExecutedStep& executed : driver.steps()) {
    for (const SequenceChunk& chunk : executed.step.chunks) {
      if (chunk.start == 0 && request_of(chunk.tokens[0]) == request) id = chunk.sequence;
    }
    if (id == 0) continue;
    std::size_t size = 0;
    for (const SequenceChunk& chunk : executed.step.chunks) size += chunk.sequence == id ? chunk.tokens.size() : 0;
    sizes.push_back(size);
  }
  while (!sizes.empty() && sizes.back() == 0) sizes.pop_back();
  return sizes;
}

TEST(SchedulerBatching, ALongPromptComesInBesideThoseThatDecode) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, {.frames = 100, .max_batch_tokens = 8, .steps_in_flight = 2}, "balanced");
  driver.submit(endless(0, 0, 4, 30, 0));
  driver.submit(endless(1, 0, 60, 3, 0.01));
  run(driver);
  EXPECT_THAT(chunk_sizes(driver, 1), ElementsAre(7, 7, 7, 7, 7, 7, 7, 7, 4, 1, 1));
  const std::vector<std::size_t> first = chunk_sizes(driver, 0);
  ASSERT_EQ(first.size(), 30u) << "a token in every pass";
  EXPECT_EQ(first[0], 4u);
  EXPECT_THAT(std::span(first).subspan(1), Each(1u));
}

TEST(SchedulerBatching, APromptGetsOnWhereDecodingFillsThePasses) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, {.frames = 100, .max_batch_tokens = 8}, "balanced");
  for (RequestId id = 0; id < 20; ++id) driver.submit(endless(id, 0, 1, 60, 0));
  driver.submit(endless(20, 0, 10, 2, 0.05));
  run(driver);
  const std::vector<std::size_t> sizes = chunk_sizes(driver, 20);
  EXPECT_THAT(std::span(sizes).first(5), Each(2u)) << "a quarter of each pass";
  EXPECT_LE(sizes.size(), 5u + 4u) << "then it takes turns with the others";
}

TEST(SchedulerBatching, PromptsAndAnswersTakeTurnsWhereAPassHoldsOneToken) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, {.frames = 100, .max_batch_tokens = 1}, "balanced");
  driver.submit(endless(0, 0, 1, 30, 0));
  driver.submit(endless(1, 0, 40, 1, 0.005));
  run(driver);
  const std::vector<std::size_t> first = chunk_sizes(driver, 0);
  for (std::size_t i = 1; i < first.size(); ++i) EXPECT_GE(first[i - 1] + first[i], 1u) << i;
  EXPECT_GT(first.size(), 50u) << "the prompt got on meanwhile";
}

// Who comes while a pass is computed is in the next one, beside the others.
TEST(SchedulerBatching, SequencesJoinTheBatchThatRuns) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, {.frames = 100, .steps_in_flight = 2}, "balanced");
  for (RequestId id = 0; id < 8; ++id) driver.submit(endless(id, 0, 4, 40, 0.0031 * static_cast<double>(id)));
  run(driver);
  EXPECT_LE(driver.steps().size(), 40u + 8 * 3) << "one batch, not one for each";
}

// Forty short answers teach that answers are short; then four come that are as long as they may be.
TEST(SchedulerBatching, PreemptsTheYoungestWhenBlocksRunOutNeverTheOldest) {
  for (const char* policy : {"fifo", "balanced", "throughput"}) {
    const FakeModelList model_list({small_model(2)});
    Driver driver(model_list, {.frames = 5}, policy);  // 24 blocks
    for (RequestId id = 0; id < 40; ++id) {
      Request request = make_request(id, 0, 4, 200);
      for (TokenId token = 0; token < kVocab; ++token) request.stop_tokens.push_back(token);
      driver.submit(request);
    }
    for (RequestId id = 40; id < 44; ++id) driver.submit(endless(id, 0, 20, 200, 0.5 + 1e-4 * static_cast<double>(id)));
    run(driver);
    EXPECT_GE(driver.preemptions(), policy == std::string("throughput") ? 0u : 1u) << policy;
    EXPECT_LT(driver.preemptions(), 8u) << policy << ": not again as soon as there is a block";
    if (policy != std::string("throughput")) {
      EXPECT_THAT(std::vector(driver.finished().end() - 4, driver.finished().end()), ElementsAre(40, 41, 42, 43))
          << policy;
      const std::vector<std::size_t> oldest = chunk_sizes(driver, 40);
      EXPECT_THAT(std::span(oldest).subspan(1), Each(1u)) << policy << ": it is never interrupted";
    }
  }
}

// A sequence may have all that can be had, if it is the only one.
TEST(SchedulerBatching, ASequenceAloneGrowsToItsFullLength) {
  const FakeModelList model_list({small_model(4)});
  Driver driver(model_list, {.frames = 5}, "balanced");  // with all pages there: one frame of cache, 8 blocks
  driver.submit(endless(0, 0, 40, 300));                 // 22 blocks
  driver.submit(endless(1, 0, 40, 300, 0.001));
  run(driver);
  EXPECT_THAT(driver.finished(), ElementsAre(0, 1));
}

// What a model no longer needs of its cache is there for the pages of the next, while a sequence goes on.
TEST(SchedulerBatching, ACacheGivesFramesBackWhileItIsInUse) {
  const FakeModelList model_list({small_model(2), small_model(4)});
  Driver driver(model_list, {.frames = 13, .costs = kCosts}, "balanced");  // 11 frames of cache: 88 blocks
  driver.submit(endless(0, 0, 17, 300));  // no new block of its own while the others are there
  for (RequestId id = 1; id < 9; ++id) driver.submit(endless(id, 0, 100, 8, 1e-4));
  driver.submit(endless(9, 1, 10, 3, 0.3));
  run(driver);
  EXPECT_EQ(cache_moves(driver).restarts, 0);
  EXPECT_EQ(driver.finished().back(), 0u);
  EXPECT_EQ(driver.stage(0).resident_pages(1), 4);
}

// --- Equal beginnings -------------------------------------------------------------------------------------------

// Where the first chunk of each sequence starts, in the order in which they begin.
std::vector<std::uint32_t> starts(const Driver& driver) {
  std::vector<std::uint32_t> starts;
  std::set<SequenceId> seen;
  for (const ExecutedStep& executed : driver.steps()) {
    for (const SequenceChunk& chunk : executed.step.chunks) {
      if (seen.insert(chunk.sequence).second) starts.push_back(chunk.start);
    }
  }
  return starts;
}

Request with_beginning(RequestId id, ModelId model, int beginning, int own, double arrival_s) {
  return with_common_beginning(endless(id, model, own, 20, arrival_s), beginning);
}

TEST(SchedulerPrefixes, AreComputedOnceWhileTheirSequenceRunsAndAfterIt) {
  const FakeModelList model_list({small_model(2)});
  for (const bool caching : {false, true}) {
    Driver driver(model_list, {.frames = 100, .prefix_caching = caching}, "balanced");
    driver.submit(with_beginning(0, 0, 40, 10, 0));     // two whole blocks in common with those behind it
    driver.submit(with_beginning(1, 0, 40, 10, 0.01));  // while it runs
    driver.submit(with_beginning(2, 0, 64, 10, 0.02));  // as far as they go, the third is half its own
    driver.submit(with_beginning(3, 0, 64, 10, 1));     // long after
    driver.submit(endless(4, 0, 50, 2, 2));
    run(driver);
    const auto expected = caching ? std::vector<std::uint32_t>{0, 32, 32, 64, 0} : std::vector<std::uint32_t>(5, 0);
    EXPECT_EQ(starts(driver), expected);
  }
}

TEST(SchedulerPrefixes, AWholePromptThatIsKnownStillComputesItsLastToken) {
  const FakeModelList model_list({small_model(2)});
  Driver driver(model_list, {.frames = 100, .prefix_caching = true}, "balanced");
  driver.submit(with_beginning(0, 0, 64, 10, 0));
  Request again = with_beginning(1, 0, 64, 10, 1);
  again.prompt.resize(64);  // four whole blocks, all of them known
  again.prompt[63] = 1001;  // but this one, which tells the request
  driver.submit(again);
  Request third = again;
  third.id = 2;
  third.arrival_s = 2;
  third.prompt.push_back(1002);
  driver.submit(third);
  run(driver);
  EXPECT_THAT(starts(driver), ElementsAre(0, 48, 64));
}

// What a scored prompt asks for is known of computed tokens only, and an encoder's tokens see those behind them.
TEST(SchedulerPrefixes, AreNotSharedWhereThePromptsTokensAreLookedAt) {
  const FakeModelList model_list({small_model(2)});
  Driver driver(model_list, {.frames = 100, .prefix_caching = true}, "balanced");
  for (RequestId id = 0; id < 6; ++id) {
    Request request = with_beginning(id, 0, 40, 10, static_cast<double>(id));
    request.echo = id >= 2;
    request.logprobs = id >= 4 ? 1 : -1;
    driver.submit(request);
  }
  run(driver);
  EXPECT_THAT(starts(driver), ElementsAre(0, 32, 32, 32, 0, 0));
}

// Another model needs the frames.
TEST(SchedulerPrefixes, GoWhenTheirFramesAreNeeded) {
  for (const int frames : {6, 12}) {
    const FakeModelList model_list({small_model(2), small_model(5)});
    Driver driver(model_list, {.frames = frames, .prefix_caching = true}, "balanced");
    driver.submit(with_beginning(0, 0, 40, 10, 0));
    driver.submit(endless(1, 1, 10, 2, 1));
    driver.submit(with_beginning(2, 0, 40, 10, 2));
    run(driver);
    EXPECT_THAT(starts(driver), ElementsAre(0, 0, frames == 6 ? 0u : 32u)) << frames;
  }
}

// Sixteen sequences of 13 blocks, of which 12 are the same, where there is room for 32.
TEST(SchedulerPrefixes, LeaveRoomForMoreSequences) {
  for (const bool caching : {false, true}) {
    const FakeModelList model_list({small_model(2)});
    Driver driver(model_list, {.frames = 6, .prefix_caching = caching}, "balanced");
    driver.submit(with_beginning(0, 0, 192, 4, 0));
    for (RequestId id = 1; id < 16; ++id) driver.submit(with_common_beginning(endless(id, 0, 4, 10, 0.05), 192));
    run(driver);
    std::size_t together = 0;
    for (const ExecutedStep& executed : driver.steps()) together = std::max(together, executed.step.chunks.size());
    EXPECT_EQ(together, caching ? 15u : 2u);
  }
}

// --- Steps in flight --------------------------------------------------------------------------------------------

TEST(SchedulerPipeline, AsManyStepsAreInFlightAsAllowed) {
  for (int stages = 1; stages <= 4; ++stages) {
    const FakeModelList model_list({{.pages = std::vector<int>(stages, 2), .layers = std::vector<int>(stages, 1)}});
    for (int steps = 1; steps <= 5; ++steps) {
      SCOPED_TRACE(fmt::format("{} stages, {} steps in flight", stages, steps));
      SchedulerOptions options = kRoomy;
      options.steps_in_flight = steps;
      Driver driver(model_list, options);
      for (RequestId id = 0; id < 20; ++id) driver.submit(endless(id, 0, 4, 20));
      run(driver);
      std::size_t most = 0;
      for (const ExecutedStep& executed : driver.steps()) most = std::max(most, executed.in_flight);
      EXPECT_EQ(most, static_cast<std::size_t>(std::min(steps, stages))) << "a micro-batch a stage";
    }
  }
}

// The point of it: the stages work side by side on the parts of a batch. (A round of decoding gains nothing where the
// time of a step does not depend on its rows.)
TEST(SchedulerPipeline, StepsInFlightKeepTheStagesBusy) {
  const auto duration = [](int steps_in_flight) {
    const FakeModelList model_list({{.pages = {1, 1, 1}, .layers = {1, 1, 1}}});
    SchedulerOptions options = kRoomy;
    options.max_batch_tokens = 2000;
    options.steps_in_flight = steps_in_flight;
    Driver driver(model_list, options);
    for (RequestId id = 0; id < 24; ++id) driver.submit(endless(id, 0, 60, 1));
    EXPECT_EQ(driver.run(), "");
    return driver.steps().back().finished_s;
  };
  EXPECT_LT(duration(4), 0.6 * duration(1));
}

TEST(SchedulerPipeline, AShortBatchIsSharedOutOneByOne) {
  const FakeModelList model_list({{.pages = {1, 1, 1, 1}, .layers = {1, 1, 1, 1}}});
  SchedulerOptions options = kRoomy;
  options.steps_in_flight = 5;
  Driver driver(model_list, options);
  for (RequestId id = 0; id < 3; ++id) driver.submit(endless(id, 0, 4, 5));
  run(driver);
  for (const ExecutedStep& executed : driver.steps()) EXPECT_EQ(executed.step.chunks.size(), 1u);
}

// --- What requests ask for --------------------------------------------------------------------------------------

TEST(SchedulerRequests, EchoAndLogprobsAreServedAcrossChunksAndSteps) {
  const FakeModelList model_list({small_model(2, {0, 1, 2})});
  for (const int max_batch_tokens : {1, 3, 7, 100}) {
    for (const int steps : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} tokens a step, {} in flight", max_batch_tokens, steps));
      Driver driver(model_list, {.frames = 50, .max_batch_tokens = max_batch_tokens, .steps_in_flight = steps});
      for (RequestId id = 0; id < 12; ++id) {
        Request request = make_request(id, 0, 1 + static_cast<int>(id), static_cast<int>(id % 4));
        request.echo = id % 2 == 0 || request.max_tokens == 0;
        request.logprobs = static_cast<int>(id % 7) - 1;
        driver.submit(request);
      }
      run(driver);
    }
  }
}

TEST(SchedulerRequests, EchoAloneIsAnsweredWithoutAStep) {
  const FakeModelList model_list({small_model(2)});
  Driver driver(model_list, kRoomy);
  Request request = make_request(0, 0, 5, 0, 3.0);
  request.echo = true;
  driver.submit(request);
  run(driver);
  EXPECT_THAT(driver.steps(), IsEmpty());
  EXPECT_EQ(driver.completion(0).prompt.size(), 5u);
  EXPECT_EQ(driver.completion(0).finished_s, 3.0) << "its latency is nought";
}

TEST(SchedulerRequests, EveryWayToEnd) {
  const FakeModelList model_list({small_model(2, {7})});
  Driver driver(model_list, kRoomy);
  for (RequestId id = 0; id < 60; ++id) {
    Request request = make_request(id, 0, 3, 30);
    if (id % 3 == 0) request.stop_tokens = {9};
    request.ignore_eos = id % 3 == 1;
    driver.submit(request);
  }
  run(driver);
  std::array<int, 3> stopped{}, full{};
  for (RequestId id = 0; id < 60; ++id) {
    const Completion& completion = driver.completion(id);
    const bool stop = completion.finish_reason == FinishReason::kStop;
    ++(stop ? stopped : full)[id % 3];
    EXPECT_EQ(completion.tokens.size() + stop, static_cast<std::size_t>(completion.generated_tokens));
    EXPECT_TRUE(stop || completion.generated_tokens == 30);
  }
  EXPECT_GT(stopped[0], stopped[2]) << "two tokens that stop against one";
  EXPECT_EQ(stopped[1], 0);
  EXPECT_GT(full[0], 0);
}

TEST(SchedulerRequests, ANumericalErrorCostsOnlyItsOwnRequest) {
  const FakeModelList model_list({small_model(2)});
  SchedulerOptions options = kRoomy;
  options.steps_in_flight = 2;
  Driver driver(model_list, options);
  for (RequestId id = 0; id < 6; ++id) {
    Request request = endless(id, 0, 20, 10);
    for (TokenId& token : request.prompt) token += token == kPoison;
    if (id == 2 || id == 4) request.prompt[7] = kPoison;
    driver.submit(request);
  }
  run(driver);  // which holds every other completion against what it deserves
  EXPECT_EQ(driver.completion(2).error_code, "numerical_error");
  EXPECT_EQ(driver.completion(4).error_code, "numerical_error");
  EXPECT_EQ(driver.completion(0).error_code, "");
  EXPECT_EQ(driver.completion(5).error_code, "");
}

TEST(SchedulerRequests, EndedSequencesAreClosedInTheNextStep) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, kRoomy);
  driver.submit(endless(0, 0, 4, 1));
  driver.submit(endless(1, 0, 4, 3));
  run(driver);
  ASSERT_EQ(driver.steps().size(), 3u);
  EXPECT_THAT(driver.steps()[0].step.closed, IsEmpty());
  EXPECT_THAT(driver.steps()[1].step.closed, ElementsAre(1u));
  EXPECT_THAT(driver.steps()[2].step.closed, IsEmpty());
}

TEST(SchedulerRequests, SequencesOfTheLastBatchAreClosedInTheFirstStepOfTheNext) {
  const FakeModelList model_list({small_model(1), small_model(1)});
  Driver driver(model_list, kRoomy);
  driver.submit(endless(0, 0, 4, 1));
  driver.submit(endless(1, 0, 4, 1));
  driver.submit(endless(2, 1, 4, 1));
  run(driver);
  ASSERT_EQ(driver.steps().size(), 2u);
  EXPECT_THAT(driver.steps()[1].step.closed, UnorderedElementsAre(1u, 2u));
}

TEST(SchedulerRequests, NoRequestsAtAllIsDone) {
  const FakeModelList model_list({small_model(1)});
  Driver driver(model_list, kRoomy);
  run(driver);
  EXPECT_THAT(driver.steps(), IsEmpty());
}

}  // namespace
}  // namespace computron::test
