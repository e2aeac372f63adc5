// A link of a given rate, played by the clock.
#pragma once

#include <algorithm>
#include <cstddef>

namespace computron {

// When copies of this many bytes would have ended on a link of this rate. Deadlines follow from deadlines and never
// from the time of waking up, so a late wake-up is made good by the next copies, up to kCredit_s of it.
class EmulatedLink {
 public:
  static constexpr double kCredit_s = 5e-3;

  // 0: no link, everything is over at once.
  explicit EmulatedLink(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}

  bool throttled() const { return bytes_per_s_ > 0; }

  // The time (now_s) at which the next `bytes` have crossed the link, given to it at `enqueued_s`.
  double deadline_of(std::size_t bytes, double enqueued_s, double now_s) {
    deadline_s_ = std::max({deadline_s_, enqueued_s, now_s - kCredit_s}) + static_cast<double>(bytes) / bytes_per_s_;
    return deadline_s_;
  }

 private:
  double bytes_per_s_;
  double deadline_s_ = 0;
};

}  // namespace computron
