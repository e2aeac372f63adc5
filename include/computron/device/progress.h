// What the owner of MPI does while it would otherwise stand still.
#pragma once

#include <functional>

#include "computron/base/idle.h"

namespace computron {

// poll() is called on the one thread that owns MPI, between panels and inside every wait: it must not block and must
// not run a step. wait_until() is the only way that thread waits for anything. The hook is set by the engine once it
// stands; until then poll() does nothing.
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
