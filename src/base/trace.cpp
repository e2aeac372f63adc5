#include "computron/base/trace.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/flight_recorder.h"

namespace computron {
namespace {

// What a record has room for.
struct Kept {
  std::optional<std::uint64_t> step;
  std::uint64_t detail = 0;
};

Kept kept_of(std::initializer_list<TraceNumber> numbers) {
  Kept kept;
  bool first = true;
  for (const TraceNumber& number : numbers) {
    if (number.key == nullptr) continue;
    if (std::string_view(number.key) == "step") {
      kept.step = number.value;
    } else if (std::exchange(first, false)) {
      kept.detail = number.value;
    }
  }
  return kept;
}

}  // namespace

void Trace::begin(TraceTrack track, const char* name, double begin_s, std::string_view model,
                  std::initializer_list<TraceNumber> numbers) {
  if (recorder_ == nullptr && ranges_ == nullptr) return;
  const Kept kept = kept_of(numbers);
  if (ranges_ != nullptr) ranges_->push(track, name, kept.step.value_or(kept.detail));
  if (recorder_ == nullptr) return;
  if (track != TraceTrack::kCopy) {
    recorder_->push(name, track == TraceTrack::kCommunication, kept.step, kept.detail, begin_s);
  }
  recorder_->record(FlightRecord::kBegin, static_cast<std::uint8_t>(track), name, begin_s, model, kept.step,
                    kept.detail);
}

void Trace::end(TraceTrack track) {
  if (ranges_ != nullptr) ranges_->pop();
  if (recorder_ != nullptr && track != TraceTrack::kCopy) recorder_->pop();
}

void Trace::add(TraceTrack track, const char* name, double begin_s, double end_s, std::string_view model,
                std::initializer_list<TraceNumber> numbers) {
  ensure(numbers.size() <= TraceEvent::kNumbers, "a trace event with too many numbers");
  if (recorder_ != nullptr) {
    const Kept kept = kept_of(numbers);
    recorder_->record(FlightRecord::kEnd, static_cast<std::uint8_t>(track), name, end_s, model, kept.step, kept.detail);
  }
  if (max_events_ == 0) return;
  TraceEvent event{track, name, begin_s, end_s, model, {}};
  std::copy(numbers.begin(), numbers.end(), event.numbers.begin());
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  if (events_.size() == max_events_) {
    ++dropped_;
  } else {
    events_.push_back(event);
  }
}

void Trace::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

}  // namespace computron
