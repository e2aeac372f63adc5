// Rank 0 collects the reports of a group that it is not of.
#include <gtest/gtest.h>

#include "computron/base/time.h"
#include "computron/comm/tags.h"
#include "computron/runtime/step_exchange.h"

namespace computron {
namespace {

void report(const Mesh& mesh, std::uint64_t received) {
  Report report;
  report.step = 1;
  report.received = received;
  Outbox outbox;
  outbox.send(mesh.job, report.encode(), 0, tags::kReport);
  while (!outbox.empty()) outbox.poll();
}

// What the collector says within a minute: a failure, or nothing when all have reported.
std::string outcome(ReportCollector& collector) {
  for (const double deadline_s = now_s() + 60; now_s() < deadline_s;) {
    try {
      if (collector.poll()) return {};
    } catch (const Error& error) {
      return error.what();
    }
  }
  return "no report came";
}

// Whichever rank that is: the one before it has not reported.
TEST(ReportCollector, ARankThatDisagreesIsNamedBeforeTheOthersReport) {
  const MeshShape shapes[] = {{}, {.tp = 2}};
  const Mesh mesh(shapes, Communicator::world());
  constexpr std::uint64_t kDigest = 7;
  for (const int disagrees : {1, 2}) {
    if (mesh.job.rank() == disagrees) report(mesh, kDigest + 1);
    if (mesh.schedules()) {
      ReportCollector collector(mesh.job, mesh.groups[1], /*names_group=*/true);
      Step step;
      step.id = 1;
      step.stages.resize(1);
      collector.expect(step, {StateDigest{}});
      collector.note_sent(step.id, {kDigest});
      EXPECT_NE(outcome(collector).find("rank " + std::to_string(disagrees) + " (group 1) received another step 1"),
                std::string::npos);
    }
    mesh.job.barrier();
  }
}

TEST(ReportCollector, AStepIsCompleteWhenAllHaveReported) {
  const MeshShape shapes[] = {{}, {.tp = 2}};
  const Mesh mesh(shapes, Communicator::world());
  constexpr std::uint64_t kDigest = 7;
  if (!mesh.schedules()) {
    if (mesh.job.rank() == 1) mesh.job.barrier();
    report(mesh, kDigest);
    if (mesh.job.rank() == 2) mesh.job.barrier();
    return;
  }
  ReportCollector collector(mesh.job, mesh.groups[1]);
  Step step;
  step.id = 1;
  step.stages.resize(1);
  collector.expect(step, {StateDigest{}});
  collector.note_sent(step.id, {kDigest});
  for (int poll = 0; poll < 1000; ++poll) EXPECT_FALSE(collector.poll()) << "rank 1 has not reported";
  mesh.job.barrier();
  EXPECT_EQ(outcome(collector), "");
}

}  // namespace
}  // namespace computron
