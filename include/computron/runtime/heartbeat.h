// Signs of life: every rank tells rank 0 now and then what it is doing, and rank 0 every rank; the watchdog of each
// rank hears them. Nothing here blocks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "computron/base/flight_recorder.h"
#include "computron/base/watchdog.h"
#include "computron/comm/mpi.h"

namespace computron {

struct HeartbeatOptions {
  std::optional<WatchdogLimits> limits = WatchdogLimits{};  // none: nobody is ended
  std::string folder = {};                                  // of the recorder's file (flight_recorder.h)
};

class Heartbeat {
 public:
  // Collective. Makes the recorder, the watchdog, and a communicator of its own. Ranks that wait for each other at the
  // start poll it from now on.
  Heartbeat(const Communicator& world, const HeartbeatOptions& options);
  ~Heartbeat();  // the end of MPI has a limit from now on
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // By the thread that owns MPI, whenever it looks at its queues: mostly a store and a look at the clock.
  void poll();
  // Tells the others at once.
  void enter(SignOfLife::Phase phase);
  // Runs `work` on a thread of its own and polls until it has returned or thrown: work with files takes as long as
  // their disk does. It must not touch MPI.
  void run_beside(const std::function<void()>& work);

  FlightRecorder& recorder() { return *recorder_; }
  Watchdog& watchdog() { return *watchdog_; }

 private:
  struct Peer {
    int rank = 0;
    SignOfLife sent, received;
    MessageRequest sending, receiving;
  };
  void post(Peer& peer);
  void exchange(Peer& peer, bool speak);

  Communicator world_;
  double beat_s_;
  double look_at_s_ = 0, speak_at_s_ = 0;
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<Watchdog> watchdog_;
  std::vector<Peer> peers_;  // rank 0: all others; the others: rank 0
};

}  // namespace computron
