#include "computron/serve/batch_front_end.h"

#include <utility>

namespace computron {
namespace {

constexpr std::size_t kMaxUnwrittenBytes = 64u << 20;  // results held before reading pauses

}  // namespace

BatchFrontEnd::BatchFrontEnd(RequestReader& reader, ResultWriter& writer, Metrics& metrics,
                             std::vector<std::string> model_ids, double start_s, const BatchOptions& options)
    : reader_(reader),
      writer_(writer),
      metrics_(metrics),
      model_ids_(std::move(model_ids)),
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
  Request request = std::move(std::get<Request>(incoming.content));  // what is left tells how to write the result
  if (!options_.replay) request.arrival_s = options_.live ? now : 0;
  const RequestId line = incoming.line;
  open_.emplace(line, std::move(incoming));
  scheduler.submit(std::move(request));
}

void BatchFrontEnd::put_results(std::vector<Completion> completions, double /*now*/) {
  for (const Completion& completion : completions) {
    const auto incoming = open_.find(completion.id);
    ensure(incoming != open_.end(), "a completion of no request");
    metrics_.add(completion);
    generated_tokens_ += completion.generated_tokens;
    writer_.write(format_completion(incoming->second, completion));
    open_.erase(incoming);
  }
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
          .model = activity.running ? model_ids_[*activity.running] : std::string(),
          .swapping = activity.swapping};
}

}  // namespace computron
