// Whose turn it is: of several that ask to be looked at, now or at a time that they name, the one that has waited
// longest. Looking costs the same however many there are, but for the moments at which a named time has come. Times are
// seconds of the caller's clock.
#pragma once

#include <cstddef>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

namespace computron {

class Rotation {
 public:
  // Members 0 to count - 1, all of whom want to be looked at.
  explicit Rotation(std::size_t count);

  // Wants to be looked at when its turn comes; one that wants that already keeps its place.
  void wake(std::size_t member);
  // Has been looked at and wants to be again at `time_s`, or when woken before.
  void sleep(std::size_t member, double time_s);
  // Has been looked at and wants to be again, behind all that wait now.
  void yield(std::size_t member);
  // Whose turn it is: the same one until it sleeps or yields.
  std::optional<std::size_t> front(double now_s);
  // When front() will name somebody if nobody is woken before: minus infinity if somebody waits already.
  double wakes_s() const;

 private:
  void leave(std::size_t member);
  void wake_by_time(double now_s);

  std::vector<bool> waits_;      // [member] is in `waiting_`
  std::vector<double> wakes_s_;  // [member]
  std::deque<std::size_t> waiting_;
  double first_s_ = std::numeric_limits<double>::infinity();  // no member's time comes before
};

}  // namespace computron
