#include "computron/serve/deferred_input.h"

#include <utility>

namespace computron {
namespace {

// Being read again at once: enough for any step, few enough that what is urgent is soon there.
constexpr std::size_t kMostComing = 1024;
constexpr std::size_t kMostComingBytes = std::size_t{16} << 20;

}  // namespace

void DeferredInput::defer(const IncomingRequest& incoming, double arrival_s) {
  const RequestParts& parts = std::get<RequestParts>(incoming.content);
  DeferredLine line{.place = incoming.place,
                    .arrival_s = arrival_s,
                    .model = parts.front().model,
                    .priority = parts.front().priority};
  for (const Request& request : parts) line.bytes += request.bytes();
  requests_.push(line);
}

void DeferredInput::ask(const Dispatcher& dispatcher, double now_s) {
  while (coming_.size() < kMostComing && coming_bytes_ < kMostComingBytes && ask_for_one(dispatcher, now_s)) {
  }
}

// Lines on their way take room already, and so does what was preempted.
bool DeferredInput::ask_for_one(const Dispatcher& dispatcher, double now_s) {
  const SchedulerOptions& limits = dispatcher.scheduler(0).options();
  const std::size_t bytes = dispatcher.waiting_bytes() + coming_bytes_;
  const std::size_t requests = dispatcher.waiting() + dispatcher.set_aside() + coming_.size();
  const bool room = requests < limits.max_waiting && bytes < limits.max_waiting_bytes;
  const std::optional<DeferredLine> line =
      room ? requests_.take(now_s) : requests_.take_ahead(now_s, /*one_a_queue=*/bytes >= 2 * limits.max_waiting_bytes);
  if (!line) return false;
  rereader_->ask(line->place);
  coming_.push_back({line->arrival_s, line->bytes, line->model, line->priority, /*ahead=*/!room});
  coming_bytes_ += line->bytes;
  return true;
}

std::optional<DeferredInput::Line> DeferredInput::poll() {
  if (coming_.empty()) return std::nullopt;
  std::optional<IncomingRequest> incoming = rereader_->poll();
  if (!incoming) return std::nullopt;
  const Coming coming = coming_.front();
  coming_.pop_front();
  coming_bytes_ -= coming.bytes;
  return Line{std::move(*incoming), coming.arrival_s, coming.model, coming.priority, coming.ahead};
}

}  // namespace computron
