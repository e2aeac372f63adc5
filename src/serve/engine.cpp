#include "computron/serve/engine.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "computron/base/time.h"

namespace computron {
namespace {

constexpr std::size_t kMaxWaiting = 1 << 16;           // requests held before reading pauses
constexpr std::size_t kMaxUnwrittenBytes = 64u << 20;  // results held before reading pauses

}  // namespace

Engine::Engine(Job& job, Scheduler& scheduler, RequestReader& reader, ResultWriter& writer, Metrics& metrics,
               const EngineOptions& options)
    : job_(job),
      scheduler_(scheduler),
      reader_(reader),
      writer_(writer),
      metrics_(metrics),
      options_(options),
      sender_(job.mesh()),
      collector_(job.mesh()),
      progress_line_(options.show_progress, options.start_s),
      times_(job.mesh().shape.ranks()) {
  const std::size_t models = job.options().models.size();
  shard_bytes_.assign(models, std::vector<std::uint64_t>(job.mesh().shape.pp, 0));
  for (RankTimes& rank : times_) {
    rank.busy_by_model.assign(models, 0);
    rank.exposed_by_model.assign(models, 0);
  }
}

double Engine::now() const { return now_s() - options_.start_s; }

void Engine::run() {
  job_.progress().set_hook([this] { poll_network(); });
  Idler idler(job_.progress().idle());
  while (!all_done_ || !in_flight_.empty()) {
    poll_network();
    bool progressed = take_input();
    progressed |= take_reports();
    progressed |= dispatch();
    progressed |= put_results();
    if (!todo_.empty()) {
      execute();
      progressed = true;
    }
    writer_.check();
    progressed ? idler.reset() : idler.pause();
  }
  put_results();
  progress_line_.finish(now_s(), progress());
  ensure(open_.empty(), "requests without a result");
  shut_down();
}

void Engine::poll_network() {
  sender_.poll();
  job_.executor().poll();
  show_progress();
}

bool Engine::take_input() {
  bool took = false;
  while (scheduler_.waiting() < kMaxWaiting && writer_.queued_bytes() < kMaxUnwrittenBytes) {
    std::optional<IncomingRequest> incoming = reader_.poll();
    if (!incoming) break;
    took = true;
    if (const auto* failure = std::get_if<RequestFailure>(&incoming->content)) {
      metrics_.add_failure();
      writer_.write(format_failure(*incoming, *failure));
      continue;
    }
    Request request = std::move(std::get<Request>(incoming->content));  // what is left tells how to write the result
    if (!options_.replay) request.arrival_s = 0;
    open_.emplace(incoming->line, std::move(*incoming));
    scheduler_.submit(std::move(request));
  }
  if (!took && reader_.finished()) scheduler_.close_input();
  return took;
}

bool Engine::take_reports() {
  bool took = false;
  while (const auto reports = collector_.poll()) {
    took = true;
    const InFlight step = in_flight_.front();
    in_flight_.pop_front();
    const TraceSpan span(job_.trace(), TraceTrack::kControl, "take reports", {}, {"step", step.id});
    account(step, *reports);
    const double start = now_s();
    const int sampler = job_.mesh().shape.rank_of(job_.mesh().shape.pp - 1, 0);
    scheduler_.completed(step.id, (*reports)[sampler].rows, now());
    metrics_.model(step.model).steps.overhead_s += now_s() - start;
  }
  return took;
}

bool Engine::put_results() {
  const std::vector<Completion> completions = scheduler_.take_completions();
  for (const Completion& completion : completions) {
    const auto incoming = open_.find(completion.id);
    ensure(incoming != open_.end(), "a completion of no request");
    metrics_.add(completion);
    generated_tokens_ += completion.generated_tokens;
    writer_.write(format_completion(incoming->second, completion));
    open_.erase(incoming);
  }
  return !completions.empty();
}

bool Engine::dispatch() {
  bool sent = false;
  while (!all_done_ && in_flight_.size() < static_cast<std::size_t>(job_.steps_in_flight())) {
    const double start = now_s();
    Decision decision = scheduler_.next(now());
    if (std::holds_alternative<AllDone>(decision)) all_done_ = true;
    auto* planned = std::get_if<PlannedStep>(&decision);
    if (!planned) break;
    const ModelId model = planned->step.model;
    const StepId id = planned->step.id;
    send(std::move(*planned));
    metrics_.model(model).steps.overhead_s += now_s() - start;
    trace_since(start, job_.trace(), TraceTrack::kControl, "decide and send", job_.options().models[model].id,
                {{"step", id}});
    sent = true;
  }
  return sent;
}

void Engine::send(PlannedStep planned) {
  account(planned.step, planned.swap);
  collector_.expect(planned.step, std::move(planned.expected));
  sender_.send(planned.step);
  job_.executor().accept(planned.step);
  in_flight_.push_back({planned.step.id, planned.step.model, now_s(), planned.swap});
  todo_.push_back(std::move(planned.step));
}

void Engine::execute() {
  const Step step = std::move(todo_.front());
  todo_.pop_front();
  collector_.put_own(job_.executor().run(step));
}

// What a step will move, when it is sent.
void Engine::account(const Step& step, bool swap) {
  ServeFigures& figures = metrics_.model(step.model);
  figures.swaps.count += swap;
  const auto tp = static_cast<std::uint64_t>(job_.mesh().shape.tp);
  for (std::size_t stage = 0; stage < step.stages.size(); ++stage) {
    for (const Fetch& fetch : step.stages[stage].fetches) {
      const std::size_t bytes = scheduler_.image(fetch.model, stage).used_bytes[fetch.page];
      SwapFigures& swaps = metrics_.model(fetch.model).swaps;
      swaps.pages += tp;
      swaps.bytes += tp * bytes;
      auto& shard = shard_bytes_[fetch.model];
      shard[stage] += bytes;
      swaps.largest_shard_bytes = *std::max_element(shard.begin(), shard.end());
    }
  }
}

// What it took, when all ranks have reported it. A rank's copy time since its last report counts for this model.
void Engine::account(const InFlight& step, const std::vector<Report>& reports) {
  ServeFigures& figures = metrics_.model(step.model);
  ++figures.steps.count;
  figures.steps.total_s += now_s() - step.sent_s;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    RankTimes& times = times_[rank];
    times.busy_by_model[step.model] += reports[rank].busy_s - std::exchange(times.busy_s, reports[rank].busy_s);
    times.exposed_by_model[step.model] +=
        reports[rank].exposed_s - std::exchange(times.exposed_s, reports[rank].exposed_s);
    figures.swaps.verified +=
        reports[rank].pages_verified - std::exchange(times.verified, reports[rank].pages_verified);
    figures.swaps.refetched +=
        reports[rank].pages_refetched - std::exchange(times.refetched, reports[rank].pages_refetched);
    figures.swaps.busy_s = std::max(figures.swaps.busy_s, times.busy_by_model[step.model]);
    figures.swaps.exposed_s = std::max(figures.swaps.exposed_s, times.exposed_by_model[step.model]);
  }
}

void Engine::show_progress() {
  const double now = now_s();
  if (progress_line_.due(now)) progress_line_.update(now, progress());
}

ProgressLine::State Engine::progress() {
  const auto running = scheduler_.running_model();
  return {.done = metrics_.finished(),
          .total = reader_.lines_seen(),
          .total_known = reader_.finished(),
          .generated_tokens = generated_tokens_,
          .model = running ? job_.options().models[*running].id : std::string(),
          .swapping = std::any_of(in_flight_.begin(), in_flight_.end(), [](const InFlight& step) { return step.swap; })};
}

void Engine::shut_down() {
  Step step;
  step.kind = Step::kShutdown;
  step.stages.resize(job_.mesh().shape.pp);
  sender_.send(step);
  job_.progress().wait_until([this] { return sender_.idle(); });
  job_.progress().set_hook({});
}

}  // namespace computron
