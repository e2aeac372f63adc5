#include "computron/sched/policy.h"

#include <gmock/gmock.h>

namespace computron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelView waiting(ModelId model, double oldest_arrival_s, std::uint64_t oldest_request) {
  return {.model = model, .waiting = 1, .oldest_arrival_s = oldest_arrival_s, .oldest_request = oldest_request};
}

ModelView used(ModelId model, StepId last_used) { return {.model = model, .last_used = last_used}; }

TEST(FifoPolicy, TheModelOfTheOldestRequestIsNext) {
  const auto policy = make_fifo_policy();
  EXPECT_EQ(policy->next_model(std::vector{waiting(0, 3, 0), waiting(1, 1, 2), waiting(2, 2, 1)}), 1u);
}

TEST(FifoPolicy, OfEqualArrivalsTheFirstRequestIsNext) {
  const auto policy = make_fifo_policy();
  EXPECT_EQ(policy->next_model(std::vector{waiting(0, 1, 7), waiting(1, 1, 5), waiting(2, 1, 6)}), 1u);
}

TEST(FifoPolicy, ModelsWithoutRequestsAreNotAsked) {
  const auto policy = make_fifo_policy();
  ModelView idle;  // its zeros look older than anything
  EXPECT_EQ(policy->next_model(std::vector{idle, waiting(1, 9, 4), waiting(2, 9, 3)}), 2u);
}

// What is in memory, how much is missing and how many wait decide nothing.
TEST(FifoPolicy, OnlyTheArrivalCounts) {
  const auto policy = make_fifo_policy();
  ModelView busy = waiting(0, 2, 0), swapped_out = waiting(1, 1, 1);
  busy.waiting = 1000;
  busy.last_used = 50;
  swapped_out.missing_pages = 1000;
  EXPECT_EQ(policy->next_model(std::vector{busy, swapped_out}), 1u);
}

TEST(FifoPolicy, TheLeastRecentlyUsedLosesFirst) {
  const auto policy = make_fifo_policy();
  const std::vector views{used(0, 30), used(1, 10), used(2, 40), used(3, 20)};
  EXPECT_THAT(policy->eviction_order(views, 2), ElementsAre(1, 3, 0));
  EXPECT_THAT(policy->eviction_order(views, 1), ElementsAre(3, 0, 2));
}

TEST(FifoPolicy, NeverUsedModelsLoseBeforeAllOthersInTheirOrder) {
  const auto policy = make_fifo_policy();
  EXPECT_THAT(policy->eviction_order(std::vector{used(0, 1), used(1, 0), used(2, 0), used(3, 2)}, 3),
              ElementsAre(1, 2, 0));
}

// Requests that wait for a model do not keep its pages.
TEST(FifoPolicy, EvictionLooksAtUseAlone) {
  const auto policy = make_fifo_policy();
  std::vector views{used(0, 2), used(1, 1), used(2, 3)};
  views[1].waiting = 10;
  EXPECT_THAT(policy->eviction_order(views, 2), ElementsAre(1, 0));
}

TEST(Policies, AreFoundByName) {
  EXPECT_NE(make_policy("fifo"), nullptr);
  try {
    make_policy("lifo");
    FAIL() << "lifo is no policy";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("lifo"));
    EXPECT_THAT(error.what(), HasSubstr("fifo)"));
  }
}

}  // namespace
}  // namespace computron
