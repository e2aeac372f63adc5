#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "computron/base/error.h"
#include "computron/base/json.h"
#include "computron/base/printable.h"
#include "computron/base/trace.h"
#include "computron/report/trace_spans.h"

namespace computron {
namespace {

constexpr double kMaxRank = 1 << 20;
constexpr double kMaxModels = 1 << 16;
constexpr double kLongest_s = 1e9;  // some thirty years

// What of an event is looked at.
struct Event {
  enum Text { kPhase, kName, kModel, kHost, kArgName, kTexts };
  enum Number { kPid, kTid, kTime, kDuration, kRows, kBytes, kLinkBytes, kDropped, kClockError, kGroup, kNumbers };
  std::array<std::string, kTexts> texts;
  std::array<double, kNumbers> numbers;

  void clear() {
    for (std::string& text : texts) text.clear();
    numbers.fill(std::numeric_limits<double>::quiet_NaN());
  }
};

// Where an event's fields go, by name; those of "args" by "args." and name.
struct Slot {
  const char* key;
  bool text;
  int at;
};
constexpr Slot kSlots[] = {{"ph", true, Event::kPhase},
                           {"name", true, Event::kName},
                           {"args.model", true, Event::kModel},
                           {"args.host", true, Event::kHost},
                           {"args.name", true, Event::kArgName},
                           {"pid", false, Event::kPid},
                           {"tid", false, Event::kTid},
                           {"ts", false, Event::kTime},
                           {"dur", false, Event::kDuration},
                           {"args.rows", false, Event::kRows},
                           {"args.bytes", false, Event::kBytes},
                           {"args.link_bytes", false, Event::kLinkBytes},
                           {"args.dropped_events", false, Event::kDropped},
                           {"args.clock_error_s", false, Event::kClockError},
                           {"args.group", false, Event::kGroup}};

// Keeps what is wanted of a trace, event by event.
class Keeper {
 public:
  Keeper(const std::string& file, RunTrace& trace) : file_(file), trace_(trace) {}

  void take(const Event& event) {
    const std::string& phase = event.texts[Event::kPhase];
    if (phase == "M") {
      take_metadata(event);
    } else if (phase == "X") {
      take_span(event);
    } else if (phase.empty()) {
      fail("has no 'ph'");
    }
    ++trace_.events;
  }

  void finish() const {
    bool ours = false;
    for (const auto& [rank, spans] : trace_.ranks) ours |= known_.contains(rank);
    if (!ours) {
      throw Error(ExitCode::kData,
                  file_ + ": no event 'computron_rank' in it: this is not what computron serve --trace writes");
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ExitCode::kData, fmt::format("{}: traceEvents[{}] {}", file_, trace_.events, what));
  }

 private:
  double number(const Event& event, Event::Number which, const char* name, double low, double high) const {
    const double value = event.numbers[which];
    if (std::isnan(value)) fail(fmt::format("has no '{}'", name));
    if (!(value >= low && value <= high)) fail(fmt::format("has {} {}, not {} to {}", name, value, low, high));
    return value;
  }

  int rank_of(const Event& event) const { return static_cast<int>(number(event, Event::kPid, "pid", 0, kMaxRank)); }

  void take_metadata(const Event& event) {
    const std::string& name = event.texts[Event::kName];
    if (name == "thread_name") {
      const auto track = static_cast<int>(number(event, Event::kTid, "tid", 0, 1e9));
      tracks_[key_of(rank_of(event), track)] = event.texts[Event::kArgName];
    } else if (name == "computron_rank") {
      RankSpans& rank = trace_.ranks[rank_of(event)];
      rank.host = event.texts[Event::kHost];
      if (!std::isnan(event.numbers[Event::kGroup])) {
        rank.group = static_cast<int>(number(event, Event::kGroup, "args.group", 0, kMaxRank));
      }
      rank.dropped = static_cast<std::uint64_t>(number(event, Event::kDropped, "args.dropped_events", 0, 1e15));
      rank.clock_error_s = number(event, Event::kClockError, "args.clock_error_s", -kLongest_s, kLongest_s);
      known_[rank_of(event)] = true;
    }
  }

  void take_span(const Event& event) {
    const int rank = rank_of(event);
    const auto tid = static_cast<int>(number(event, Event::kTid, "tid", 0, 1e9));
    const double begin_s = 1e-6 * number(event, Event::kTime, "ts", -1e6 * kLongest_s, 1e6 * kLongest_s);
    const double length_s = 1e-6 * number(event, Event::kDuration, "dur", 0, 1e6 * kLongest_s);
    const auto track = tracks_.find(key_of(rank, tid));
    if (track == tracks_.end()) fail(fmt::format("is of a thread {} of process {} that has no name", tid, rank));
    const TraceTime time{std::max(0.0, begin_s), std::max(0.0, begin_s + length_s)};
    trace_.end_s = std::max(trace_.end_s, time.end_s);
    keep(event, trace_.ranks[rank], track->second, time);
  }

  void keep(const Event& event, RankSpans& spans, const std::string& track, const TraceTime& time) {
    const std::string& name = event.texts[Event::kName];
    if (track == track_name(TraceTrack::kCompute) && name == "step") {
      if (event.numbers[Event::kRows] > 0) spans.steps.push_back({time, model_of(event)});
    } else if (track == track_name(TraceTrack::kCompute) && name == "wait for page") {
      spans.page_waits.push_back(time);
    } else if (track == track_name(TraceTrack::kCommunication) && name == "receive activation") {
      spans.stage_waits.push_back(time);
    } else if (track == track_name(TraceTrack::kCopy) && name != "verify") {
      const bool is_fetch = !std::isnan(event.numbers[Event::kLinkBytes]);
      const double bytes = is_fetch ? number(event, Event::kLinkBytes, "args.link_bytes", 0, 1e18)
                                    : number(event, Event::kBytes, "args.bytes", 0, 1e18);
      spans.copies.push_back({time, model_of(event), static_cast<std::uint64_t>(bytes)});
    }
  }

  std::uint32_t model_of(const Event& event) {
    const auto [found, is_new] = models_.try_emplace(event.texts[Event::kModel], trace_.models.size());
    if (is_new) {
      if (trace_.models.size() >= kMaxModels) fail("names one model more than a job can have");
      trace_.models.push_back(event.texts[Event::kModel]);
    }
    return static_cast<std::uint32_t>(found->second);
  }

  static const char* track_name(TraceTrack track) { return kTraceTrackNames[static_cast<std::size_t>(track)]; }
  static std::uint64_t key_of(int rank, int track) {
    return (static_cast<std::uint64_t>(rank) << 32) + static_cast<std::uint64_t>(track);
  }

  const std::string& file_;
  RunTrace& trace_;
  std::unordered_map<std::uint64_t, std::string> tracks_;  // by rank and thread
  std::unordered_map<std::string, std::size_t> models_;
  std::map<int, bool> known_;
};

// The events of a JSON text, whatever else is in it.
class EventHandler final : public JsonEvents {
 public:
  EventHandler(const std::string& file, Keeper& keeper) : keeper_(keeper), file_(file) { event_.clear(); }

  void read(std::istream& in) {
    const auto fault = read_json(in, *this);
    if (!fault) return;
    throw Error(ExitCode::kData,
                fmt::format("{}: not JSON from byte {} on: {}", file_, fault->position, printable(fault->message)));
  }

  void boolean(bool) override { wanted(/*text=*/true, "true or false"); }
  void negative(std::int64_t value) override { number(static_cast<double>(value)); }
  void integer(std::uint64_t value) override { number(static_cast<double>(value)); }
  void number(double value) override {
    if (const Slot* slot = wanted(/*text=*/false, "a number")) event_.numbers[slot->at] = value;
  }
  void string(std::string& text) override {
    if (const Slot* slot = wanted(/*text=*/true, "text")) event_.texts[slot->at] = std::move(text);
  }
  void key(std::string& name) override {
    if (depth_ == 1) in_list_ = name == "traceEvents";
    if (depth_ == event_depth()) key_ = name;
    if (depth_ == event_depth() + 1 && in_args_) key_ = "args." + name;
  }
  void begin_object() override {
    if (depth_ == event_depth() && in_events_) in_args_ = key_ == "args";
    ++depth_;
  }
  void end_object() override {
    --depth_;
    if (depth_ == event_depth()) in_args_ = false;
    if (depth_ == event_depth() - 1 && in_events_) {
      keeper_.take(event_);
      event_.clear();
    }
  }
  void begin_list() override {
    if (depth_ == 0) in_list_ = bare_ = true;  // a bare list of events is a trace, too
    if (depth_ == event_depth() - 2 && in_list_) in_events_ = true;
    ++depth_;
  }
  void end_list() override {
    --depth_;
    if (depth_ == event_depth() - 2) in_events_ = false;
  }

 private:
  int event_depth() const { return bare_ ? 2 : 3; }  // how many brackets are open inside an event

  // The slot of the value that comes now, if it is one that is looked at.
  const Slot* wanted(bool text, const char* kind) const {
    const bool field = depth_ == event_depth() || (depth_ == event_depth() + 1 && in_args_);
    if (!in_events_ || !field) return nullptr;
    for (const Slot& slot : kSlots) {
      if (key_ != slot.key) continue;
      if (slot.text != text) keeper_.fail(fmt::format("has a '{}' that is {}", slot.key, kind));
      return &slot;
    }
    return nullptr;
  }

  Keeper& keeper_;
  const std::string& file_;
  Event event_;
  std::string key_;
  int depth_ = 0;
  bool bare_ = false, in_list_ = false, in_events_ = false, in_args_ = false;
};

}  // namespace

RunTrace read_run_trace(std::istream& in, const std::string& file) {
  RunTrace trace;
  Keeper keeper(file, trace);
  EventHandler(file, keeper).read(in);
  keeper.finish();
  return trace;
}

}  // namespace computron
