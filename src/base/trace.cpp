#include "computron/base/trace.h"

#include <algorithm>

#include "computron/base/error.h"

namespace computron {

void Trace::add(TraceTrack track, const char* name, double begin_s, double end_s, std::string_view model,
                std::initializer_list<TraceNumber> numbers) {
  ensure(numbers.size() <= TraceEvent::kNumbers, "a trace event with too many numbers");
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
