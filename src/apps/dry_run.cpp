#include "src/apps/dry_run.h"

#include <fmt/format.h>

#include "computron/plan/machine_costs.h"
#include "computron/plan/plan_report.h"

namespace computron {
namespace {

constexpr double kLatency_s = 20e-6;  // of a step or its report, each way

void submit_all(RequestReader& reader, Progress& progress, bool replay, Scheduler& scheduler) {
  progress.wait_until([&] {
    while (std::optional<IncomingRequest> incoming = reader.poll()) {
      auto* parts = std::get_if<RequestParts>(&incoming->content);
      if (parts == nullptr) continue;  // a line that is no request costs no time
      for (Request& request : *parts) {
        if (!replay) request.arrival_s = 0;
        request.watch = nullptr;  // tokens are made up: no text ends early
        scheduler.submit(std::move(request));
      }
    }
    return reader.finished();
  });
  scheduler.close_input();
}

}  // namespace

void dry_run(Job& job, RequestReader* reader, bool replay) {
  const CostOptions costs =
      measure_costs(job.mesh().world, job.device(), job.ops(), job.progress(), job.models().weight_dtype(0));
  if (reader == nullptr) return;
  Scheduler scheduler = make_scheduler(job, costs);
  submit_all(*reader, job.progress(), replay, scheduler);
  std::vector<std::vector<const ShardLayout*>> layouts;
  for (const ModelShape& shape : job.models().shapes()) layouts.push_back(shape.layouts);
  VirtualMesh mesh(layouts, CostModel(layouts, costs), kLatency_s);
  PlanRecorder recorder(layouts, job.mesh().shape.tp);
  const VirtualRun run = run_virtually(scheduler, mesh, [&](const auto& sent) { recorder.add(sent); });
  fmt::print("{}", format_plan(recorder.finish(run, mesh), job.models().names(), costs));
}

}  // namespace computron
