// Ends the process when it stalls: a rank that hangs, or that waits for one that hangs, would wait for ever.
//
// A thread of its own checks, ten times a second or more often for short limits:
//
//   the main thread       calls pulse() whenever it polls its queues
//   other ranks           send a sign of life now and then: heard(). Rank 0 hears all, the others rank 0. Only time
//                         in which the own main thread listens counts: a deaf rank must not blame others
//   the step in hand      rank 0 checks that every rank gets on with it
//   the next step         where none is in hand, rank 0 says whether it owes one: not all is done, and it waits for
//                         nobody outside the job
//   the wait for a page   the page's copy should have ended
//
// Each has a limit, from a prediction where there is one. When the limit is over the thread reports who waits for whom,
// once; when twice the limit is over it names the rank that causes the stall and ends the process with
// ExitCode::kWatchdog, whereupon the launcher ends the other ranks. The thread calls no MPI and no logger, since the
// main thread may hang in either.
//
// A job that was stopped and continued (Slurm's suspend, a laptop's lid) has not hung: when the thread finds that it
// has not run itself for more than a second, it takes that time from all clocks here.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "computron/base/error.h"
#include "computron/base/flight_recorder.h"

namespace computron {

// How long a stall may be, in seconds, before it is reported; twice as long ends the job.
struct WatchdogLimits {
  double start = 300;   // at the start, without progress
  double load = 120;    // while pages are loaded, without progress
  double silence = 60;  // of a rank's main thread, or until another rank is heard
  double finish = 120;  // the same, while results are written and the ranks wait for each other
  double step = 20;     // until some rank gets on with a step, beyond `predicted` times the step's predicted time
  double swap = 5;      // until a page has arrived, beyond `predicted` times the step's predicted time
  double predicted = 4;

  // All limits times `factor`; `predicted` stays.
  WatchdogLimits times(double factor) const;
  // Signs of life are sent this often; one that is older says nothing about its rank's present.
  double beat_s() const { return silence / 8; }
};

// What a rank says about itself. Travels as it lies in memory.
struct SignOfLife {
  enum Phase : std::uint8_t {
    kStart,
    kLoad,
    kServe,
    kFinish,  // results are written, and the ranks wait for each other
  };
  Doing doing;
  std::uint64_t records = 0;  // FlightRecorder::moves(): a rank whose number grows gets on
  double doing_for_s = 0;
  Phase phase = kStart;
};

// What is known of a rank when the cause of a stall is looked for.
struct RankView {
  SignOfLife sign;
  double silent_s = 0;
};
// The last record of a rank whose watchdog ends the job; its detail is the rank that causes the stall.
inline constexpr const char* kWatchdogEnds = "watchdog ends";

struct Blame {
  int rank = 0;
  std::string why;  // what the rank does, or since when nothing is heard of it
};
// Of ranks that do not get on with a step, the one that the others wait for: one of which nothing has been heard for
// longer than `old_s` and longest; else one that waits for no other; else one that is behind.
Blame find_blame(const std::vector<RankView>& ranks, double old_s);

// Ends the process like a watchdog if the timer still exists after `limit_s`: for what happens after the last pulse.
class EndTimer {
 public:
  // `what`: the message says that it has not happened. `code`: what the process then ends with.
  EndTimer(int rank, const std::string& what, double limit_s, ExitCode code = ExitCode::kWatchdog);

 private:
  std::condition_variable_any end_;
  std::jthread thread_;
};

class Watchdog {
 public:
  // Ends the process when `line` has been written to stderr; tests replace it.
  using End = std::function<void(const std::string& line)>;

  // Without limits it ends nothing, but notes in the recorder when the process was alive. Borrows the recorder, which
  // knows what the main thread does. `hosts`: [rank].
  Watchdog(int rank, std::vector<std::string> hosts, std::optional<WatchdogLimits> limits, FlightRecorder& recorder,
           End end = {});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // What follows is called by the main thread only. pulse() is one relaxed store.
  void pulse() noexcept { pulses_.store(pulses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void enter(SignOfLife::Phase phase);
  // On rank 0: which group each rank is in, and how many there are; before this all are of one. Each group has steps of
  // its own, and gets on with them or not whatever the others do.
  void form_groups(std::vector<int> group_of_rank);
  // The oldest step that `group` has in hand, which should be over `predicted_s` seconds from now; none: no step is in
  // hand. On a rank other than 0: its own, and the group is 0. A group that has a step is owed none.
  void expect(std::optional<std::uint64_t> step, double predicted_s = 0, int group = 0);
  // Rank 0 has work for `group`, which has no step in hand, and waits for nobody outside the job: `why` says what it
  // waits for. Empty: that is over. Until then another `why` replaces the first, and the time goes on.
  void expect_a_step(std::string why, int group = 0);
  // What this rank says about itself now.
  SignOfLife sign() const;
  // `rank` has said this about itself.
  void heard(int rank, const SignOfLife& sign);

  const std::optional<WatchdogLimits>& limits() const { return limits_; }

 private:
  // A stall beyond its limit, and the rank that causes it.
  struct Overdue {
    std::string what;
    double for_s = 0;
    double limit_s = 0;
    Blame blame;
    double grace_s = 0;  // beyond twice the limit
  };
  struct Other {
    SignOfLife sign;
    double heard_s = 0;     // clock_s() when `sign` was heard
    double listened_s = 0;  // listened_s_ when `sign` was heard
  };
  // What a group of ranks is at.
  struct Group {
    std::optional<std::uint64_t> step;  // the oldest in hand
    double predicted_s = 0;             // of it
    double moved_on_s = 0;              // when a rank got on with the step, or it became the oldest
    std::string owes = {};              // why rank 0, which should send it a step, does not; empty: it need not
    double owed_since_s = 0;
  };

  void run(const std::stop_token& stop);
  void look();
  void lose(double seconds);
  void note_movement(double clock);
  std::vector<Overdue> overdue(double clock) const;
  void look_at_own(double clock, std::vector<Overdue>& found) const;
  void look_at_others(std::vector<Overdue>& found) const;
  double silent_s(const Other& other) const { return listened_s_.load() - other.listened_s; }
  std::optional<Blame> silent_before(double clock) const;
  void look_at_step(std::size_t group, double clock, std::vector<Overdue>& found) const;
  void look_at_next_step(std::size_t group, double clock, std::vector<Overdue>& found) const;
  std::vector<RankView> views(double clock) const;
  double limit_of(int rank, SignOfLife::Phase phase) const;  // of its silence
  double predicted_s(const Group& group, double beyond_s) const {
    return limits_->predicted * group.predicted_s + beyond_s;
  }
  std::size_t index_of_group(int rank) const {
    return static_cast<std::size_t>(group_of_rank_[static_cast<std::size_t>(rank)]);
  }
  Group& group_of(int rank) { return groups_[index_of_group(rank)]; }
  const Group& group_of(int rank) const { return groups_[index_of_group(rank)]; }
  std::string name_of(int rank) const;
  void report(const Overdue& overdue, double clock);
  double clock_s() const;  // CLOCK_MONOTONIC without the time in which the process was stopped

  const int rank_;
  const std::vector<std::string> hosts_;
  const std::optional<WatchdogLimits> limits_;
  FlightRecorder& recorder_;
  const End end_;
  double tick_s_;

  // Of any thread.
  std::atomic<std::uint64_t> pulses_{0};
  std::atomic<double> lost_s_{0};      // time in which the process was stopped
  std::atomic<double> listened_s_{0};  // time in which the main thread pulsed
  std::atomic<SignOfLife::Phase> phase_{SignOfLife::kStart};

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Other> others_;  // [rank]
  std::vector<Group> groups_{1};
  std::vector<int> group_of_rank_;  // [rank]

  // Only the watchdog thread's.
  std::condition_variable_any ticks_;
  double looked_s_ = 0;  // CLOCK_MONOTONIC at the last check
  std::uint64_t seen_pulses_ = 0, seen_records_ = 0;
  double pulse_s_ = 0;                      // clock_s() when the number of pulses was seen to change
  double doing_since_s_ = 0, began_s_ = 0;  // of what the main thread does: Doing::since_s, and clock_s() at that time
  std::vector<std::string> reported_;       // stalls that have been reported and go on
  bool ended_ = false;
  std::jthread thread_;
};

}  // namespace computron
