// Ends the process when nothing goes on: a rank that hangs, or that waits for one that does, would wait for ever.
//
// A thread of its own looks ten times a second, or more often for short limits, at
//
//   its own main thread   which calls pulse() whenever it looks at its queues
//   other ranks           which say now and then what they do: heard(). Rank 0 hears all, the others rank 0. Only time
//                         in which the own main thread listens counts: a deaf one must not blame others
//   the step in hand      rank 0 sees that every rank gets on with it
//   the next step         where none is in hand, rank 0 says whether it owes one: not all is done, and it waits for
//                         nobody outside the job
//   the wait for a page   whose copy should have come
//
// Each has a limit, from a prediction where there is one. When it is over the thread reports who waits for whom, once;
// when twice the limit is over it says which rank has to answer for it and ends the process with
// ExitCode::kWatchdog, whereupon the launcher ends the others. It calls no MPI and no logger: the main thread may stand
// in either.
//
// A job that was stopped and continued (Slurm's suspend, a laptop's lid) has not hung: a thread that finds that it has
// not run itself for more than a second takes that time from all clocks here.
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

#include "computron/base/flight_recorder.h"

namespace computron {

// How long, in seconds, before it is reported; twice as long ends the job.
struct WatchdogLimits {
  double start = 300;   // without getting on, at the start
  double load = 120;    // likewise, while pages are loaded
  double silence = 60;  // of a rank's main thread, or until another rank is heard
  double finish = 120;  // likewise, while results are brought to safety
  double step = 20;     // until some rank gets on with a step, beyond `predicted` times what was predicted for it
  double swap = 5;      // until a page has come, likewise
  double predicted = 4;

  // All but the last times `factor`.
  WatchdogLimits times(double factor) const;
  // What is heard of a rank is old after this.
  double beat_s() const { return silence / 8; }
};

// What a rank says of itself. Sent as it is.
struct SignOfLife {
  enum Phase : std::uint8_t {
    kStart,
    kLoad,
    kServe,
    kFinish,  // results are brought to safety, and the ranks wait for each other
  };
  Doing doing;
  std::uint64_t records = 0;  // that it has made: more of them mean that it gets on
  double doing_for_s = 0;
  Phase phase = kStart;
};

// What is known of a rank when somebody has to answer for a standstill.
struct RankView {
  SignOfLife sign;
  double silent_s = 0;
};
// The last record of a rank whose watchdog ends the job; its detail is the rank that has to answer for it.
inline constexpr const char* kWatchdogEnds = "watchdog ends";

struct Blame {
  int rank = 0;
  std::string why;  // what it does, or since when nothing is heard of it
};
// Of ranks that do not get on with a step, the one that the others wait for: one of which nothing has been heard for
// longer than `old_s` and longest; else one that waits for no other; else one that is behind.
Blame find_blame(const std::vector<RankView>& ranks, double old_s);

// Ends the process like a watchdog if it is still there after `limit_s`: for what happens behind the last pulse.
class EndTimer {
 public:
  // `what` has not happened then.
  EndTimer(int rank, const std::string& what, double limit_s);

 private:
  std::condition_variable_any end_;
  std::jthread thread_;
};

class Watchdog {
 public:
  // Ends the process, whose `line` has been said; tests put something else there.
  using End = std::function<void(const std::string& line)>;

  // No limits: it ends nothing, but notes in the recorder when the process was alive. Borrows the recorder, which
  // notes what the main thread does.
  // `hosts`: by rank.
  Watchdog(int rank, std::vector<std::string> hosts, std::optional<WatchdogLimits> limits, FlightRecorder& recorder,
           End end = {});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // By the main thread. pulse() is one relaxed store.
  void pulse() noexcept { pulses_.store(pulses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  void enter(SignOfLife::Phase phase);
  // The oldest step in hand, which should take so long from now on; none for no step.
  void expect(std::optional<std::uint64_t> step, double predicted_s = 0);
  // Rank 0 has work and no step in hand, and waits for nobody outside the job: `why` says what it waits for. Empty:
  // that is over. Until then another `why` replaces the first, and the time goes on.
  void expect_a_step(std::string why);
  // What this rank says of itself now, and what another one has said.
  SignOfLife sign() const;
  void heard(int rank, const SignOfLife& sign);

  const std::optional<WatchdogLimits>& limits() const { return limits_; }

 private:
  // Something that stands still, and who has to answer for it.
  struct Overdue {
    std::string what;
    double for_s = 0;
    double limit_s = 0;
    Blame blame;
    double grace_s = 0;  // beyond twice the limit
  };
  struct Other {
    SignOfLife sign;
    double heard_s = 0;     // clock_s() then
    double listened_s = 0;  // listened_s_ then
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
  void look_at_step(double clock, std::vector<Overdue>& found) const;
  void look_at_next_step(double clock, std::vector<Overdue>& found) const;
  std::vector<RankView> views(double clock) const;
  double limit_of(SignOfLife::Phase phase) const;  // of a rank's silence
  double predicted_s(double beyond_s) const { return limits_->predicted * predicted_s_ + beyond_s; }
  void report(const Overdue& overdue, double clock);
  double clock_s() const;  // CLOCK_MONOTONIC without the time in which the process was stopped

  const int rank_;
  const std::vector<std::string> hosts_;
  const std::optional<WatchdogLimits> limits_;
  FlightRecorder& recorder_;
  const End end_;
  double tick_s_;

  std::atomic<std::uint64_t> pulses_{0};
  std::atomic<double> lost_s_{0};
  std::atomic<double> listened_s_{0};  // time in which the main thread pulsed
  std::atomic<SignOfLife::Phase> phase_{SignOfLife::kStart};

  mutable std::mutex mutex_;
  std::vector<Other> others_;  // [rank]
  std::optional<std::uint64_t> step_;
  double predicted_s_ = 0;
  std::string owes_step_;  // why rank 0, which should send one, does not; empty: it need not
  double moved_on_s_ = 0;  // when a rank got on with the step, it became the oldest, or one became due

  // The thread's own.
  std::condition_variable_any ticks_;
  double looked_s_ = 0;
  std::uint64_t seen_pulses_ = 0, seen_records_ = 0;
  double pulse_s_ = 0;                      // clock_s() when the number of pulses was seen to change
  double doing_since_s_ = 0, began_s_ = 0;  // of what the main thread does: its own time, and clock_s() then
  std::vector<std::string> reported_;       // what has been reported and is still so
  bool ended_ = false;
  std::jthread thread_;
};

}  // namespace computron
