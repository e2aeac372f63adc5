// Sums over the admitted sequences of a model, each counted again when it changes: looking at them costs the same
// however many sequences there are, but for those of different urgency.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "computron/sched/cache_forecast.h"
#include "computron/sched/sequence.h"
#include "computron/sched/waiting_queue.h"

namespace computron {

// Sums over admitted sequences.
struct SequenceTotals {
  Backlog backlog;             // of all that does not end with what is in flight
  std::size_t unfinished = 0;  // running, and not certain to end with what is in flight
  int decoding = 0;            // running, with one token to compute at most
  SequenceTotals& operator+=(const SequenceTotals& other) {
    backlog += other.backlog;
    unfinished += other.unfinished;
    decoding += other.decoding;
    return *this;
  }
  SequenceTotals& operator-=(const SequenceTotals& other) {
    backlog -= other.backlog;
    unfinished -= other.unfinished;
    decoding -= other.decoding;
    return *this;
  }
};

// Of admitted sequences that do not end with what is in flight, and are equally urgent: how many they are, run, and
// compute again what they had before their cache was lost.
struct UrgencyTotals {
  int all = 0, running = 0, catching_up = 0;
  bool operator==(const UrgencyTotals&) const = default;
  UrgencyTotals& operator+=(const UrgencyTotals& other) {
    all += other.all;
    running += other.running;
    catching_up += other.catching_up;
    return *this;
  }
  UrgencyTotals& operator-=(const UrgencyTotals& other) {
    all -= other.all;
    running -= other.running;
    catching_up -= other.catching_up;
    return *this;
  }
};

class SequenceSums {
 public:
  // What a sequence has been counted with; at first with nothing.
  struct Counted {
    SequenceTotals totals;
    CacheNeed need;        // but for blocks that it shares
    int owned_blocks = 0;  // of those that it has now, the ones that `need` counts
    enum class NeedIn : std::uint8_t { kNone, kForecast, kPreempted } need_in = NeedIn::kNone;
    std::optional<std::int32_t> urgency;  // none: it has ended, or will with what is in flight
    UrgencyTotals of_urgency;
  };

  // Replaces what `counted` says by what the sequence is now. `shared_blocks`: of its first ones, that others used
  // already when it came.
  void count(Counted& counted, const Sequence& sequence, bool preempted, int shared_blocks, int block_tokens);

  const SequenceTotals& totals() const { return totals_; }
  // Of the running ones.
  const CacheForecast& forecast() const { return forecast_; }
  // Blocks that running ones have and `forecast()` counts: each with the sequence that was the first to use it.
  int owned_blocks() const { return owned_blocks_; }
  // What preempted ones need together when they run again.
  const CacheNeed& preempted_need() const { return preempted_need_; }
  const std::map<std::int32_t, UrgencyTotals>& urgencies() const { return urgencies_; }
  UrgencyTotals of_urgency(std::int32_t urgency) const;
  // None is less urgent than that.
  bool all_as_urgent(std::int32_t urgency) const { return urgencies_.empty() || urgencies_.rbegin()->first <= urgency; }

 private:
  void count_need(Counted& counted, const Sequence& sequence, bool preempted, int shared_blocks, int block_tokens);
  void count_urgency(Counted& counted, const Sequence& sequence, bool preempted);

  SequenceTotals totals_;
  std::map<std::int32_t, UrgencyTotals> urgencies_;
  CacheForecast forecast_;
  int owned_blocks_ = 0;
  CacheNeed preempted_need_;
};

}  // namespace computron
