#include "computron/serve/batch_front_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "computron/requests/result_format.h"

namespace computron {
namespace {

constexpr int kLinesAtOnce = 4096;         // read by one call where there is no room: some 2 ms
constexpr int kMostLinesAtOnce = 1 << 16;  // and where there is

std::vector<int> priorities_of(const BatchOptions& options, std::size_t models) {
  return options.priorities.empty() ? std::vector<int>(models, 0) : options.priorities;
}

std::vector<std::string> ids_of(const std::vector<ServedModel>& models) {
  std::vector<std::string> ids;
  for (const ServedModel& model : models) ids.push_back(model.id);
  return ids;
}

}  // namespace

BatchFrontEnd::BatchFrontEnd(RequestReader& reader, ResultWriter& writer, Metrics& metrics,
                             std::vector<ServedModel> models, double start_s, const BatchOptions& options)
    : reader_(reader),
      writer_(writer),
      metrics_(metrics),
      models_(std::move(models)),
      options_(options),
      deferred_(reader.rereader(), priorities_of(options, models_.size()), options.ahead),
      counts_{.reader = &reader,
              .known_before = writer.history().lines_known(),
              .done_before = writer.history().lines_done(),
              .queues = std::vector<QueueDepth>(models_.size())} {
  if (options.view)
    view_.emplace(std::vector<const BatchCounts*>{&counts_}, metrics, ids_of(models_), start_s, *options.view);
}

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
    --counts_.queues[line->model].waiting;
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
  ++counts_.queues[std::get<RequestParts>(incoming.content).front().model].waiting;
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
  ++counts_.queues[unfinished.model].waiting;
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
      --counts_.queues[unfinished->second.model].running;
    } else {
      leave_queue(unfinished->second);
    }
    put_result(unfinished->second);
    unfinished_lines_.erase(unfinished);
  }
}

// One that has begun, or has ended before it did.
void BatchFrontEnd::leave_queue(const UnfinishedLine& line) {
  --counts_.queues[line.model].waiting;
  if (line.ahead) deferred_.begun(line.model, line.priority);
}

void BatchFrontEnd::put_result(const UnfinishedLine& line) {
  metrics_.add(line.parts);
  for (const Completion& part : line.parts) counts_.generated_tokens += part.generated_tokens;
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
    ++counts_.queues[unfinished->second.model].running;
    begun.push_back(line);
  }
  if (begun.empty()) return latest;
  latest = writer_.note_begun(begun, alone_);
  for (const RequestId line : begun) unfinished_lines_.at(line).noted_by = latest;
  return latest;
}

void BatchFrontEnd::stop(bool in_order, double now) {
  if (view_) view_->end("stopped", now);
  std::move(writer_).stop(in_order);
}

void BatchFrontEnd::finish(double now) {
  if (view_) view_->end("finished", now);
  ensure(unfinished_lines_.empty(), "requests without a result");
}

}  // namespace computron
