// Sequences of models that differ in their adapters alone, in one pass.
#include <gmock/gmock.h>

#include <map>
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

}  // namespace
}  // namespace computron::test
