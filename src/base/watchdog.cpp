#include "computron/base/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <tuple>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/log.h"
#include "computron/base/time.h"
#include "computron/base/trace.h"

namespace computron {
namespace {

constexpr double kTick_s = 0.1;
constexpr double kStopped_s = 1;      // a thread that has not run for longer was stopped, and so was its process
constexpr double kOwnFraction = 0.9;  // of a limit: who hangs itself can say more of it than who misses it
constexpr double kGrace_s = 3;        // for rank 1 to speak for all that miss rank 0
constexpr std::size_t kRanksShown = 16;

double tick_of(const std::optional<WatchdogLimits>& limits) {
  if (!limits) return kTick_s;
  const double shortest =
      std::min({limits->start, limits->load, limits->silence, limits->finish, limits->step, limits->swap});
  return std::clamp(shortest / 20, 0.01, kTick_s);
}

// Somebody steps through the program.
bool debugged() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("TracerPid:")) return line.find_first_of("123456789") != std::string::npos;
  }
  return false;
}

[[noreturn]] void end_process(int rank, const std::string& line, ExitCode code = ExitCode::kWatchdog) {
  say_failure_at_once(rank, line);
  _exit(static_cast<int>(code));
}

std::string describe(const SignOfLife& sign) {
  const std::string_view name = text_of(sign.doing.name);
  switch (sign.phase) {
    case SignOfLife::kStart:
      return "starting";
    case SignOfLife::kLoad:
      return "loading";
    case SignOfLife::kFinish:
      return "finishing";
    case SignOfLife::kServe:
      break;
  }
  if (name.empty()) return fmt::format("without work after step {}", sign.doing.step);
  return fmt::format("in {} {} of step {} for {:.1f} s", name, sign.doing.detail, sign.doing.step, sign.doing_for_s);
}

std::string describe_silence(const RankView& view) {
  return fmt::format("nothing has been heard of it for {:.1f} s; then it was {}", view.silent_s, describe(view.sign));
}

}  // namespace

WatchdogLimits WatchdogLimits::times(double factor) const {
  return {start * factor, load * factor, silence * factor, finish * factor, step * factor, swap * factor, predicted};
}

Blame find_blame(const std::vector<RankView>& ranks, double old_s) {
  const auto number = [&](auto rank) { return static_cast<int>(rank - ranks.begin()); };
  const auto silent = std::ranges::max_element(ranks, {}, &RankView::silent_s);
  if (silent->silent_s > old_s) return {number(silent), describe_silence(*silent)};
  // The first in the order of work, of those that work if any do.
  const auto place = [](const RankView& view) {
    const Doing& doing = view.sign.doing;
    const bool works = !doing.waits && doing.name[0] != '\0';
    return std::tuple(!works, doing.step, doing.detail);
  };
  const auto last = std::ranges::min_element(ranks, {}, place);
  return {number(last), "is " + describe(last->sign)};
}

Watchdog::Watchdog(int rank, std::vector<std::string> hosts, std::optional<WatchdogLimits> limits,
                   FlightRecorder& recorder, End end)
    : rank_(rank),
      hosts_(std::move(hosts)),
      limits_(limits),
      recorder_(recorder),
      end_(end ? std::move(end) : [rank](const std::string& line) { end_process(rank, line); }),
      tick_s_(tick_of(limits)),
      others_(hosts_.size()),
      group_of_rank_(hosts_.size(), 0),
      looked_s_(now_s()),
      pulse_s_(looked_s_) {
  for (Other& other : others_) other.heard_s = looked_s_;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Watchdog::~Watchdog() = default;

void Watchdog::enter(SignOfLife::Phase phase) {
  phase_.store(phase, std::memory_order_relaxed);
  pulse();
  const std::lock_guard lock(mutex_);
  for (Group& group : groups_) group.moved_on_s = clock_s();
}

void Watchdog::form_groups(std::vector<int> group_of_rank) {
  const std::lock_guard lock(mutex_);
  group_of_rank_ = std::move(group_of_rank);
  const auto groups = static_cast<std::size_t>(*std::ranges::max_element(group_of_rank_)) + 1;
  groups_.assign(groups, {.step = std::nullopt, .predicted_s = 0, .moved_on_s = clock_s()});
}

void Watchdog::expect(std::optional<std::uint64_t> step, double predicted_s, int group) {
  const std::lock_guard lock(mutex_);
  Group& of = groups_[static_cast<std::size_t>(group)];
  of.step = step;
  of.predicted_s = predicted_s;
  of.moved_on_s = clock_s();
  if (step) of.owes.clear();
}

void Watchdog::expect_a_step(std::string why, int group) {
  const std::lock_guard lock(mutex_);
  Group& of = groups_[static_cast<std::size_t>(group)];
  if (of.owes.empty()) of.owed_since_s = clock_s();
  of.owes = std::move(why);
}

SignOfLife Watchdog::sign() const {
  const Doing doing = recorder_.doing();
  return {.doing = doing,
          .records = recorder_.moves(),
          .doing_for_s = now_s() - doing.since_s,
          .phase = phase_.load(std::memory_order_relaxed)};
}

void Watchdog::heard(int rank, const SignOfLife& sign) {
  const std::lock_guard lock(mutex_);
  Other& other = others_[static_cast<std::size_t>(rank)];
  other.heard_s = clock_s();
  other.listened_s = listened_s_.load(std::memory_order_relaxed);
  if (sign.records != other.sign.records) group_of(rank).moved_on_s = other.heard_s;
  other.sign = sign;
}

double Watchdog::clock_s() const { return now_s() - lost_s_.load(std::memory_order_relaxed); }

void Watchdog::run(const std::stop_token& stop) {
  std::mutex own;
  std::unique_lock lock(own);
  while (!stop.stop_requested()) {
    look();
    ticks_.wait_for(lock, stop, std::chrono::duration<double>(tick_s_), [] { return false; });
  }
}

void Watchdog::look() {
  const double now = now_s();
  const double gap = now - std::exchange(looked_s_, now);
  if (gap > kStopped_s) lose(gap - tick_s_);
  const double clock = clock_s();
  note_movement(clock);
  recorder_.note_alive(now, pulse_s_ + now - clock);
  if (!limits_ || ended_) return;
  const std::vector<Overdue> all = overdue(clock);
  std::erase_if(reported_,
                [&](const std::string& what) { return std::ranges::find(all, what, &Overdue::what) == all.end(); });
  if (all.empty()) return;
  for (const Overdue& one : all) report(one, clock);
  looked_s_ = now_s();  // a log that is slow is no time in which the process was stopped
}

// What the main thread has noted since the process went on lies behind the clock that is set back now.
void Watchdog::lose(double seconds) {
  const std::lock_guard lock(mutex_);
  lost_s_.store(lost_s_.load() + seconds, std::memory_order_relaxed);
  const double clock = clock_s();
  for (Group& group : groups_) {
    group.moved_on_s = std::min(group.moved_on_s, clock);
    group.owed_since_s = std::min(group.owed_since_s, clock);
  }
  for (Other& other : others_) other.heard_s = std::min(other.heard_s, clock);
}

// A main thread that looks up after a long time has listened for no longer than what others say next takes to come.
void Watchdog::note_movement(double clock) {
  const std::uint64_t pulses = pulses_.load(std::memory_order_relaxed);
  if (std::exchange(seen_pulses_, pulses) != pulses) {
    const double away_s = clock - std::exchange(pulse_s_, clock);
    listened_s_.store(listened_s_.load() + std::min(away_s, limits_.value_or(WatchdogLimits{}).beat_s()));
  }
  const std::uint64_t records = recorder_.moves();
  const double since_s = recorder_.doing().since_s;
  if (std::exchange(doing_since_s_, since_s) != since_s) began_s_ = clock;
  const std::lock_guard lock(mutex_);
  if (std::exchange(seen_records_, records) != records) group_of(rank_).moved_on_s = clock;
}

std::vector<Watchdog::Overdue> Watchdog::overdue(double clock) const {
  const std::lock_guard lock(mutex_);
  std::vector<Overdue> found;
  look_at_own(clock, found);
  look_at_others(found);
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    look_at_step(group, clock, found);
    look_at_next_step(group, clock, found);
  }
  std::erase_if(found, [](const Overdue& one) { return one.for_s <= one.limit_s; });
  return found;
}

double Watchdog::limit_of(int rank, SignOfLife::Phase phase) const {
  const Group& group = group_of(rank);
  switch (phase) {
    case SignOfLife::kStart:
      return limits_->start;
    case SignOfLife::kLoad:
      return limits_->load;
    case SignOfLife::kServe:
      return group.step ? std::max(limits_->silence, predicted_s(group, limits_->step)) : limits_->silence;
    case SignOfLife::kFinish:
      break;
  }
  return limits_->finish;
}

void Watchdog::look_at_own(double clock, std::vector<Overdue>& found) const {
  const SignOfLife own = sign();
  const Blame blame{rank_, "is " + describe(own)};
  found.push_back({"the main thread has not looked up", clock - pulse_s_, kOwnFraction * limit_of(rank_, own.phase),
                   silent_before(clock).value_or(blame)});
  if (own.phase == SignOfLife::kServe && text_of(own.doing.name) == kWaitForPage) {
    found.push_back({fmt::format("page {} has not come", own.doing.detail), clock - began_s_,
                     predicted_s(group_of(rank_), limits_->swap), blame});
  }
}

// A rank of which nothing was heard any more when the main thread still looked up: it may wait for that one in a call
// that does not return.
std::optional<Blame> Watchdog::silent_before(double clock) const {
  std::optional<Blame> blame;
  double earliest_s = pulse_s_ - 2 * limits_->beat_s();
  for (std::size_t other = 0; other < (rank_ == 0 ? others_.size() : 1); ++other) {
    const RankView view{others_[other].sign, clock - others_[other].heard_s};
    if (static_cast<int>(other) == rank_ || others_[other].heard_s >= earliest_s) continue;
    earliest_s = others_[other].heard_s;
    blame = {static_cast<int>(other), describe_silence(view)};
  }
  return blame;
}

void Watchdog::look_at_others(std::vector<Overdue>& found) const {
  for (std::size_t other = 0; other < (rank_ == 0 ? others_.size() : 1); ++other) {
    if (static_cast<int>(other) == rank_) continue;
    const RankView view{others_[other].sign, silent_s(others_[other])};
    found.push_back({fmt::format("{} is silent", name_of(static_cast<int>(other))),
                     view.silent_s,
                     limit_of(static_cast<int>(other), view.sign.phase),
                     {static_cast<int>(other), describe_silence(view)},
                     rank_ > 1 ? kGrace_s : 0});
  }
}

void Watchdog::look_at_step(std::size_t index, double clock, std::vector<Overdue>& found) const {
  const Group& group = groups_[index];
  if (rank_ != 0 || !group.step || phase_.load(std::memory_order_relaxed) != SignOfLife::kServe) return;
  const double limit_s = predicted_s(group, limits_->step);
  if (clock - group.moved_on_s <= limit_s) return;
  const std::vector<RankView> all = views(clock);
  std::vector<RankView> members;
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (std::cmp_not_equal(group_of_rank_[rank], index)) continue;
    members.push_back(all[rank]);
    ranks.push_back(static_cast<int>(rank));
  }
  Blame blame = find_blame(members, 3 * limits_->beat_s());
  blame.rank = ranks[static_cast<std::size_t>(blame.rank)];
  // What other groups do is heard only by a main thread that looks up.
  if (std::ranges::find(ranks, rank_) == ranks.end() && clock - pulse_s_ > 3 * limits_->beat_s()) {
    blame = {rank_, "is " + describe(sign())};
  }
  const std::string whose = groups_.size() > 1 ? fmt::format(" of group {}", index) : std::string();
  found.push_back({fmt::format("nobody gets on with step {}{}", *group.step, whose), clock - group.moved_on_s, limit_s,
                   std::move(blame)});
}

std::string Watchdog::name_of(int rank) const {
  if (groups_.size() == 1) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (group {})", rank, group_of_rank_[static_cast<std::size_t>(rank)]);
}

// Every rank is well and waits for rank 0, which waits for something that only it can bring about.
void Watchdog::look_at_next_step(std::size_t index, double clock, std::vector<Overdue>& found) const {
  const Group& group = groups_[index];
  if (group.step || group.owes.empty() || phase_.load(std::memory_order_relaxed) != SignOfLife::kServe) return;
  const std::string whose = groups_.size() > 1 ? fmt::format(" to group {}", index) : std::string();
  found.push_back({fmt::format("not all is done and no step is sent{}", whose),
                   clock - group.owed_since_s,
                   limits_->step,
                   {rank_, group.owes}});
}

std::vector<RankView> Watchdog::views(double clock) const {
  std::vector<RankView> views;
  for (const Other& other : others_) views.push_back({other.sign, silent_s(other)});
  views[static_cast<std::size_t>(rank_)] = {sign(), clock - pulse_s_};
  return views;
}

void Watchdog::report(const Overdue& overdue, double clock) {
  const Blame& blame = overdue.blame;
  std::unique_lock lock(mutex_);
  const std::string blamed = name_of(blame.rank);
  lock.unlock();
  const std::string line =
      fmt::format("watchdog: {} for {:.1f} s (the job ends at {:.1f} s): {} on {}: {}", overdue.what, overdue.for_s,
                  2 * overdue.limit_s, blamed, hosts_[static_cast<std::size_t>(blame.rank)], blame.why);
  if (overdue.for_s > 2 * overdue.limit_s + overdue.grace_s && !ended_ && !debugged()) {
    ended_ = true;
    recorder_.record(FlightRecord::kBegin, static_cast<std::uint8_t>(TraceTrack::kControl), kWatchdogEnds, now_s(), {},
                     {}, static_cast<std::uint64_t>(blame.rank));
    return end_(line);
  }
  if (std::ranges::find(reported_, overdue.what) != reported_.end()) return;
  reported_.push_back(overdue.what);
  std::string all;
  if (rank_ == 0) {
    lock.lock();
    const std::vector<RankView> known = views(clock);
    for (std::size_t rank = 0; rank < std::min(known.size(), kRanksShown); ++rank) {
      all += fmt::format("; {} is {}, heard {:.1f} s ago", name_of(static_cast<int>(rank)), describe(known[rank].sign),
                         known[rank].silent_s);
    }
  }
  say_at_once(rank_ == 0 ? fmt::format("computron: {}{}", line, all)
                         : fmt::format("computron: rank {}: {}", rank_, line));
}

EndTimer::EndTimer(int rank, const std::string& what, double limit_s, ExitCode code)
    : thread_([this, limit_s, line = fmt::format("watchdog: {} for {:.1f} s", what, limit_s), rank,
               code](const std::stop_token& stop) {
        std::mutex own;
        std::unique_lock lock(own);
        end_.wait_for(lock, stop, std::chrono::duration<double>(limit_s), [] { return false; });
        if (!stop.stop_requested()) end_process(rank, line, code);
      }) {}

}  // namespace computron
