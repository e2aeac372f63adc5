// Whole jobs of several groups, in virtual time.
#include <gmock/gmock.h>

#include <random>

#include "tests/plan/virtual_groups.h"

namespace computron::test {
namespace {

// --- One group --------------------------------------------------------------------------------------------------

// A scheduler without a dispatcher before it.
VirtualRun run_bare(Scheduler& scheduler, VirtualMesh& mesh) {
  VirtualRun run;
  std::deque<std::size_t> pending;  // indices of steps
  double now_s = 0;
  for (;;) {
    for (; !pending.empty() && run.steps[pending.front()].execution.reported_s <= now_s; pending.pop_front()) {
      const VirtualRun::SentStep& done = run.steps[pending.front()];
      SampledRow row;
      row.token = std::numeric_limits<TokenId>::max();
      row.finite = true;
      const std::vector<SampledRow> rows(static_cast<std::size_t>(done.planned.step.logit_rows()), row);
      scheduler.completed(done.planned.step.id, {rows, {}}, now_s, done.execution.times);
    }
    Decision decision = scheduler.next(now_s);
    for (Completion& completion : scheduler.take_completions()) run.completions.push_back(std::move(completion));
    if (std::holds_alternative<AllDone>(decision)) return run;
    if (auto* planned = std::get_if<PlannedStep>(&decision)) {
      pending.push_back(run.steps.size());
      VirtualMesh::Execution execution = mesh.execute(planned->step, now_s);
      run.steps.push_back({now_s, std::move(execution), std::move(*planned)});
      continue;
    }
    double until_s = std::get<WaitUntil>(decision).time_s;
    if (!pending.empty()) until_s = std::min(until_s, run.steps[pending.front()].execution.reported_s);
    now_s = std::max(now_s, until_s);
  }
}

// As the ranks get them.
std::vector<std::vector<std::byte>> bytes_of(const VirtualRun& run) {
  std::vector<std::vector<std::byte>> bytes;
  for (const VirtualRun::SentStep& sent : run.steps) {
    for (int s = 0; s < static_cast<int>(sent.planned.step.stages.size()); ++s) {
      bytes.push_back(sent.planned.step.encode(s));
    }
  }
  return bytes;
}

VirtualGroups random_job(unsigned seed) {
  std::mt19937 random(seed);
  VirtualGroups job{.pages = {}, .pass_s = 0.002 * (1 + random() % 10), .groups = {}};
  job.pages.assign(1 + random() % 6, 32);
  job.policy = std::vector<std::string>{"fifo", "balanced", "throughput"}[seed % 3];
  VirtualGroups::Group& group = job.groups.emplace_back();
  for (ModelId m = 0; m < job.pages.size(); ++m) group.models.push_back(m);
  group.stages = 1 << random() % 3;
  group.frames = 64;
  const bool replay = random() % 2 == 0;
  for (int i = 0; i < 60; ++i) {
    job.add(random() % job.pages.size(), 1 + random() % 12, replay ? 0.001 * (random() % 2000) : 0);
  }
  return job;
}

TEST(OneGroup, ItsStepsAreThoseOfTheBareScheduler) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const VirtualGroups job = random_job(seed);
    VirtualGroupSet bare(job), dispatched(job);
    for (const Request& request : job.requests) bare.scheduler(0).submit(request);
    bare.scheduler(0).close_input();
    const VirtualRun expected = run_bare(bare.scheduler(0), *bare.meshes().front());
    Dispatcher dispatcher(dispatched.groups(), job.pages.size());
    for (const Request& request : job.requests) dispatcher.submit(request);
    dispatcher.close_input();
    VirtualRun found;
    std::vector<VirtualRun::SentStep> steps;
    found = run_virtually(dispatcher, dispatched.meshes(),
                          [&steps](VirtualRun::SentStep sent) { steps.push_back(std::move(sent)); });
    found.steps = std::move(steps);
    ASSERT_EQ(bytes_of(found), bytes_of(expected)) << "seed " << seed;
    ASSERT_EQ(found.completions.size(), job.requests.size());
    for (std::size_t i = 0; i < found.completions.size(); ++i) {
      ASSERT_EQ(found.completions[i].id, expected.completions[i].id) << "seed " << seed;
      ASSERT_EQ(found.completions[i].finished_s, expected.completions[i].finished_s) << "seed " << seed;
    }
    for (std::size_t i = 0; i < found.steps.size(); ++i) ASSERT_EQ(found.steps[i].sent_s, expected.steps[i].sent_s);
  }
}

// --- AlpaServe's two models (OSDI'23, section 3) ------------------------------------------------------------------

constexpr double kD = 0.4;  // a model's pass, alone on a device

// Poisson arrivals of both models, `share` of them of the first, one request at a time.
VirtualGroups two_models(double rate, double share, double duration_s) {
  VirtualGroups job{.pages = {8, 8}, .page_s = 1e-6, .pass_s = kD, .groups = {}, .max_seqs = 1};
  std::mt19937_64 random(7);
  std::exponential_distribution<double> gap_s(rate);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (double now_s = gap_s(random); now_s < duration_s; now_s += gap_s(random)) {
    job.add(uniform(random) < share ? 0 : 1, 1, now_s);
  }
  return job;
}

// Mean latency of M/D/1: `rate` requests a second that take `service_s` each.
double m_d_1_s(double rate, double service_s) {
  return service_s + rate * service_s * service_s / (2 * (1 - rate * service_s));
}

// Within 3 %: 20,000 s of arrivals are 30,000 requests.
TEST(AlpaServeTwoModels, DedicatedGroupsAreTwoQueues) {
  for (const double share : {0.5, 0.2}) {
    constexpr double kRate = 1.5;
    VirtualGroups job = two_models(kRate, share, 20000);
    job.groups = {{.models = {0}}, {.models = {1}}};
    const double expected_s = share * m_d_1_s(share * kRate, kD) + (1 - share) * m_d_1_s((1 - share) * kRate, kD);
    EXPECT_NEAR(job.run().mean_latency_s() / expected_s, 1, 0.03) << share;
  }
}

TEST(AlpaServeTwoModels, APipelineIsOneQueueOfTheSlowestStage) {
  for (const double share : {0.5, 0.2}) {
    constexpr double kRate = 1.5;
    VirtualGroups job = two_models(kRate, share, 20000);
    job.groups = {{.models = {0, 1}, .stages = 2}};
    job.max_seqs = 2;  // one in each stage
    const double expected_s = kD + m_d_1_s(kRate, kD / 2) - kD / 2;
    EXPECT_NEAR(job.run().mean_latency_s() / expected_s, 1, 0.03) << share;
  }
}

// Replicas everywhere are M/D/2, in which one waits half as long as in M/M/2: whatever the shares.
TEST(AlpaServeTwoModels, ReplicasAreTwoServersOfOneQueue) {
  for (const double share : {0.5, 0.2}) {
    constexpr double kRate = 1.5;
    VirtualGroups job = two_models(kRate, share, 20000);
    job.groups = {{.models = {0, 1}}, {.models = {0, 1}}};
    const double load = kRate * kD / 2, all_busy = 2 * load * load / (1 + load);
    const double expected_s = kD + all_busy / (2 / kD - kRate) / 2;
    EXPECT_NEAR(job.run().mean_latency_s() / expected_s, 1, 0.03) << share;
  }
}

// --- All known --------------------------------------------------------------------------------------------------

// Eight equal models, all of which each group of one rank holds.
TEST(GroupsInVirtualTime, KnownRequestsEndCloseToTheBound) {
  for (const double ratio : {0.5, 1.0, 2.0}) {
    for (const std::size_t count : {2, 4}) {
      VirtualGroups job{.pages = std::vector<int>(8, 64), .page_s = 0.1 / 64, .groups = {}, .policy = "throughput"};
      constexpr int kTokens = 4, kBatches = 4;  // of 64
      job.pass_s = ratio * 0.1 / (kTokens * kBatches);
      job.groups.assign(count, {.models = {0, 1, 2, 3, 4, 5, 6, 7}, .frames = 3 * 64 + 30});
      for (int i = 0; i < 8 * 64 * kBatches; ++i) job.add(static_cast<ModelId>(i % 8), kTokens);
      const VirtualGroups::Outcome outcome = job.run();
      const double each = 8.0 / static_cast<double>(count), compute_s = ratio * 0.1;
      const double bound_s = std::max(each * 0.1 + compute_s, 0.1 + each * compute_s);
      EXPECT_EQ(outcome.run.completions.size(), job.requests.size());
      EXPECT_LE(outcome.run.end_s, 1.07 * bound_s) << count << " groups, C/T " << ratio;
    }
  }
}

}  // namespace
}  // namespace computron::test
