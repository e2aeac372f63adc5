#include "computron/serve/batch_front_end.h"

#include <utility>

namespace computron {
namespace {

constexpr std::size_t kMaxUnwrittenBytes = 64u << 20;  // results held before reading pauses

}  // namespace

BatchFrontEnd::BatchFrontEnd(RequestReader& reader, ResultWriter& writer, Metrics& metrics,
                             std::vector<ServedModel> models, double start_s, const BatchOptions& options)
    : reader_(reader),
      writer_(writer),
      metrics_(metrics),
      models_(std::move(models)),
      start_s_(start_s),
      options_(options),
      progress_line_(options.show_progress, start_s) {}

bool BatchFrontEnd::take_input(Scheduler& scheduler, double now) {
  if (closed_) return false;
  bool took = false;
  while (room(scheduler)) {
    std::optional<IncomingRequest> incoming = reader_.poll();
    if (!incoming) break;
    take(std::move(*incoming), scheduler, now);
    took = true;
  }
  if (took || !reader_.finished()) return took;
  scheduler.close_input();
  return closed_ = true;
}

bool BatchFrontEnd::room(const Scheduler& scheduler) {
  return !scheduler.is_full() && writer_.queued_bytes() < kMaxUnwrittenBytes;
}

// A line that is no request has its result at once.
void BatchFrontEnd::take(IncomingRequest incoming, Scheduler& scheduler, double now) {
  if (const auto* failure = std::get_if<RequestFailure>(&incoming.content)) {
    metrics_.add_failure();
    writer_.write(format_failure(incoming, *failure));
    return;
  }
  const RequestId line = incoming.line;
  const std::size_t count = std::get<RequestParts>(incoming.content).size();
  Open& open = open_.emplace(line, Open{std::move(incoming), std::vector<Completion>(count), count}).first->second;
  for (Request& request : std::get<RequestParts>(open.incoming.content)) {
    if (!options_.replay) request.arrival_s = options_.live ? now : 0;
    scheduler.submit(std::move(request));
  }
}

void BatchFrontEnd::put_results(std::vector<Completion> completions, double /*now*/) {
  for (Completion& completion : completions) {
    const auto open = open_.find(completion.id);
    ensure(open != open_.end() && completion.part < open->second.parts.size(), "a completion of no request");
    Completion& part = open->second.parts[completion.part];
    part = std::move(completion);
    if (--open->second.missing > 0) continue;
    put_result(open->second);
    open_.erase(open);
  }
}

void BatchFrontEnd::put_result(const Open& open) {
  metrics_.add(open.parts);
  for (const Completion& part : open.parts) generated_tokens_ += part.generated_tokens;
  writer_.write(format_result(open.incoming, open.parts, models_[open.parts.front().model].config));
}

void BatchFrontEnd::show(const Activity& activity, double now) {
  if (progress_line_.due(start_s_ + now)) progress_line_.update(start_s_ + now, progress(activity));
}

void BatchFrontEnd::finish(double now) {
  progress_line_.finish(start_s_ + now, progress({}));
  ensure(open_.empty(), "requests without a result");
}

ProgressLine::State BatchFrontEnd::progress(const Activity& activity) {
  return {.done = metrics_.finished(),
          .total = reader_.lines_seen(),
          .total_known = reader_.finished(),
          .generated_tokens = generated_tokens_,
          .model = activity.running ? models_[*activity.running].id : std::string(),
          .swapping = activity.swapping};
}

}  // namespace computron
