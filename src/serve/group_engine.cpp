#include "computron/serve/group_engine.h"

#include <algorithm>
#include <utility>

#include "computron/base/time.h"

namespace computron {

namespace {

std::vector<ModelId> riders_of(const Step& step) {
  std::vector<ModelId> riders;
  for (const ModelChunks& own : step.by_model()) {
    if (own.model != step.model) riders.push_back(own.model);
  }
  return riders;
}

}  // namespace

GroupEngine::GroupEngine(const Communicator& job, const RankGroup& group, bool names_group, const Scheduler& scheduler,
                         Metrics& metrics, StepWatch watch)
    : group_(group),
      scheduler_(scheduler),
      metrics_(metrics),
      watch_(std::move(watch)),
      sender_(job, group),
      collector_(job, group, names_group),
      times_(static_cast<std::size_t>(group.shape.ranks())) {
  const std::size_t models = scheduler.costs().models();
  shard_bytes_.assign(models, std::vector<std::uint64_t>(static_cast<std::size_t>(group.shape.pp), 0));
  for (RankTimes& rank : times_) {
    rank.busy_by_model.assign(models, 0);
    rank.exposed_by_model.assign(models, 0);
  }
}

std::optional<Step> GroupEngine::send(PlannedStep planned, Ticket begun) {
  if (has_rank_0()) return send_now(std::move(planned));
  held_.push_back({std::move(planned), begun});
  return std::nullopt;
}

bool GroupEngine::send_held(const std::function<bool(Ticket)>& noted) {
  bool sent = false;
  for (; !held_.empty() && noted(held_.front().begun); held_.pop_front(), sent = true) {
    send_now(std::move(held_.front().planned));
  }
  return sent;
}

Step GroupEngine::send_now(PlannedStep planned) {
  count_sent(planned);
  if (watch_) watch_(planned);
  Step& step = planned.step;
  collector_.expect(step, std::move(planned.expected));
  collector_.note_sent(step.id, sender_.send(step));
  in_flight_.push_back(
      {step.id, step.model, now_s(), step.predicted_s, !planned.swaps.empty(), !step.chunks.empty(), riders_of(step)});
  return std::move(step);
}

std::optional<GroupEngine::Done> GroupEngine::take_reports() {
  std::optional<std::vector<Report>> reports = collector_.poll();
  if (!reports) return std::nullopt;
  const InFlight step = in_flight_.front();
  in_flight_.pop_front();
  count_reported(step, *reports);
  return Done{step, *std::move(reports)};
}

std::vector<StageTimes> GroupEngine::stage_times(const std::vector<Report>& reports) const {
  const MeshShape shape = group_.shape;
  std::vector<StageTimes> times(static_cast<std::size_t>(shape.pp));
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const Report& report = reports[static_cast<std::size_t>(rank)];
    StageTimes& stage = times[static_cast<std::size_t>(shape.stage_of(rank))];
    const bool first = rank == shape.rank_of(shape.stage_of(rank), 0);
    stage.compute_s = std::max(stage.compute_s, report.compute_s);
    const std::size_t link_bytes = times_[static_cast<std::size_t>(rank)].copies.landed_link_bytes();
    stage.link_bytes = first ? link_bytes : std::min(stage.link_bytes, link_bytes);
    stage.link_busy_s = std::max(stage.link_busy_s, report.busy_s);
  }
  return times;
}

// What a step will move, when it is sent.
void GroupEngine::count_sent(const PlannedStep& planned) {
  const Step& step = planned.step;
  for (const ModelId model : planned.swaps) ++metrics_of(model).swaps.count;
  const auto tp = static_cast<std::uint64_t>(group_.shape.tp);
  for (int rank = 0; rank < group_.shape.ranks(); ++rank) note_copies(rank, step);
  for (std::size_t stage = 0; stage < step.stages.size(); ++stage) {
    for (const Fetch& fetch : step.stages[stage].fetches) {
      const ShardLayout& layout = scheduler_.layout(fetch.model, stage);
      const std::size_t link_bytes = layout.page_link_bytes(fetch.page);
      SwapMetrics& swaps = metrics_of(fetch.model).swaps;
      swaps.pages += tp;
      swaps.bytes += tp * layout.used_bytes[fetch.page];
      swaps.link_bytes += tp * link_bytes;
      auto& shard = shard_bytes_[fetch.model];
      shard[stage] += link_bytes;
      swaps.largest_shard_bytes = *std::max_element(shard.begin(), shard.end());
    }
  }
}

// In the order of the rank's link.
void GroupEngine::note_copies(int rank, const Step& step) {
  const auto stage = static_cast<std::size_t>(group_.shape.stage_of(rank));
  CopiesInFlight& copies = times_[static_cast<std::size_t>(rank)].copies;
  for (const CacheChange& change : step.stages[stage].caches) {
    const std::size_t frame_bytes = scheduler_.layout(change.model, stage).page_bytes;
    const std::size_t bytes = change.slots.size() * frame_bytes;
    if (bytes > 0) copies.add({.fetched = std::nullopt, .frame_bytes = bytes, .link_bytes = bytes});
  }
  for (const Fetch& fetch : step.stages[stage].fetches) {
    const ShardLayout& layout = scheduler_.layout(fetch.model, stage);
    copies.add({fetch.model, layout.used_bytes[fetch.page], layout.page_link_bytes(fetch.page)});
  }
}

// The time in which the rank's link was busy since its last report, to the models of which pages were copied meanwhile,
// by what crossed it.
void GroupEngine::share_out_busy_time(RankTimes& times, const Report& report) {
  const std::size_t before = times.copies.landed_link_bytes();
  const std::vector<CopiesInFlight::Copy> landed = times.copies.take_landed(report.frame_bytes);
  const double busy_s = report.busy_s - std::exchange(times.busy_s, report.busy_s);
  const auto bytes = static_cast<double>(times.copies.landed_link_bytes() - before);
  for (const CopiesInFlight::Copy& copy : landed) {
    if (!copy.fetched) continue;
    double& busy_by_model = times.busy_by_model[*copy.fetched];
    if (bytes > 0) busy_by_model += busy_s * static_cast<double>(copy.link_bytes) / bytes;
    SwapMetrics& swaps = metrics_of(*copy.fetched).swaps;
    swaps.busy_s = std::max(swaps.busy_s, busy_by_model);
  }
}

void GroupEngine::count_cache(ModelId model) {
  const CacheUse& cache = scheduler_.cache_use(model);
  metrics_of(model).cache = {cache.preemptions, cache.prefix_hit_tokens};
}

// What it took, when all ranks have reported it.
void GroupEngine::count_reported(const InFlight& step, const std::vector<Report>& reports) {
  ModelMetrics& metrics = metrics_of(step.model);
  ++metrics.steps.count;
  metrics.steps.passes += step.pass ? 1 : 0;
  const bool graph_launched =
      std::all_of(reports.begin(), reports.end(), [](const Report& r) { return r.launched_as_graph; });
  metrics.steps.graphs += graph_launched ? 1 : 0;
  metrics.steps.total_s += now_s() - step.sent_s;
  count_cache(step.model);
  for (const ModelId rider : step.riders) {
    ++metrics_of(rider).steps.rides;
    count_cache(rider);
  }
  metrics.steps.compute_s.resize(static_cast<std::size_t>(group_.first_rank) + reports.size());
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    RankTimes& times = times_[rank];
    metrics.steps.compute_s[static_cast<std::size_t>(group_.first_rank) + rank] += reports[rank].compute_s;
    share_out_busy_time(times, reports[rank]);
    times.exposed_by_model[step.model] +=
        reports[rank].exposed_s - std::exchange(times.exposed_s, reports[rank].exposed_s);
    metrics.swaps.verified +=
        reports[rank].pages_verified - std::exchange(times.verified, reports[rank].pages_verified);
    metrics.swaps.refetched +=
        reports[rank].pages_refetched - std::exchange(times.refetched, reports[rank].pages_refetched);
    metrics.swaps.exposed_s = std::max(metrics.swaps.exposed_s, times.exposed_by_model[step.model]);
  }
}

void GroupEngine::shut_down(Step::Kind kind) {
  Step step;
  step.kind = kind;
  step.stages.resize(static_cast<std::size_t>(group_.shape.pp));
  sender_.send(step);
}

}  // namespace computron
