// Work that more urgent work passes by gets on all the same (aging.h): the clock by itself, then the scheduler where
// others take all there is.

#include "computron/sched/aging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/sched/driver.h"

namespace computron::test {
namespace {

constexpr RequestId kFirstOfStream = 1000;

Request of_priority(Request request, std::int32_t priority) {
  request.priority = priority;
  request.ignore_eos = true;
  return request;
}

// --- The clock --------------------------------------------------------------------------------------------------

// One model, whose oldest request waits.
class Clock : public ::testing::Test {
 protected:
  static constexpr double kMaxWait_s = 1;
  Clock() {
    work_.edit(0, [](ModelWork& work) { work.enqueue(of_priority(make_request(0, 0, 5, 3), 0)); });
  }
  // A pass is planned while a request of this priority is the most urgent one that is open.
  void pass(std::int32_t least, double now_s) { aging_.note_pass(work_, least, now_s); }
  bool has_aged(double now_s) {
    aging_.age(work_, now_s);
    return work_[0].oldest().aged;
  }

 private:
  static std::vector<ModelWork> one_model() {
    std::vector<ModelWork> models;
    models.emplace_back(kBlockTokens, std::vector<TokenId>{});
    return models;
  }
  WorkTable work_{one_model()};
  Aging aging_{1, kMaxWait_s};
};

TEST_F(Clock, RunsFromPassToPassWhileSomebodyMoreUrgentIsOpen) {
  pass(-1, 5);
  EXPECT_FALSE(has_aged(5.9));
  pass(-1, 5.9);
  EXPECT_FALSE(has_aged(5.99));
  EXPECT_TRUE(has_aged(6.1));
}

// What has run until then counts, however often it stands.
TEST_F(Clock, StandsWhileNobodyMoreUrgentIsOpenAndGoesOnFromThere) {
  pass(-1, 0);
  pass(0, 0.6);
  EXPECT_FALSE(has_aged(1.5));
  pass(0, 1.7);
  pass(-1, 2);
  EXPECT_FALSE(has_aged(2.3));
  EXPECT_TRUE(has_aged(2.5));
}

TEST_F(Clock, StandsWhereNobodyIsMoreUrgent) {
  pass(0, 0);
  pass(0, 5);
  EXPECT_FALSE(has_aged(10));
}

// --- The scheduler ----------------------------------------------------------------------------------------------

SchedulerOptions scarce_options(int frames, int passes) {
  SchedulerOptions options{.frames = frames, .max_batch_tokens = 16, .max_seqs = 6, .steps_in_flight = passes};
  options.costs = {.link_bytes_per_s = kPageBytes / 0.0005, .memory_bytes_per_s = 1e12, .step_s = 1e-3};
  return options;
}

// Interactive requests, each of which arrives so long behind the one before.
void submit_stream(Driver& driver, ModelId model, int count, const Request& like, double begin_s, double every_s) {
  for (int i = 0; i < count; ++i) {
    const double arrival_s = begin_s + every_s * i;
    const RequestId id = kFirstOfStream + static_cast<RequestId>(i);
    const auto prompt = static_cast<int>(like.prompt.size());
    driver.submit(of_priority(make_request(id, model, prompt, like.max_tokens, arrival_s), Request::kInteractive),
                  arrival_s);
  }
}

// How often each request's first token is computed.
std::map<RequestId, int> times_begun(const Driver& driver) {
  std::map<RequestId, int> times;
  for (const ExecutedStep& executed : driver.steps()) {
    for (const SequenceChunk& chunk : executed.step.chunks) {
      if (const auto request = tells_request(chunk.tokens[0])) ++times[*request];
    }
  }
  return times;
}

// By policy.
class AgingPolicies : public ::testing::TestWithParam<const char*> {};

// A pass takes all the interactive requests that wait, and is their last: in no decision is one open but in flight.
TEST_P(AgingPolicies, TheClockRunsWhereAllThatIsUrgentEndsWithWhatIsInFlight) {
  const FakeModelList model_list({small_model(2), small_model(2)});
  Driver driver(model_list, scarce_options(100, /*passes=*/1), GetParam());
  driver.submit(of_priority(make_request(0, 1, 5, 3), 0));
  submit_stream(driver, 0, 2000, make_request(0, 0, 4, 1), 0, 0.001);
  ASSERT_EQ(driver.run(), "");
  EXPECT_LT(driver.completion(0).finished_s, 3 * Driver::kMaxWait_s + 0.1);
}

// Work of the same model that comes later, too, while an answer is computed that takes longer than all of it: where
// sequences are not joined by others, by one that has aged.
TEST_P(AgingPolicies, WhatArrivesBehindAStreamOfItsModelGetsOn) {
  const FakeModelList model_list({small_model(2)});
  Driver driver(model_list, scarce_options(100, /*passes=*/2), GetParam());
  submit_stream(driver, 0, 800, make_request(0, 0, 10, 6), 0, 0.002);
  driver.submit(of_priority(make_request(500, 0, 4, 1000, 0.11), Request::kInteractive), 0.11);
  for (RequestId id = 0; id < 4; ++id) {
    driver.submit(of_priority(make_request(id, 0, 20, 3, 0.1), static_cast<int>(id)), 0.1);
  }
  ASSERT_EQ(driver.run(), "");
  EXPECT_GT(driver.completion(kFirstOfStream + 799).finished_s, 1.7) << "they are too few to take all";
  EXPECT_LT(driver.completion(0).finished_s, 0.1 + 3 * Driver::kMaxWait_s + 0.1);
}

// To compute again what an interactive request has lost takes longer than max_wait. Batch work of another model, whose
// cache has no room beside, lets it come so far, and farther each time.
TEST_P(AgingPolicies, WhoHasLostACacheGetsItBackBeforeAnybodyAges) {
  const FakeModelList model_list({small_model(2), small_model(2)});
  SchedulerOptions large = scarce_options(/*frames=*/23, /*passes=*/1);
  large.max_batch_tokens = 256;
  Driver driver(model_list, large, GetParam());
  driver.submit(of_priority(make_request(kFirstOfStream, 0, 2560, 4), Request::kInteractive));
  driver.submit(of_priority(make_request(0, 1, 1000, 40), 0));
  ASSERT_EQ(driver.run(), "");
  EXPECT_GT(times_begun(driver).at(kFirstOfStream), 2) << "there is room for both caches";
  EXPECT_LT(driver.completion(kFirstOfStream).finished_s, driver.completion(0).finished_s);
}

INSTANTIATE_TEST_SUITE_P(Policies, AgingPolicies, ::testing::Values("fifo", "balanced", "throughput"));

// Interactive requests of the first model leave no place to its batch work, which has lost its cache to those of the
// second model. It keeps nobody from aging (driver.h checks that), itself included; nor is its model the one that
// stays: where the policy weighs models, an interactive request of the other one has its turn.
TEST(AgingBalanced, BatchWorkThatCatchesUpInNoPassHoldsUpNobody) {
  const FakeModelList model_list({small_model(2), small_model(2)});
  Driver driver(model_list, scarce_options(/*frames=*/14, /*passes=*/2), "balanced");
  for (RequestId id = 0; id < 6; ++id) driver.submit(of_priority(make_request(id, 0, 150, 60), 0));
  for (RequestId id = 500; id < 504; ++id) driver.submit(of_priority(make_request(id, 1, 200, 4, 0.18), -1), 0.18);
  submit_stream(driver, 0, 1000, make_request(0, 0, 10, 6), 0.19, 0.001);
  driver.submit(of_priority(make_request(600, 1, 10, 4, 0.6), -1), 0.6);
  ASSERT_EQ(driver.run(), "");
  const std::map<RequestId, int> times = times_begun(driver);
  EXPECT_TRUE(std::ranges::any_of(times, [](const auto& of) { return of.first < 6 && of.second > 1; }));
  EXPECT_LT(driver.completion(600).finished_s, 0.8);
}

}  // namespace
}  // namespace computron::test
