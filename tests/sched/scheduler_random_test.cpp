// Random rosters, pools, limits and requests against every rule of driver.h and fifo_rules.h.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/sched/fifo_rules.h"

namespace computron::test {
namespace {

class RandomJob {
 public:
  explicit RandomJob(std::uint64_t seed) : random_(seed * 7919 + 1), roster_(make_models()) {
    options_.max_batch_tokens = from(1, one_in(3) ? 8 : 100);
    options_.max_seqs = from(1, one_in(3) ? 2 : 10);
    options_.steps_in_flight = from(1, 5);
    options_.frames = smallest_pool() + (one_in(4) ? 0 : from(0, 30));
  }

  Driver make_driver() {
    Driver driver(roster_, options_);
    const double span_s = one_in(2) ? 0 : 0.001 * from(0, 500);
    const int requests = from(0, 40);
    for (int id = 0; id < requests; ++id) {
      const Request request = make_request(static_cast<RequestId>(id), span_s);
      const bool late = one_in(3);
      driver.submit(request, late ? request.arrival_s + 0.001 * from(0, 50) : 0);
    }
    return driver;
  }

 private:
  int from(int least, int most) { return least + static_cast<int>(random_() % (most - least + 1)); }
  bool one_in(int n) { return random_() % n == 0; }

  std::vector<FakeModel> make_models() {
    std::vector<FakeModel> models(from(1, 4));
    const int stages = from(1, 4);
    for (FakeModel& model : models) {
      for (int stage = 0; stage < stages; ++stage) {
        model.pages.push_back(from(1, 9));
        model.layers.push_back(from(1, 5));
      }
      if (!one_in(3)) model.eos_tokens = {from(0, kVocab - 1), from(0, kVocab - 1)};
    }
    return models;
  }

  // What the largest model needs beside one block of cache.
  int smallest_pool() const {
    int frames = 0;
    for (ModelId m = 0; m < roster_.models(); ++m) {
      for (int stage = 0; stage < roster_.stages(); ++stage) {
        frames = std::max(frames, roster_.frames_needed(m, stage, 1));
      }
    }
    return frames;
  }

  Request make_request(RequestId id, double span_s) {
    const auto model = static_cast<ModelId>(random_() % roster_.models());
    Request request = test::make_request(id, model, from(1, one_in(4) ? 120 : 20), from(0, one_in(4) ? 60 : 8));
    request.arrival_s = span_s * (random_() % 1000) / 1000;
    request.echo = one_in(3);
    request.ignore_eos = one_in(4);
    if (one_in(3)) request.logprobs = from(0, 5);
    if (one_in(4)) request.stop_tokens = {from(0, kVocab - 1)};
    if (one_in(10)) request.prompt.insert(request.prompt.begin() + from(1, std::ssize(request.prompt)), kPoison);
    return request;
  }

  std::mt19937_64 random_;
  FakeRoster roster_;
  SchedulerOptions options_;
};

TEST(SchedulerRandom, EveryRuleHoldsForEverySchedule) {
  std::size_t steps = 0, swaps = 0, refused = 0, failed = 0, stopped = 0, overlapping = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomJob job(seed);
    Driver driver = job.make_driver();
    ASSERT_EQ(driver.run(), "") << "seed " << seed;
    ASSERT_EQ(broken_fifo_rule(driver), "") << "seed " << seed;
    steps += driver.steps().size();
    for (const ExecutedStep& step : driver.steps()) swaps += step.swap, overlapping += step.in_flight > 1;
    for (const RequestId id : driver.finished()) {
      const Completion& completion = driver.completion(id);
      refused += completion.error_code == "context_length_exceeded";
      failed += completion.error_code == "numerical_error";
      stopped += completion.finish_reason == FinishReason::kStop;
    }
  }
  // The seeds reach what the rules are about.
  EXPECT_GT(steps, 12000u);
  EXPECT_GT(swaps, 600u);
  EXPECT_GT(refused, 120u);
  EXPECT_GT(failed, 200u);
  EXPECT_GT(stopped, 400u);
  EXPECT_GT(overlapping, 2000u);
}

}  // namespace
}  // namespace computron::test
