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
      row.token = -1;
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

}  // namespace
}  // namespace computron::test
