#include "computron/serve/batch_front_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "computron/requests/result_format.h"

namespace computron {
namespace {

constexpr int kLinesAtOnce = 4096;         // read by one call where there is no room: some 2 ms
constexpr int kMostLinesAtOnce = 1 << 16;  // and where there is
constexpr std::size_t kPastSeconds = 10;   // that rates are over
// A launcher hands a signal to every rank: what follows the first within this time asks for the same.
constexpr double kSameRequest_s = 0.5;

std::vector<int> priorities_of(const BatchOptions& options, std::size_t models) {
  return options.priorities.empty() ? std::vector<int>(models, 0) : options.priorities;
}

}  // namespace

BatchFrontEnd::BatchFrontEnd(RequestReader& reader, ResultWriter& writer, Metrics& metrics,
                             std::vector<ServedModel> models, double start_s, const BatchOptions& options)
    : reader_(reader),
      writer_(writer),
      metrics_(metrics),
      models_(std::move(models)),
      start_s_(start_s),
      options_(options),
      deferred_(reader.rereader(), priorities_of(options, models_.size()), options.ahead),
      progress_line_(options.show_progress, start_s),
      queues_(models_.size()),
      status_writer_(options.status_file, options.progress_file),
      shown_{this} {}

bool BatchFrontEnd::take_input(Dispatcher& dispatcher, double now) {
  if (closed_) return false;
  if (take_lines(dispatcher, now)) return true;
  if (!all_read()) return false;
  const bool ends = note_input_end(dispatcher, now);
  if (any_deferred()) return ends;
  if (!has_suspects()) {
    close_input(dispatcher, now);
  } else if (any_unfinished()) {
    return ends;
  } else {
    take_suspect(dispatcher, now);
  }
  return true;
}

bool BatchFrontEnd::take_lines(Dispatcher& dispatcher, double now) {
  bool took = take_deferred(dispatcher, now);
  // Rejected lines take no room, and time to judge.
  const bool rejects = dispatcher.scheduler(0).options().on_late == OnLate::kReject;
  const auto may_go_on = [&dispatcher, rejects](int lines) {
    return lines < kLinesAtOnce || (lines < kMostLinesAtOnce && !rejects && !dispatcher.is_full());
  };
  for (int lines = 0; may_read(dispatcher) && may_go_on(lines); ++lines) {
    std::optional<IncomingRequest> incoming = reader_.poll();
    if (!incoming) break;
    take(std::move(*incoming), dispatcher, now);
    took = true;
  }
  return took;
}

void BatchFrontEnd::close_input(Dispatcher& dispatcher, double now) {
  dispatcher.close_input();
  closed_ = true;
  if (options_.recorder != nullptr) options_.recorder->input_ended(/*closed=*/true, any_deferred_, now);
}

// Before anything can be complete. The scheduler learns it though suspects are still to come: they wait for what it
// has, so it must not wait for them. False if it was known before.
bool BatchFrontEnd::note_input_end(Dispatcher& dispatcher, double now) {
  if (input_ended_) return false;
  note_all_read();
  dispatcher.note_input_end();
  if (options_.recorder != nullptr) options_.recorder->input_ended(/*closed=*/false, /*deferred=*/false, now);
  return true;
}

void BatchFrontEnd::note_all_read() {
  if (std::exchange(input_ended_, true)) return;
  if (const auto bytes = reader_.spooled_bytes()) writer_.note_input_end(*bytes);
}

std::string BatchFrontEnd::unfinished() const {
  return fmt::format(
      "{} lines have no result, {} more wait to run alone behind them, {} for room in the scheduler, the input {}",
      unfinished_lines_.size(), suspects_.size(), deferred_.size(), reader_.finished() ? "has ended" : "is open");
}

bool BatchFrontEnd::may_read(const Dispatcher& dispatcher) {
  return writer_.has_room() && (deferred_.possible() || !dispatcher.is_full());
}

// What has been read again, which may prove to be no request any more; and what to read again next.
bool BatchFrontEnd::take_deferred(Dispatcher& dispatcher, double now) {
  bool took = false;
  while (std::optional<DeferredInput::Line> line = deferred_.poll()) {
    --queues_[line->model].waiting;
    if (const auto* failure = std::get_if<RequestFailure>(&line->incoming.content)) {
      fail(line->incoming, *failure);
      if (line->ahead) deferred_.begun(line->model, line->priority);
    } else {
      submit(std::move(line->incoming), line->arrival_s, {.now = now, .deferred = true, .ahead = line->ahead},
             dispatcher);
    }
    took = true;
  }
  if (writer_.has_room()) deferred_.ask(dispatcher, now);
  return took;
}

// A line that is no request has its result at once. One that is waits its turn behind those that were deferred.
void BatchFrontEnd::take(IncomingRequest incoming, Dispatcher& dispatcher, double now) {
  writer_.note_line(incoming.line, incoming.key);
  if (const auto* failure = std::get_if<RequestFailure>(&incoming.content)) return fail(incoming, *failure);
  if (writer_.history().given_up(incoming.line)) {
    const Request& request = std::get<RequestParts>(incoming.content).front();
    return fail(incoming, {500, "poison_request", "the job went down whenever it ran this request, alone too"},
                request.deadline_s < kNoDeadline);
  }
  if (writer_.history().suspected(incoming.line)) {
    suspects_.push_back(std::move(incoming));
    return;
  }
  const double arrival_s = arrival_of(incoming, now);
  if (deferred_.empty() && !dispatcher.is_full()) {
    submit(std::move(incoming), arrival_s, {.now = now}, dispatcher);
    return;
  }
  any_deferred_ = true;
  ++queues_[std::get<RequestParts>(incoming.content).front().model].waiting;
  deferred_.defer(incoming, arrival_s);
}

double BatchFrontEnd::arrival_of(const IncomingRequest& incoming, double now) const {
  if (options_.replay) return std::get<RequestParts>(incoming.content).front().arrival_s;
  return options_.live ? now : 0;
}

void BatchFrontEnd::fail(const IncomingRequest& incoming, const RequestFailure& failure, bool with_deadline) {
  metrics_.add_failure(with_deadline);
  writer_.write(incoming.line, format_failure(incoming, failure));
}

void BatchFrontEnd::take_suspect(Dispatcher& dispatcher, double now) {
  IncomingRequest incoming = std::move(suspects_.front());
  suspects_.pop_front();
  alone_ = true;
  const bool has_deadline = std::get<RequestParts>(incoming.content).front().deadline_s < kNoDeadline;
  // It was held back until now, which its deadline should not suffer for.
  const double arrival_s = has_deadline ? std::max(arrival_of(incoming, now), now) : arrival_of(incoming, now);
  submit(std::move(incoming), arrival_s, {.now = now}, dispatcher);
}

void BatchFrontEnd::submit(IncomingRequest incoming, double arrival_s, const Turn& turn, Dispatcher& dispatcher) {
  const RequestId line = incoming.line;
  const std::size_t count = std::get<RequestParts>(incoming.content).size();
  UnfinishedLine& unfinished =
      unfinished_lines_.emplace(line, UnfinishedLine{std::move(incoming), std::vector<Completion>(count), count})
          .first->second;
  RequestParts& parts = std::get<RequestParts>(unfinished.incoming.content);
  unfinished.ahead = turn.ahead;
  unfinished.model = parts.front().model;
  unfinished.priority = parts.front().priority;
  ++queues_[unfinished.model].waiting;
  for (Request& request : parts) {
    request.id += options_.first_id;
    request.arrival_s = arrival_s;
    if (options_.recorder != nullptr) options_.recorder->submitted(request, turn.deferred, turn.now);
    dispatcher.submit(std::move(request));
  }
}

void BatchFrontEnd::put_results(std::vector<Completion> completions, double /*now*/) {
  for (Completion& completion : completions) {
    if (options_.recorder != nullptr) options_.recorder->ended(completion);
    completion.id -= options_.first_id;
    const auto unfinished = unfinished_lines_.find(completion.id);
    ensure(unfinished != unfinished_lines_.end() && completion.part < unfinished->second.parts.size(),
           "a completion of no request");
    Completion& part = unfinished->second.parts[completion.part];
    part = std::move(completion);
    if (--unfinished->second.missing > 0) continue;
    if (unfinished->second.begun) {
      --queues_[unfinished->second.model].running;
    } else {
      leave_queue(unfinished->second);
    }
    put_result(unfinished->second);
    unfinished_lines_.erase(unfinished);
  }
}

// One that has begun, or has ended before it did.
void BatchFrontEnd::leave_queue(const UnfinishedLine& line) {
  --queues_[line.model].waiting;
  if (line.ahead) deferred_.begun(line.model, line.priority);
}

void BatchFrontEnd::put_result(const UnfinishedLine& line) {
  metrics_.add(line.parts);
  for (const Completion& part : line.parts) generated_tokens_ += part.generated_tokens;
  writer_.write(line.incoming.line, format_result(line.incoming, line.parts, models_[line.parts.front().model].config));
}

// Also where all of them have begun before: the note of that may not be down yet.
Ticket BatchFrontEnd::begin(const std::vector<RequestId>& requests) {
  std::vector<RequestId> begun;
  Ticket latest = 0;
  for (const RequestId request : requests) {
    const RequestId line = request - options_.first_id;
    const auto unfinished = unfinished_lines_.find(line);
    if (unfinished == unfinished_lines_.end()) continue;
    latest = std::max(latest, unfinished->second.noted_by);
    if (std::exchange(unfinished->second.begun, true)) continue;
    leave_queue(unfinished->second);
    ++queues_[unfinished->second.model].running;
    begun.push_back(line);
  }
  if (begun.empty()) return latest;
  latest = writer_.note_begun(begun, alone_);
  for (const RequestId line : begun) unfinished_lines_.at(line).noted_by = latest;
  return latest;
}

void BatchFrontEnd::step_done(const std::vector<Report>& reports, double /*now*/) {
  for (const Report& report : reports) sampled_tokens_ += report.rows.size();
}

void BatchFrontEnd::show(const Activity& activity, double now) {
  if (progress_line_.due(start_s_ + now)) progress_line_.update(start_s_ + now, progress(activity));
  if (metrics_.queues().due(now)) metrics_.queues().note(now, queues());
  update_status(activity, now);
}

// Once a second what rates are taken from and the status file; the status on request.
void BatchFrontEnd::update_status(const Activity& activity, double now) {
  dispatcher_ = activity.dispatcher;
  if (past_.empty() || now >= past_.back().time_s + 1) {
    if (past_.size() > kPastSeconds) past_.pop_front();
    if (status_writer_.has_file()) status_writer_.put(status(activity, now), /*print=*/false);
    past_.push_back(counts(now));
  }
  if (activity.status_requests == status_requests_) return;
  status_requests_ = activity.status_requests;
  if (status_s_ >= 0 && now < status_s_ + kSameRequest_s) return;
  status_s_ = now;
  status_writer_.put(status(activity, now), /*print=*/true);
}

JobCounts BatchFrontEnd::counts(double now) const {
  const ModelMetrics all = metrics_.counts();
  return {now, metrics_.finished(), sampled_tokens_, all.steps.count, all.swaps.count, all.swaps.bytes};
}

JobStatus BatchFrontEnd::status(const Activity& activity, double now) {
  const ProgressLine::State state = progress(activity);
  JobStatus status{.counts = counts(now),
                   .before = past_.empty() ? JobCounts{} : past_.front(),
                   .total = state.total,
                   .total_known = state.total_known,
                   .failed = metrics_.failed()};
  const std::vector<QueueDepth> queues = this->queues();
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const auto model = static_cast<ModelId>(i);
    status.models.push_back({models_[i].id, queues[i], metrics_.finished(model),
                             activity.dispatcher != nullptr ? activity.dispatcher->resident_ratio(model) : 0});
  }
  for (const GroupActivity& group : activity.groups) {
    GroupStatus& of_group = status.groups.emplace_back();
    if (activity.dispatcher != nullptr) of_group.open = activity.dispatcher->open_requests(status.groups.size() - 1);
    if (!group.running) continue;
    of_group.running = models_[*group.running].id;
    of_group.swapping = group.swapping;
  }
  return status;
}

void BatchFrontEnd::end_status(const char* end, double now) {
  if (!status_writer_.has_file()) return;
  JobStatus last = status({.dispatcher = dispatcher_}, now);
  last.end = end;
  status_writer_.put(std::move(last), /*print=*/false);
}

void BatchFrontEnd::stop(bool in_order, double now) {
  progress_line_.finish(start_s_ + now, progress({}));
  end_status("stopped", now);
  std::move(writer_).stop(in_order);
}

void BatchFrontEnd::finish(double now) {
  progress_line_.finish(start_s_ + now, progress({}));
  end_status("finished", now);
  ensure(unfinished_lines_.empty(), "requests without a result");
}

ProgressLine::State BatchFrontEnd::progress(const Activity& activity) {
  ProgressLine::State state{.done = metrics_.finished(),
                            .total_known = true,
                            .model = running_models(activity),
                            .swapping = std::ranges::any_of(activity.groups, &GroupActivity::swapping)};
  for (BatchFrontEnd* batch : shown_) {
    state.total += batch->reader_.lines_seen() - batch->reader_.lines_skipped();
    state.total_known &= batch->all_read();
    state.generated_tokens += batch->generated_tokens_;
  }
  return state;
}

void BatchFrontEnd::show_with(std::span<const std::unique_ptr<BatchFrontEnd>> others) {
  for (const auto& other : others) shown_.push_back(other.get());
}

std::vector<QueueDepth> BatchFrontEnd::queues() const {
  std::vector<QueueDepth> sums(models_.size());
  for (const BatchFrontEnd* batch : shown_) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i].waiting += batch->queues_[i].waiting;
      sums[i].running += batch->queues_[i].running;
    }
  }
  return sums;
}

// Of the groups, in their order.
std::string BatchFrontEnd::running_models(const Activity& activity) const {
  std::string names;
  for (const GroupActivity& group : activity.groups) {
    if (group.running) names += (names.empty() ? "" : ", ") + models_[*group.running].id;
  }
  return names;
}

}  // namespace computron
