// What a rank did when: spans of time for a picture (`--trace`, a Chrome trace), and the last of them for the flight
// recorder (base/flight_recorder.h), which tells after a failure what the rank was doing.
//
// Code that may be traced holds a Trace*, null in a job that is not traced: then a span costs one branch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <mutex>
#include <string_view>

#include "computron/base/time.h"

namespace computron {

class FlightRecorder;

// The rows of a rank in the picture. Spans of one track follow or enclose each other.
enum class TraceTrack : std::uint8_t { kControl, kCompute, kCopy, kCommunication };
inline constexpr std::array<const char*, 4> kTraceTrackNames = {"control", "compute", "copy", "communication"};

inline constexpr const char* kWaitForPage = "wait for page";  // the compute stream, for a copy

struct TraceNumber {
  const char* key = nullptr;  // null: none
  std::uint64_t value = 0;
};

struct TraceEvent {
  static constexpr std::size_t kNumbers = 4;
  TraceTrack track = TraceTrack::kControl;
  const char* name = "";
  double begin_s = 0;  // of now_s()
  double end_s = 0;
  std::string_view model;  // empty: of no model
  std::array<TraceNumber, kNumbers> numbers;
};

// A profiler that is told of spans as they begin and end, on the thread that they are on. Any thread may call it.
class TraceRanges {
 public:
  virtual ~TraceRanges() = default;
  virtual void push(TraceTrack track, const char* name, std::uint64_t detail) noexcept = 0;
  virtual void pop() noexcept = 0;  // what was pushed last
};

class Trace {
 public:
  // Keeps the first `max_events` spans (24 MiB of memory) and counts the rest; 0: keeps none. All spans go to
  // `recorder`, unless that is null: with the number whose key is "step" as their step, and the first other number as
  // detail. `ranges`, unless null, gets the spans of begin() and end(). Borrows both.
  static constexpr std::size_t kMaxEvents = std::size_t{1} << 18;
  explicit Trace(std::size_t max_events = kMaxEvents, FlightRecorder* recorder = nullptr, TraceRanges* ranges = nullptr)
      : max_events_(max_events), recorder_(recorder), ranges_(ranges) {}

  // begin(): a span begins, which a later add() describes in full. end(): the innermost begun span is over, and its
  // thread goes on with the one around it. Spans of tracks other than kCopy belong to the main thread.
  void begin(TraceTrack track, const char* name, double begin_s, std::string_view model = {},
             std::initializer_list<TraceNumber> numbers = {});
  void end(TraceTrack track);
  // From any thread. Borrows names and keys for good: literals, and names of models. At most kNumbers numbers.
  void add(TraceTrack track, const char* name, double begin_s, double end_s, std::string_view model = {},
           std::initializer_list<TraceNumber> numbers = {});

  // Drops what is added from here on. To be called before events() is read.
  void close();
  const std::deque<TraceEvent>& events() const { return events_; }
  std::uint64_t dropped() const { return dropped_; }  // spans beyond max_events, before close()

 private:
  const std::size_t max_events_;
  FlightRecorder* const recorder_;
  TraceRanges* const ranges_;
  std::mutex mutex_;
  bool closed_ = false;
  std::deque<TraceEvent> events_;
  std::uint64_t dropped_ = 0;
};

// Adds the span from `begin_s` to now.
inline void trace_since(double begin_s, Trace* trace, TraceTrack track, const char* name, std::string_view model = {},
                        std::initializer_list<TraceNumber> numbers = {}) {
  if (trace != nullptr) trace->add(track, name, begin_s, now_s(), model, numbers);
}

// A span from here to the end of the block.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, TraceTrack track, const char* name, std::string_view model = {}, TraceNumber first = {},
            TraceNumber second = {})
      : trace_(trace), track_(track), name_(name), model_(model), first_(first), second_(second) {
    if (trace_ == nullptr) return;
    begin_s_ = now_s();
    trace_->begin(track_, name_, begin_s_, model_, {first_, second_});
  }
  ~TraceSpan() {
    if (trace_ == nullptr) return;
    trace_->add(track_, name_, begin_s_, now_s(), model_, {first_, second_});
    trace_->end(track_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* trace_;
  TraceTrack track_;
  const char* name_;
  std::string_view model_;
  TraceNumber first_, second_;
  double begin_s_ = 0;
};

}  // namespace computron
