// Steps of every size from rank 0 to another: whole and in order. Who asks a job to stop, and who is there then.
#include "computron/runtime/step_exchange.h"

#include <gtest/gtest.h>

#include "computron/base/time.h"
#include "computron/comm/tags.h"
#include "computron/runtime/stop_exchange.h"

namespace computron {
namespace {

// Steps whose messages are a fragment, a few fragments, the longest in fragments, and megabytes.
std::vector<Step> steps_of_all_sizes() {
  std::vector<Step> steps;
  for (const std::size_t patches : {0, 2000, 16000, 17000, 700000, 5, 300000, 0, 0, 0}) {
    Step& step = steps.emplace_back();
    step.id = steps.size();
    step.stages.resize(1);
    step.chunks.push_back({.sequence = 7, .tokens = {1, 2}, .new_blocks = {}});
    for (std::size_t i = 0; i < patches; ++i) step.chunks[0].patches.push_back(static_cast<float>(i % 1000 + step.id));
    step.stages.back().fetches.push_back({.page = static_cast<PageId>(step.id), .after = {}});
  }
  return steps;
}

void expect_steps(const Mesh& mesh, const std::vector<Step>& sent) {
  StepReceiver receiver(mesh, /*steps_in_flight=*/2);
  const double deadline_s = now_s() + 60;
  for (const Step& expected : sent) {
    std::optional<Step> step;
    while (!(step = receiver.poll())) ASSERT_LT(now_s(), deadline_s) << "step " << expected.id << " does not come";
    EXPECT_EQ(step->encode(0), Step::decode(expected.encode(0), 0, 1).encode(0));
    EXPECT_EQ(step->id, expected.id);
  }
}

TEST(StepExchange, StepsOfAllSizesArriveWholeAndInOrder) {
  Communicator world = Communicator::world();
  if (world.size() != 2) GTEST_SKIP() << "two ranks";
  const Mesh mesh({.tp = 2, .pp = 1}, std::move(world));
  const std::vector<Step> steps = steps_of_all_sizes();
  if (mesh.rank == 1) return expect_steps(mesh, steps);
  StepSender sender(mesh.job, mesh.own_group());
  for (const Step& step : steps) sender.send(step);
  const double deadline_s = now_s() + 60;
  while (!sender.idle()) {
    sender.poll();
    ASSERT_LT(now_s(), deadline_s);
  }
}

// Rank 1 reports the digest of the first step as it came, and of the second as if a bit had come otherwise.
void report_two_steps(const Mesh& mesh) {
  StepReceiver receiver(mesh, /*steps_in_flight=*/2);
  Outbox outbox;
  const double deadline_s = now_s() + 60;
  for (StepId id = 1; id <= 2;) {
    ASSERT_LT(now_s(), deadline_s);
    const std::optional<Step> step = receiver.poll();
    if (!step) continue;
    Report report;
    report.step = id;
    report.received = step->digest ^ (id == 2 ? 1 : 0);
    outbox.send(mesh.job, report.encode(), 0, tags::kReport);
    ++id;
  }
  mesh.job.barrier();
}

TEST(StepExchange, ARankThatReceivedAnotherStepIsNamed) {
  Communicator world = Communicator::world();
  if (world.size() != 2) GTEST_SKIP() << "two ranks";
  const Mesh mesh({.tp = 2, .pp = 1}, std::move(world));
  if (mesh.rank == 1) return report_two_steps(mesh);
  StepSender sender(mesh.job, mesh.own_group());
  ReportCollector collector(mesh.job, mesh.own_group());
  const double deadline_s = now_s() + 60;
  std::string failure;
  for (StepId id = 1; id <= 2; ++id) {
    Step step;
    step.id = id;
    step.stages.resize(1);
    collector.expect(step, {StateDigest{}});
    collector.note_sent(id, sender.send(step));
    Report own;
    own.step = id;
    collector.put_own(own);
    try {
      while (!collector.poll()) {
        sender.poll();
        ASSERT_LT(now_s(), deadline_s);
      }
      EXPECT_EQ(id, 1u) << "not seen";
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  EXPECT_NE(failure.find("rank 1 received another step 2 than rank 0 sent"), std::string::npos) << failure;
  mesh.job.barrier();
}

// Rank 0 sees `signals` of rank 1 in the end.
void expect_told(StopListener& listener, int signals) {
  const double deadline_s = now_s() + 60;
  while (listener.poll() < signals || !listener.all_answered()) ASSERT_LT(now_s(), deadline_s);
}

TEST(StopExchange, RankThatSaysNothingIsMissed) {
  Communicator world = Communicator::world();
  if (world.size() != 2) GTEST_SKIP() << "two ranks";
  const Mesh mesh({.tp = 2, .pp = 1}, std::move(world));
  if (mesh.rank == 1) {
    StopTeller teller(mesh);
    mesh.job.barrier();
    for (const int signals : {1, 2}) {
      for (int i = 0; i < 1000; ++i)
        teller.poll(signals, /*only_warned=*/signals == 1, /*status_requests=*/signals == 2 ? 3 : 0);
      mesh.job.barrier();
    }
    return;
  }
  StopListener listener(mesh);
  listener.ask();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(listener.poll(), 0);
  EXPECT_FALSE(listener.all_answered());
  EXPECT_TRUE(listener.only_warned());
  mesh.job.barrier();
  mesh.job.barrier();
  expect_told(listener, 1);
  EXPECT_EQ(listener.status_requests(), 0);
  mesh.job.barrier();
  expect_told(listener, 2);
  EXPECT_EQ(listener.status_requests(), 1);  // it has grown
  EXPECT_FALSE(listener.only_warned());
}

// `profile` runs many jobs in one process. Rank 1 is told to stop when rank 0 no longer listens: what comes late would
// take the place of a message of the next job.
TEST(StopExchange, LateSignalsDoNotReachTheNextJob) {
  constexpr int kJobs = 5, kMessages = 100;
  const Communicator world = Communicator::world();
  if (world.size() != 2) GTEST_SKIP() << "two ranks";
  for (int i = 0; i < kJobs; ++i) {
    {
      const Mesh mesh({.tp = 2, .pp = 1}, world.split(/*color=*/0, world.rank()));
      if (mesh.rank == 1) {
        StopTeller(mesh).poll(/*stops=*/1, /*only_warned=*/true, /*status_requests=*/0);
      } else {
        const StopListener listener(mesh);
      }
    }
    const Mesh next({.tp = 2, .pp = 1}, world.split(/*color=*/0, world.rank()));
    for (int message = 0; message < kMessages; ++message) {
      EXPECT_EQ(next.job.all_reduce_max(static_cast<std::uint64_t>(world.rank())), 1);
    }
  }
}

}  // namespace
}  // namespace computron
