#include "computron/serve/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "computron/base/log.h"
#include "computron/base/status_signal.h"
#include "computron/base/stop.h"
#include "computron/base/time.h"

namespace computron {

Engine::Engine(Job& job, Scheduler& scheduler, FrontEnd& front_end, Metrics& metrics, double start_s,
               const Drain& drain, const JobHeartbeat& heartbeat)
    : job_(job),
      scheduler_(scheduler),
      front_end_(front_end),
      metrics_(metrics),
      start_s_(start_s),
      sender_(job.mesh()),
      collector_(job.mesh()),
      heartbeat_(heartbeat),
      stops_(job.mesh()),
      drain_(drain),
      times_(job.mesh().shape.ranks()) {
  const std::size_t models = job.models().size();
  shard_bytes_.assign(models, std::vector<std::uint64_t>(job.mesh().shape.pp, 0));
  for (RankTimes& rank : times_) {
    rank.busy_by_model.assign(models, 0);
    rank.exposed_by_model.assign(models, 0);
  }
}

double Engine::now() const { return now_s() - start_s_; }

bool Engine::run() {
  job_.progress().set_hook([this] { poll(); });
  heartbeat_.enter(SignOfLife::kServe);
  Idler idler(job_.progress().idle());
  while ((!all_done_ && !stopping_) || !in_flight_.empty()) {
    bool progressed = take_input();
    progressed |= poll();
    progressed |= put_results();
    progressed |= execute();
    look_for_stall();
    front_end_.check();
    progressed ? idler.reset() : idler.pause();
  }
  put_results();
  heartbeat_.enter(SignOfLife::kFinish);
  if (all_done_) {
    front_end_.finish(now());
  } else {
    heartbeat_.run_beside([this] { front_end_.stop(/*in_order=*/true, now()); });
  }
  shut_down(all_done_ ? Step::kShutdown : Step::kStop);
  return all_done_;
}

// Also the progress hook: steps may be sent and their fetches started while another step is executed here.
bool Engine::poll() {
  heartbeat_.poll();
  look_for_stop();
  sender_.poll();
  job_.executor().poll();
  bool progressed = take_reports();
  progressed |= dispatch();
  front_end_.show(activity(), now());
  return progressed;
}

// No step is sent once somebody has asked to stop. Steps on their way are the other ranks' as well: they end in order,
// or with the whole job. A launcher asks, too, when another rank has gone down: its silence tells.
void Engine::look_for_stop() {
  const int signals = std::max(stop_signals(), stops_.poll());
  if (signals == 0) return;
  if (!stopping_) begin_to_stop();
  if (in_flight_.empty()) return;
  if (signals > 1) leave(/*in_order=*/true);
  const bool all_there = stops_.all_answered();
  if (now() > leave_at_s_ || (too_late_ && all_there)) leave(all_there);
}

void Engine::begin_to_stop() {
  stopping_ = true;
  const bool warned = (stop_signals() == 0 || only_warned()) && stops_.only_warned();
  leave_at_s_ = now() + (warned ? drain_.warned_s : drain_.asked_s);
  if (in_flight_.empty()) return;
  too_late_ = scheduler_.predicted_end_s() > leave_at_s_;
  stops_.ask();
}

void Engine::leave(bool in_order) {
  put_results();
  heartbeat_.enter(SignOfLife::kFinish);
  front_end_.stop(in_order, now());
  if (in_order) {  // else another rank may have failed, and said so
    report_failure(0, stopped_early());
    heartbeat_.remove_records();
  }
  MpiSession::abort(ExitCode::kStopped);
}

bool Engine::take_input() {
  if (stopping_) return false;
  const bool took = front_end_.take_input(scheduler_, now());
  if (took) ask_at_s_ = 0;
  return took;
}

bool Engine::take_reports() {
  bool took = false;
  while (const auto reports = collector_.poll()) {
    took = true;
    const InFlight step = in_flight_.front();
    in_flight_.pop_front();
    expect_oldest();
    const TraceSpan span(job_.trace(), TraceTrack::kControl, "take reports", {}, {"step", step.id});
    account(step, *reports);
    const double start = now_s();
    const int sampler = job_.mesh().shape.rank_of(job_.mesh().shape.pp - 1, 0);
    const Report& last = (*reports)[sampler];
    scheduler_.completed(step.id, {last.rows, last.encoded}, now(), stage_times(*reports));
    ask_at_s_ = 0;
    metrics_.model(step.model).steps.overhead_s += now_s() - start;
    front_end_.step_done(*reports, now());
  }
  return took;
}

// The slowest rank of each stage.
std::vector<StageTimes> Engine::stage_times(const std::vector<Report>& reports) const {
  const MeshShape shape = job_.mesh().shape;
  std::vector<StageTimes> times(static_cast<std::size_t>(shape.pp));
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const Report& report = reports[static_cast<std::size_t>(rank)];
    StageTimes& stage = times[static_cast<std::size_t>(shape.stage_of(rank))];
    const bool first = rank == shape.rank_of(shape.stage_of(rank), 0);
    stage.compute_s = std::max(stage.compute_s, report.compute_s);
    stage.link_bytes = first ? report.link_bytes : std::min(stage.link_bytes, report.link_bytes);
    stage.link_busy_s = std::max(stage.link_busy_s, report.busy_s);
  }
  return times;
}

bool Engine::put_results() {
  std::vector<Completion> completions = scheduler_.take_completions();
  if (completions.empty()) return false;
  front_end_.put_results(std::move(completions), now());
  return true;
}

bool Engine::dispatch() {
  bool sent = false;
  while (!all_done_ && !stopping_ && now() >= ask_at_s_) {
    const double start = now_s();
    Decision decision = scheduler_.next(now());
    if (std::holds_alternative<AllDone>(decision)) all_done_ = true;
    if (const auto* wait = std::get_if<WaitUntil>(&decision)) ask_at_s_ = wait->time_s;
    auto* planned = std::get_if<PlannedStep>(&decision);
    if (!planned) break;
    const ModelId model = planned->step.model;
    const StepId id = planned->step.id;
    send(std::move(*planned));
    metrics_.model(model).steps.overhead_s += now_s() - start;
    trace_since(start, job_.trace(), TraceTrack::kControl, "decide and send", job_.models().id(model), {{"step", id}});
    sent = true;
  }
  return sent;
}

void Engine::send(PlannedStep planned) {
  account(planned);
  const Ticket begun = planned.begun.empty() ? 0 : front_end_.begin(planned.begun);
  const double predicted_s = std::max(scheduler_.predicted_end_s() - now(), 0.0);
  planned.step.predicted_s = static_cast<float>(predicted_s);
  collector_.expect(planned.step, std::move(planned.expected));
  collector_.note_sent(planned.step.id, sender_.send(planned.step));
  job_.executor().accept(planned.step);
  in_flight_.push_back({planned.step.id, planned.step.model, now_s(), predicted_s, !planned.swaps.empty(),
                        !planned.step.chunks.empty()});
  if (in_flight_.size() == 1) expect_oldest();
  todo_.push_back({std::move(planned.step), begun});
}

// Tells the watchdog what every rank should get on with.
void Engine::expect_oldest() {
  if (in_flight_.empty()) return heartbeat_.expect(std::nullopt);
  const InFlight& oldest = in_flight_.front();
  heartbeat_.expect(oldest.id, std::max(oldest.sent_s + oldest.predicted_s - now_s(), 0.0));
}

// The next step, once it is on the disk which requests it begins.
bool Engine::execute() {
  if (todo_.empty()) return false;
  if (!front_end_.noted(todo_.front().begun)) {
    expect_oldest();  // a slow disk is nobody's standstill
    return false;
  }
  const Step step = std::move(todo_.front().step);
  todo_.pop_front();
  collector_.put_own(job_.run(step));
  return true;
}

// Each part of this rank waits for another one and all of them are asked again and again: nobody hangs, and yet nothing
// would ever happen.
void Engine::look_for_stall() {
  constexpr double kBetweenReasons_s = 1;
  const bool stalls = owes_a_step();
  const bool changes = std::exchange(stalls_, stalls) != stalls;
  if (!changes && (!stalls || now() < say_why_s_)) return;
  say_why_s_ = now() + kBetweenReasons_s;
  heartbeat_.expect_a_step(stalls ? what_it_waits_for() : std::string());
}

// Requests whose time comes later are waited for, and so is an input that is open: where nothing is to be done, or
// where the policy wants all of it first.
bool Engine::owes_a_step() const {
  if (!in_flight_.empty() || all_done_ || stopping_) return false;
  const bool open = front_end_.input_open();
  if (scheduler_.has_work(now())) return !open || !scheduler_.waits_for_input();
  return !open && scheduler_.waiting() == 0;
}

std::string Engine::what_it_waits_for() const {
  return fmt::format("{}; {}",
                     scheduler_.waits_for_input() ? "waits for the end of the input before it decides anything"
                     : scheduler_.has_work(now()) ? "has requests to serve and plans none of them"
                                                  : "has nothing to serve and waits for more",
                     front_end_.unfinished());
}

// What a step will move, when it is sent.
void Engine::account(const PlannedStep& planned) {
  const Step& step = planned.step;
  for (const ModelId model : planned.swaps) ++metrics_.model(model).swaps.count;
  const auto tp = static_cast<std::uint64_t>(job_.mesh().shape.tp);
  for (int rank = 0; rank < job_.mesh().shape.ranks(); ++rank) note_copies(rank, step);
  for (std::size_t stage = 0; stage < step.stages.size(); ++stage) {
    for (const Fetch& fetch : step.stages[stage].fetches) {
      const std::size_t bytes = scheduler_.layout(fetch.model, stage).used_bytes[fetch.page];
      SwapMetrics& swaps = metrics_.model(fetch.model).swaps;
      swaps.pages += tp;
      swaps.bytes += tp * bytes;
      auto& shard = shard_bytes_[fetch.model];
      shard[stage] += bytes;
      swaps.largest_shard_bytes = *std::max_element(shard.begin(), shard.end());
    }
  }
}

// In the order of the rank's link.
void Engine::note_copies(int rank, const Step& step) {
  const auto stage = static_cast<std::size_t>(job_.mesh().shape.stage_of(rank));
  std::deque<Copy>& copies = times_[static_cast<std::size_t>(rank)].copies;
  for (const CacheChange& change : step.stages[stage].caches) {
    if (!change.slots.empty()) copies.push_back({std::nullopt, change.slots.size() * job_.plan().page_bytes});
  }
  for (const Fetch& fetch : step.stages[stage].fetches) {
    copies.push_back({fetch.model, scheduler_.layout(fetch.model, stage).used_bytes[fetch.page]});
  }
}

// The time in which the rank's link was busy since its last report, to the models of which pages were copied meanwhile,
// by bytes.
void Engine::share_out_busy_time(RankTimes& times, const Report& report) {
  std::size_t bytes = report.link_bytes - std::exchange(times.link_bytes, report.link_bytes);
  const double busy_s = report.busy_s - std::exchange(times.busy_s, report.busy_s);
  const double s_per_byte = bytes > 0 ? busy_s / static_cast<double>(bytes) : 0;
  while (bytes > 0 && !times.copies.empty()) {
    Copy& copy = times.copies.front();
    const std::size_t part = std::min(bytes, copy.bytes);
    if (copy.fetched) {
      double& busy_by_model = times.busy_by_model[*copy.fetched];
      busy_by_model += s_per_byte * static_cast<double>(part);
      SwapMetrics& swaps = metrics_.model(*copy.fetched).swaps;
      swaps.busy_s = std::max(swaps.busy_s, busy_by_model);
    }
    bytes -= part;
    copy.bytes -= part;
    if (copy.bytes == 0) times.copies.pop_front();
  }
}

// What it took, when all ranks have reported it.
void Engine::account(const InFlight& step, const std::vector<Report>& reports) {
  ModelMetrics& metrics = metrics_.model(step.model);
  ++metrics.steps.count;
  metrics.steps.passes += step.pass ? 1 : 0;
  const bool graph_launched =
      std::all_of(reports.begin(), reports.end(), [](const Report& r) { return r.launched_as_graph; });
  metrics.steps.graphs += graph_launched ? 1 : 0;
  metrics.steps.total_s += now_s() - step.sent_s;
  const CacheUse& cache = scheduler_.cache_use(step.model);
  metrics.cache = {cache.preemptions, cache.prefix_hit_tokens};
  metrics.steps.compute_s.resize(reports.size());
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    RankTimes& times = times_[rank];
    metrics.steps.compute_s[rank] += reports[rank].compute_s;
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

Activity Engine::activity() const {
  return {.running = scheduler_.running_model(),
          .swapping = std::any_of(in_flight_.begin(), in_flight_.end(), [](const InFlight& step) { return step.swap; }),
          .scheduler = &scheduler_,
          .status_requests = status_signals() + stops_.status_requests()};
}

void Engine::shut_down(Step::Kind kind) {
  Step step;
  step.kind = kind;
  step.stages.resize(job_.mesh().shape.pp);
  sender_.send(step);
  job_.progress().set_hook([this] {
    heartbeat_.poll();
    sender_.poll();
  });
  job_.progress().wait_until([this] { return sender_.idle(); });
  job_.progress().set_hook({});
}

}  // namespace computron
