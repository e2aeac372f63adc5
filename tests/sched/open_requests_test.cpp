#include "computron/sched/open_requests.h"

#include <gtest/gtest.h>

#include "tests/sched/fake_model.h"

namespace computron::test {
namespace {

constexpr std::size_t kRanks = 3;

// Passes take `step_s` and a little more.
class OpenRequestsTest : public ::testing::Test {
 protected:
  explicit OpenRequestsTest(double step_s = 1) : costs_(layouts_of(list_), {.step_s = step_s}) {}
  static std::vector<std::vector<const ShardLayout*>> layouts_of(const FakeModelList& list) {
    std::vector<std::vector<const ShardLayout*>> layouts;
    for (const ModelShape& shape : list.shapes()) layouts.emplace_back(shape.layouts.begin(), shape.layouts.end());
    return layouts;
  }
  void add(ModelId model, int requests, std::size_t rank = 1) {
    for (int i = 0; i < requests; ++i) open_.add(model, {100, 100, rank});
    open_.count_anew(model, costs_, /*growth_ratio=*/1);
  }
  void remove(ModelId model, int requests, std::size_t rank = 1) {
    for (int i = 0; i < requests; ++i) open_.remove(model, {100, 100, rank});
    open_.count_anew(model, costs_, /*growth_ratio=*/1);
  }

  FakeModelList list_{{small_model(1), small_model(2)}};
  CostModel costs_;
  OpenRequests open_{2, /*max_batch_tokens=*/100, /*seqs_a_pass=*/1};
};

// A pass for the prompt and 99 for the tokens behind the first, of a second each: a hundred million seconds.
TEST_F(OpenRequestsTest, TheQueueGrowsHoweverLongItIs) {
  add(0, 500'000);
  const double half_s = open_.work_s();
  EXPECT_NEAR(half_s, 50e6, 1e5);
  add(0, 500'000);
  EXPECT_NEAR(open_.work_s(), 2 * half_s, 1);
  add(1, 10, /*rank=*/2);
  EXPECT_NEAR(open_.work_before_s(1), 2 * half_s, 1);
  remove(0, 1'000'000);
  EXPECT_NEAR(open_.work_s(), 1000, 1);
  remove(1, 10, /*rank=*/2);
  EXPECT_EQ(open_.work_s(), 0);
}

class EndlessPasses : public OpenRequestsTest {
 protected:
  EndlessPasses() : OpenRequestsTest(/*step_s=*/1e30) {}
};

TEST_F(EndlessPasses, NoSumOverflows) {
  double before_s = 0;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (const ModelId model : {0, 1}) {
      add(model, 3, rank);
      EXPECT_GT(open_.work_s(), before_s);
      before_s = open_.work_s();
    }
  }
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (const ModelId model : {0, 1}) remove(model, 3, rank);
  }
  EXPECT_EQ(open_.work_s(), 0);
}

}  // namespace
}  // namespace computron::test
