// For phases of the start in which ranks wait for each other elsewhere than in MPI (agreed.h): a rank that fails there
// says so at once, and the others need not wait for what will never come.
#pragma once

#include <vector>

#include "computron/comm/mpi.h"

namespace computron {

class Alarm {
 public:
  // Collective.
  explicit Alarm(const Communicator& world);
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // This rank has failed. Returns when all others have been told.
  void raise();
  // Whether another rank has raised it. Never blocks; stays true.
  bool heard();
  // Waits so long for that.
  bool heard_within(double limit_s);

 private:
  Communicator world_;  // its own: what nobody waits for any longer goes with it
  std::vector<char> words_;
  std::vector<MessageRequest> receives_;
  bool heard_ = false;
};

}  // namespace computron
