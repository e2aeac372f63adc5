// Signs of life: every rank tells rank 0 once a beat what it is doing, and rank 0 tells every rank; each rank's
// watchdog hears them. Nothing here blocks. Belongs to the thread that owns MPI.
//
// What must hold: a rank sends a peer the next sign only when the last one has left, and keeps one receive posted a
// peer. So a peer that hangs holds up one message, and no memory grows.
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
  ~Heartbeat();  // from now on a watched job's MPI_Finalize has a deadline
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // To be called whenever the thread polls its queues. Mostly costs a store and a reading of the clock.
  void poll();
  // This rank enters `phase`: tells its peers at once.
  void enter(SignOfLife::Phase phase);
  // Runs `work` on a thread of its own beside the heartbeat: polls until `work` has returned, or rethrows what it has
  // thrown. For work with files, which takes as long as their disk does. `work` must not touch MPI.
  void run_beside(const std::function<void()>& work);

  FlightRecorder& recorder() { return *recorder_; }
  Watchdog& watchdog() { return *watchdog_; }

 private:
  struct Peer {
    int rank = 0;
    SignOfLife sent, received;
    MessageRequest sending, receiving;
  };
  void post(Peer& peer);  // the receive of the peer's next sign
  void exchange(Peer& peer,
                bool speak);  // hears what has arrived; sends a sign where `speak` and the last one has left

  Communicator world_;
  double beat_s_;
  double look_at_s_ = 0;   // now_s() from which on poll() tests the receives: a quarter of a beat after the last time
  double speak_at_s_ = 0;  // and from which on it sends: a beat after the last time
  std::unique_ptr<FlightRecorder> recorder_;
  std::unique_ptr<Watchdog> watchdog_;
  std::vector<Peer> peers_;  // rank 0: all others; the others: rank 0
};

}  // namespace computron
