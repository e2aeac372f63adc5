// Requests with common beginnings: every block of cache in use is counted once, also when the sequence that computed it
// has ended before those that share it.

#include <gtest/gtest.h>

#include "tests/sched/driver.h"

namespace computron::test {
namespace {

SchedulerOptions make_options(int frames, int max_batch_tokens) {
  return {.frames = frames,
          .max_batch_tokens = max_batch_tokens,
          .max_seqs = 16,
          .steps_in_flight = 1,
          .prefix_caching = true,
          .costs = {.link_bytes_per_s = kPageBytes / 0.0005, .memory_bytes_per_s = 1e12, .step_s = 1e-3}};
}

// Generates all of its tokens, behind `common` tokens that all requests of the model begin with.
Request beginning_with(RequestId id, ModelId model, int prompt, int max_tokens, int common) {
  Request request = make_request(id, model, prompt, max_tokens);
  request.ignore_eos = true;
  return common > 0 ? with_common_beginning(std::move(request), common) : request;
}

// Requests 1 to 4 of the pinned model 1 share a prefix of 32 blocks, which request 1, the first to end, has computed.
// Cached blocks of model 0, which is idle by then, are in their way.
TEST(SharedPrefix, APinnedModelGrowsWhereThePrefixOutlivesWhoComputedIt) {
  for (const int frames : {12, 13, 14, 15, 40}) {
    FakeModel pinned = small_model(1);
    pinned.pinned = true;
    const FakeModelList list({small_model(1), pinned});
    Driver driver(list, make_options(frames, /*max_batch_tokens=*/2048), "balanced");
    const auto submit = [&](Request request, double at_s) {
      request.arrival_s = at_s;
      driver.submit(std::move(request), at_s);
    };
    submit(beginning_with(0, 0, 512, 1, 0), 0);
    submit(beginning_with(1, 1, 4, 20, 512), 0.2);
    submit(beginning_with(2, 1, 4, 120, 512), 0.21);
    submit(beginning_with(3, 1, 4, 370, 512), 0.3);
    submit(beginning_with(4, 1, 4, 370, 512), 0.3);
    EXPECT_EQ(driver.run(), "") << frames << " frames";
    EXPECT_EQ(driver.finished().size(), 5u) << frames << " frames";
  }
}

std::size_t preemptions(int common, int max_seqs) {
  const FakeModelList list({small_model(2)});
  SchedulerOptions options = make_options(/*frames=*/2 + 16, /*max_batch_tokens=*/512);
  options.max_seqs = max_seqs;
  Driver driver(list, options, "balanced");
  for (RequestId id = 0; id < 60; ++id) driver.submit(beginning_with(id, 0, 30, 120, common));
  EXPECT_EQ(driver.run(), "");
  EXPECT_EQ(driver.finished().size(), 60u);
  return driver.preemptions();
}

TEST(SharedPrefix, AdmissionCountsThePrefixOfThoseThatRun) {
  for (const int max_seqs : {6, 8, 16}) {
    const std::size_t without = preemptions(0, max_seqs);
    for (const int common : {256, 512, 768}) {
      EXPECT_LE(preemptions(common, max_seqs), without + 20) << common << " tokens, " << max_seqs << " sequences";
    }
  }
}

// One model's work. Every request has a prompt of four blocks, of which three are a prefix that all have in common, and
// grows by `growth` tokens behind it.
class SharedPrefixBlocksTest : public ::testing::Test {
 protected:
  SharedPrefixBlocksTest() { work_.set_blocks(100); }
  void enqueue(RequestId id, int growth, std::int32_t priority = 0) {
    Request request = beginning_with(id, 0, kBlockTokens, /*max_tokens=*/1 + growth, 3 * kBlockTokens);
    request.priority = priority;
    work_.enqueue(std::move(request));
  }
  // The same, with its first pass in flight.
  ModelWork::Handle begin(RequestId id, int growth, std::int32_t priority = 0) {
    enqueue(id, growth, priority);
    work_.admit_next(id);
    const PassPlan pass = work_.choose({.tokens = 1000, .prompt_tokens = 1000, .logit_rows = 100, .blocks = 100});
    std::vector<SequenceChunk> chunks;
    return work_.begin_pass(pass, ++step_, /*now_s=*/0, chunks).at(0);
  }
  void report(ModelWork::Handle member) {
    const SampledRow row{.token = 7, .top = {}};
    PassResults results{.rows = {&row, 1}};
    work_.take_results(member, results, /*now_s=*/1);
  }

  ModelWork work_{kBlockTokens, {}, /*prefix_caching=*/true};
  StepId step_ = 0;
};

TEST_F(SharedPrefixBlocksTest, EachBlockInUseIsExpectedOnceWhoeverUsedItFirst) {
  const ModelWork::Handle first = begin(0, /*growth=*/0);
  begin(1, /*growth=*/1);
  EXPECT_EQ(work_.blocks_expected(2), 4 + 1 + 1);
  EXPECT_EQ(work_.sequences().unowned_blocks(), 0);
  report(first);
  EXPECT_EQ(work_.sequences().unowned_blocks(), 3);
  EXPECT_EQ(work_.blocks_expected(1), 3 + 1 + 1);
}

TEST_F(SharedPrefixBlocksTest, TheNextOneFindsBlocksThatAreUsedAndTakesThoseThatAreCached) {
  const ModelWork::Handle first = begin(0, /*growth=*/0), second = begin(1, /*growth=*/0);
  report(first);
  enqueue(2, /*growth=*/0);
  EXPECT_EQ(work_.peak_with_next(), 3 + 1 + 1);
  report(second);
  EXPECT_EQ(work_.peak_with_next(), 4);
}

// What it finds it keeps, whoever is preempted.
TEST_F(SharedPrefixBlocksTest, BlocksOfThoseThatAreLessUrgentDoNotCount) {
  const ModelWork::Handle first = begin(0, /*growth=*/0);
  begin(1, /*growth=*/1, /*priority=*/1);
  report(first);
  enqueue(2, /*growth=*/0, /*priority=*/0);
  EXPECT_EQ(work_.peak_with_next(), 4);
  begin(3, /*growth=*/0, /*priority=*/-1);
  EXPECT_EQ(work_.peak_with_next(), 3 + 1 + 1);
}

}  // namespace
}  // namespace computron::test
