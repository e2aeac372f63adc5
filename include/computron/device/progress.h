// What the thread that owns MPI does while it would otherwise only wait.
#pragma once

#include <functional>

#include "computron/base/idle.h"

namespace computron {

// poll() is called on the one thread that owns MPI, between the work items of that thread (CpuContext::parallel_for)
// and inside every wait. So it may be called from within enqueued work: it must not block and must not enqueue work.
// wait_until() is the only way that thread waits for anything. Until set_hook() poll() does nothing.
class Progress {
 public:
  explicit Progress(IdlePolicy idle) : idle_(idle) {}

  void set_hook(std::function<void()> poll) { poll_ = std::move(poll); }
  void poll() {
    if (poll_) poll_();
  }
  IdlePolicy idle() const { return idle_; }

  // Returns once done() is true; polls and idles between tries.
  template <class Done>
  void wait_until(Done&& done) {
    Idler idler(idle_);
    while (!done()) {
      poll();
      idler.pause();
    }
  }

 private:
  IdlePolicy idle_;
  std::function<void()> poll_;
};

}  // namespace computron
