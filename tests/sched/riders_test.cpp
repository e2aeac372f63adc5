// Sequences of models that differ in their adapters alone, in one pass.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tests/sched/driver.h"

namespace computron::test {
namespace {

using ::testing::SizeIs;

constexpr SchedulerOptions kWide{.frames = 200, .max_batch_tokens = 1000, .max_seqs = 100, .steps_in_flight = 1};

void run_through(Driver& driver) { ASSERT_EQ(driver.run(), ""); }

Request asks(RequestId id, ModelId model, int prompt_tokens, int max_tokens, double arrival_s = 0) {
  Request request = make_request(id, model, prompt_tokens, max_tokens, arrival_s);
  request.ignore_eos = true;
  return request;
}

Request interactive(Request request) {
  request.priority = Request::kInteractive;
  return request;
}

// The models of each pass.
std::vector<std::vector<ModelId>> models_of_passes(const Driver& driver) {
  std::vector<std::vector<ModelId>> passes;
  for (const ExecutedStep& executed : driver.steps()) {
    if (executed.step.chunks.empty()) continue;
    std::vector<ModelId>& models = passes.emplace_back();
    for (const ModelChunks& own : executed.step.by_model()) models.push_back(own.model);
  }
  return passes;
}

std::size_t rows_of_passes(const Driver& driver) {
  std::size_t rows = 0;
  for (const ExecutedStep& executed : driver.steps()) rows += static_cast<std::size_t>(executed.step.rows());
  return rows;
}

// Five models, a request each: passes of all of them, once their pages are there.
class Riders : public ::testing::TestWithParam<const char*> {};

TEST_P(Riders, AreInOnePassWithTheirBase) {
  const FakeModelList model_list(small_family(1, 6, {0, 1, 1, 2, 1}));
  Driver driver(model_list, kWide, GetParam());
  for (ModelId model = 0; model < 5; ++model) driver.submit(asks(model, model, 5, 40));
  run_through(driver);
  std::map<std::size_t, int> sizes;
  for (const auto& models : models_of_passes(driver)) ++sizes[models.size()];
  EXPECT_GE(sizes[5], 35) << "passes of all five";
  EXPECT_LE(driver.steps().size(), 60u);
}

INSTANTIATE_TEST_SUITE_P(Policies, Riders, ::testing::Values("balanced", "throughput"));

// The baseline runs one model's batch at a time.
TEST(NoRiders, AreTakenByThePolicyOfThePaper) {
  const FakeModelList model_list(small_family(1, 6, {0, 1, 1}));
  Driver driver(model_list, kWide, "fifo");
  for (ModelId model = 0; model < 3; ++model) driver.submit(asks(model, model, 5, 10));
  run_through(driver);
  for (const auto& models : models_of_passes(driver)) EXPECT_THAT(models, SizeIs(1));
}

TEST(NoRiders, AreOfOtherFamiliesOrOfNone) {
  std::vector<FakeModel> models = small_family(1, 4, {0, 1});
  for (FakeModel& model : small_family(2, 4, {0, 1})) models.push_back(std::move(model));
  models.push_back(small_model(4));
  models.push_back(small_model(4));
  const FakeModelList model_list(models);
  Driver driver(model_list, kWide, "balanced");
  for (ModelId model = 0; model < 6; ++model) driver.submit(asks(model, model, 5, 20));
  run_through(driver);
  std::set<std::set<ModelId>> together;
  for (const auto& pass : models_of_passes(driver)) together.insert({pass.begin(), pass.end()});
  EXPECT_TRUE(together.contains({0, 1}));
  EXPECT_TRUE(together.contains({2, 3}));
  for (const auto& pass : together)
    EXPECT_TRUE(pass.size() == 1 || pass == std::set<ModelId>({0, 1}) || pass == std::set<ModelId>({2, 3}));
}

// Two stages: both have a half of the sequences to compute with, whoever they are of.
TEST(RidersOfAPipeline, FillBothStages) {
  const FakeModelList model_list(small_family(1, 6, std::vector<int>(8, 1), /*stages=*/2));
  SchedulerOptions options = kWide;
  options.steps_in_flight = 3;
  Driver driver(model_list, options, "balanced");
  for (ModelId model = 0; model < 8; ++model) driver.submit(asks(model, model, 5, 60));
  run_through(driver);
  std::size_t halves = 0, overlapping = 0;
  for (const ExecutedStep& executed : driver.steps()) {
    halves += executed.step.chunks.size() == 4;
    overlapping += executed.in_flight == 2;
  }
  EXPECT_GE(halves, 90u) << "of some 120";
  EXPECT_GE(overlapping, 90u);
  EXPECT_LE(driver.steps().size(), 160u);
}

// A request that comes while its family's pass is in flight joins those that come back, and makes no passes of its own.
TEST(RidersOfAPipeline, JoinThoseThatAreInFlight) {
  const FakeModelList model_list(small_family(1, 6, {1, 1, 1}));
  SchedulerOptions options = kWide;
  options.steps_in_flight = 2;
  Driver driver(model_list, options, "balanced");
  for (ModelId model = 1; model < 3; ++model) driver.submit(asks(model, model, 5, 1));  // their pages are there then
  driver.submit(asks(0, 0, 5, 200));
  driver.submit(asks(3, 1, 5, 100, 0.0405), 0.0405);  // a pass takes somewhat more than a millisecond
  driver.submit(asks(4, 2, 5, 100, 0.0607), 0.0607);
  run_through(driver);
  std::size_t whole = 0;
  for (const auto& models : models_of_passes(driver)) whole += models.size() == 3;
  EXPECT_GE(whole, 75u) << "of some 85";
}

// Rows of riders are in what the others leave of a step.
TEST(RidersOfAStep, AreWithinItsTokens) {
  const FakeModelList model_list(small_family(1, 3, {0, 1, 1}));
  SchedulerOptions options = kWide;
  options.max_batch_tokens = 20;
  Driver driver(model_list, options, "balanced");
  for (RequestId id = 0; id < 9; ++id) driver.submit(asks(id, static_cast<ModelId>(id % 3), 30, 10));
  run_through(driver);  // which counts them
  EXPECT_EQ(rows_of_passes(driver), 9 * (30 + 9));
  std::size_t mixed = 0;
  for (const auto& models : models_of_passes(driver)) mixed += models.size() > 1;
  EXPECT_GT(mixed, 5u);
}

// Where the pool holds one adapter beside the base at a time, each has its turn.
TEST(RidersOfAPool, RideWhereTheirPagesAreThere) {
  const FakeModelList model_list(small_family(1, 6, {2, 2, 2}));
  SchedulerOptions options = kWide;
  options.frames = 6 + 2 + 1;
  Driver driver(model_list, options, "balanced");
  for (RequestId id = 0; id < 6; ++id) driver.submit(asks(id, static_cast<ModelId>(id % 3), 5, 12));
  run_through(driver);
  for (const auto& models : models_of_passes(driver)) EXPECT_THAT(models, SizeIs(1));
}

// A pool with room for the base and its caches alone: what adapters take of it are slots.
TEST(RidersOfAPool, RideTogetherWhereTheirPagesLieInSlots) {
  std::vector<FakeModel> models = small_family(1, 6, {2, 2, 2, 2, 2, 2});
  for (FakeModel& model : models) model.in_slots = true;
  const FakeModelList model_list(models);
  SchedulerOptions options = kWide;
  options.frames = 6 + 6;
  options.adapter_slots = 6;  // every two of the six have equal adapters
  Driver driver(model_list, options, "balanced");
  for (ModelId model = 0; model < 6; ++model) driver.submit(asks(model, model, 5, 10));
  run_through(driver);
  std::size_t of_all = 0;
  for (const auto& pass : models_of_passes(driver)) of_all += pass.size() == 6;
  EXPECT_GE(of_all, 8u);
}

// Two slots for three adapters of two pages: each has its turn.
TEST(RidersOfAPool, TakeTurnsInSlots) {
  std::vector<FakeModel> models = small_family(1, 4, {2, 0, 2, 0, 2, 0});
  for (FakeModel& model : models) model.in_slots = true;
  const FakeModelList model_list(models);
  SchedulerOptions options = kWide;
  options.adapter_slots = 2;
  Driver driver(model_list, options, "balanced");
  for (RequestId id = 0; id < 9; ++id) driver.submit(asks(id, static_cast<ModelId>(id % 3 * 2), 5, 12));
  run_through(driver);
  for (const auto& pass : models_of_passes(driver)) EXPECT_THAT(pass, SizeIs(1));
  options.adapter_slots = 1;
  try {
    Driver refused(model_list, options, "balanced");
    FAIL() << "an adapter of two pages in one slot";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("model-0: on stage 0 its adapter needs 2 slots"));
  }
}

// --- Whom riders keep waiting
// -------------------------------------------------------------------------------------------

// Ten frames of cache for five models with six sequences, of a frame each when they have grown: together the riders
// admit as many as find room when all have grown.
TEST(RidersOfAPool, ReserveTogetherWhatTheirCachesWillGrowBy) {
  const FakeModelList model_list(small_family(1, 4, {0, 1, 1, 1, 1}));
  SchedulerOptions options = kWide;
  options.frames = 4 + 2 + 10;
  Driver driver(model_list, options, "throughput");
  for (RequestId id = 0; id < 30; ++id) driver.submit(asks(id, static_cast<ModelId>(id % 5), 8, 120));
  run_through(driver);
  std::size_t mixed = 0;
  for (const auto& models : models_of_passes(driver)) mixed += models.size() > 1;
  EXPECT_GT(mixed, 100u);
  EXPECT_EQ(driver.preemptions(), 0u);
}

// Beside batch work of its own model, whose sequences are as many as may run: it waits for no end of theirs.
TEST(RidersOfAPass, AreAdmittedAtOnceWhereTheyAreMoreUrgent) {
  const FakeModelList model_list(small_family(1, 6, {0, 1}));
  SchedulerOptions options = kWide;
  options.max_seqs = 4;
  Driver driver(model_list, options, "throughput");
  driver.submit(interactive(asks(0, 0, 5, 400)));
  for (RequestId id = 1; id <= 4; ++id) driver.submit(asks(id, 1, 5, 300));
  driver.submit(interactive(asks(9, 1, 5, 2, 0.1)), 0.1);
  run_through(driver);
  EXPECT_LT(driver.completion(9).finished_s, 0.12) << "a pass takes about a millisecond";
  EXPECT_GT(driver.completion(1).finished_s, 0.3);
}

// Long prompts of batch work beside an interactive request of the first model, and one of a rider: the prompts leave it
// what it needs of each pass.
TEST(RidersOfAPass, AreServedBeforeTheBatchWorkOfTheModelThatLeads) {
  const FakeModelList model_list(small_family(1, 6, {0, 1}));
  SchedulerOptions options = kWide;
  options.frames = 2000;
  options.max_batch_tokens = 20;
  Driver driver(model_list, options, "throughput");
  driver.submit(interactive(asks(0, 0, 5, 400)));
  driver.submit(interactive(asks(1, 1, 5, 1)));  // its pages are there then
  for (RequestId id = 2; id < 32; ++id) driver.submit(asks(id, 0, 300, 2));
  driver.submit(interactive(asks(100, 1, 30, 4, 0.1)), 0.1);
  driver.submit(interactive(asks(101, 1, 30, 4, 0.1)), 0.1);
  run_through(driver);
  EXPECT_LT(driver.completion(101).finished_s, 0.14) << "a pass takes three milliseconds";
  EXPECT_GT(driver.completion(31).finished_s, 1);
}

// What waits for a place among the rider's sequences takes nothing from batch work in passes that are nearly empty.
TEST(RidersOfAPass, LeaveTheLeadItsBatchWorkWhereTheyHaveNoPlace) {
  const FakeModelList model_list(small_family(1, 6, {0, 1}));
  SchedulerOptions options = kWide;
  options.frames = 2000;
  options.max_seqs = 4;
  Driver driver(model_list, options, "throughput");
  driver.submit(interactive(asks(0, 0, 5, 400)));
  for (RequestId id = 1; id < 5; ++id) driver.submit(asks(id, 0, 5, 100));
  for (RequestId id = 10; id < 64; ++id) driver.submit(interactive(asks(id, 1, 40, 400)));
  run_through(driver);
  for (RequestId id = 1; id < 5; ++id) {
    EXPECT_LT(driver.completion(id).finished_s, driver.completion(0).finished_s * 3 / 4) << "request " << id;
  }
}

// Passes of the lead's batch work are even, but a rider's prompt is not spread over them for its sake.
TEST(RidersOfAPass, HaveInteractivePromptsInOnePiece) {
  const FakeModelList model_list(small_family(1, 6, {0, 1}));
  SchedulerOptions options = kWide;
  options.frames = 2000;
  Driver driver(model_list, options, "throughput");
  driver.report_times();
  driver.submit(interactive(asks(0, 0, 5, 400)));
  driver.submit(interactive(asks(1, 1, 5, 1)));  // its pages are there then
  for (RequestId id = 2; id < 32; ++id) driver.submit(asks(id, 0, 30, 400));
  for (RequestId id = 100; id < 103; ++id) driver.submit(interactive(asks(id, 1, 300, 4, 0.2)), 0.2);
  run_through(driver);
  std::set<RequestId> whole;
  for (const ExecutedStep& executed : driver.steps()) {
    for (const SequenceChunk& chunk : executed.step.chunks) {
      const auto request = tells_request(chunk.tokens[0]);
      if (request && chunk.tokens.size() == 300) whole.insert(*request);
    }
  }
  EXPECT_THAT(whole, SizeIs(3));
}

// Nor does a rider's batch work make passes long beside an interactive request of the first model.
TEST(RidersOfAPass, HaveEvenBatchPromptsBesideInteractiveWorkOfTheLead) {
  const FakeModelList model_list(small_family(1, 6, {0, 1}));
  SchedulerOptions options = kWide;
  options.frames = 2000;
  Driver driver(model_list, options, "throughput");
  driver.report_times();
  driver.submit(interactive(asks(0, 0, 5, 400)));
  driver.submit(interactive(asks(1, 1, 5, 1)));  // its pages are there then
  for (const double arrival_s : {0.2, 0.5}) {
    const auto first = static_cast<RequestId>(100 * arrival_s);
    for (RequestId id = first; id < first + 30; ++id) driver.submit(asks(id, 1, 60, 100, arrival_s), arrival_s);
  }
  run_through(driver);
  EXPECT_GT(driver.completion(0).finished_s, 0.6);
  const auto is_long = [](const ExecutedStep& executed) { return executed.step.rows() > 500; };
  EXPECT_EQ(std::ranges::count_if(driver.steps(), is_long), 1) << "how long such a pass takes is known from then on";
}

// A prompt that takes the whole pass leaves nothing to riders: their requests go on waiting, where they may be dropped
// or given to another group.
TEST(RidersOfAPass, AreAdmittedWhereThePassHasRoomForThem) {
  const FakeModelList model_list(small_family(1, 3, {0, 1, 1}));
  SchedulerOptions options = kWide;
  options.max_batch_tokens = 20;
  Driver driver(model_list, options, "balanced");
  for (RequestId id = 0; id < 2; ++id) driver.submit(asks(id, static_cast<ModelId>(1 + id), 4, 1));  // their pages come
  for (RequestId id = 2; id < 14; ++id) driver.submit(asks(id, static_cast<ModelId>(id % 3), 60, 2, 0.1), 0.1);
  run_through(driver);
  std::map<ModelId, std::size_t> unseen = {{0, 4}, {1, 4}, {2, 4}};  // requests that have been in no pass
  std::set<SequenceId> seen;
  std::size_t passes = 0, admitting = 0;  // of these, where riders' requests were admitted for certain
  for (const ExecutedStep& executed : driver.steps()) {
    if (executed.step.chunks.empty()) continue;
    const bool counts = executed.planned_s >= 0.1;
    const std::size_t of_lead = unseen.at(executed.step.model);  // admitted for this pass or one before, or waiting
    std::size_t of_riders = 0;
    for (const ModelChunks& own : executed.step.by_model()) {
      for (const SequenceChunk& chunk : own.chunks) {
        if (!seen.insert(chunk.sequence).second || !counts) continue;
        --unseen.at(own.model);
        of_riders += own.model == executed.step.model ? 0 : 1;
      }
    }
    if (!counts) continue;
    const std::size_t admitted = executed.waiting_before - executed.waiting_after;
    EXPECT_LE(admitted, of_lead + of_riders) << executed.step.id << ": a rider is admitted for a pass that it is in";
    ++passes;
    admitting += admitted > of_lead ? 1 : 0;
  }
  EXPECT_GT(passes, 30u);
  EXPECT_GT(admitting, 0u);
}

// While the first model's pages come, a family that fills in does so in passes of all of its models; they end in time,
// and take no frame from anybody.
class FillingRiders : public ::testing::Test {
 protected:
  // Three models of a family that go on, and one that goes first as it comes, of 100 pages in half a millisecond each.
  // Returns when that one's first token is there. `ride`: they are told to be of one family.
  double first_token_s(int frames, bool ride) {
    std::vector<FakeModel> models = small_family(1, 6, {0, 1, 2});
    for (FakeModel& model : models) model.family = ride ? 1 : 0;
    models.push_back(small_model(100));
    models.back().priority = 8;
    model_list_.emplace(models);
    SchedulerOptions options = kWide;
    options.frames = frames;
    options.costs = {
        .link_bytes_per_s = kPageBytes / 0.5e-3, .memory_bytes_per_s = 1e18, .flops_per_s = 1e18, .step_s = 1e-3};
    driver_.emplace(*model_list_, options, "balanced");
    driver_->report_times();
    for (ModelId model = 0; model < 3; ++model) driver_->submit(asks(model, model, 5, 200));
    driver_->submit(asks(3, 3, 5, 5, kComes_s), kComes_s);
    run_through(*driver_);
    return driver_->completion(3).first_token_s;
  }
  std::size_t fetches_of_the_first() const {
    std::size_t fetches = 0;
    for (const ExecutedStep& executed : driver_->steps()) {
      for (const Fetch& fetch : executed.step.stages[0].fetches) fetches += fetch.model == 3;
    }
    return fetches;
  }
  static constexpr double kComes_s = 0.1;

  std::optional<FakeModelList> model_list_;
  std::optional<Driver> driver_;
};

TEST_F(FillingRiders, RideWhileTheFirstModelsPagesCome) {
  const double without_s = first_token_s(200, /*ride=*/false);
  EXPECT_LE(first_token_s(200, /*ride=*/true), without_s + 1e-3);
  EXPECT_EQ(fetches_of_the_first(), 100u);
  std::size_t together = 0;
  for (const ExecutedStep& executed : driver_->steps()) {
    if (executed.step.chunks.empty() || executed.planned_s < kComes_s) continue;
    if (executed.step.model == 3) break;
    together += executed.step.by_model().size() == 3 ? 1 : 0;
  }
  EXPECT_GE(together, 2u);
}

// Few frames are free: what the family's caches grow by while they ride is not what the first model's pages and cache
// want.
TEST_F(FillingRiders, TakeNobodysFrames) {
  const double without_s = first_token_s(100 + 1 + 9 + 3, /*ride=*/false);
  EXPECT_LE(first_token_s(100 + 1 + 9 + 3, /*ride=*/true), without_s + 1e-3);
  EXPECT_EQ(fetches_of_the_first(), 100u);
}

}  // namespace
}  // namespace computron::test
