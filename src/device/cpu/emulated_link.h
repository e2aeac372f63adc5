// A host link of a chosen rate, emulated by the clock.
#pragma once

#include <algorithm>
#include <cstddef>

namespace computron {

// Computes when copies would end on a link of this rate. Deadlines follow from deadlines and never from the time of
// waking up, so the next copies make good for a late wake-up, up to kCredit_s of it.
class EmulatedLink {
 public:
  static constexpr double kCredit_s = 5e-3;

  // 0: no link is emulated.
  explicit EmulatedLink(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}

  bool throttled() const { return bytes_per_s_ > 0; }

  // The now_s() at which the next `bytes` bytes have crossed the link, if they were enqueued at `enqueued_s`.
  double deadline_of(std::size_t bytes, double enqueued_s, double now_s) {
    deadline_s_ = std::max({deadline_s_, enqueued_s, now_s - kCredit_s}) + static_cast<double>(bytes) / bytes_per_s_;
    return deadline_s_;
  }

 private:
  double bytes_per_s_;
  double deadline_s_ = 0;
};

}  // namespace computron
