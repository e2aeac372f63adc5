#include "computron/base/status_signal.h"
#include "computron/base/stop.h"
#include "computron/comm/tags.h"
#include "computron/serve/engine.h"

namespace computron {

bool run_worker(Job& job, const JobHeartbeat& heartbeat) {
  StepReceiver receiver(job.mesh(), job.group_plan().steps_announced);
  StopTeller stops(job.mesh());
  Outbox reports;
  std::deque<Step> todo;
  const auto poll = [&] {
    heartbeat.poll();
    while (auto step = receiver.poll()) {
      const TraceSpan span(job.trace(), TraceTrack::kControl, "accept step", {}, {"step", step->id});
      job.executor().accept(*step);
      todo.push_back(std::move(*step));
    }
    reports.poll();
    stops.poll(stop_signals(), only_warned(), status_signals());
    job.executor().poll();
  };
  job.progress().set_hook(poll);
  heartbeat.enter(SignOfLife::kServe);

  Idler idler(job.progress().idle());
  bool all_done = false;
  while (true) {
    poll();
    if (todo.empty()) {
      idler.pause();
      continue;
    }
    idler.reset();
    const Step step = std::move(todo.front());
    todo.pop_front();
    all_done = step.kind == Step::kShutdown;
    if (step.kind != Step::kRun) break;
    heartbeat.expect(step.id, step.predicted_s);
    const Report report = job.run(step);
    heartbeat.expect(std::nullopt);
    const TraceSpan span(job.trace(), TraceTrack::kControl, "report", {}, {"step", step.id});
    reports.send(job.mesh().job, report.encode(), 0, tags::kReport);
  }
  heartbeat.enter(SignOfLife::kFinish);
  job.progress().wait_until([&] { return reports.empty(); });
  job.progress().set_hook({});
  return all_done;
}

}  // namespace computron
