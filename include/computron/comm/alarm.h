// For phases of the start in which ranks wait for each other elsewhere than in MPI, as in NCCL: a rank that fails there
// tells the others at once, which otherwise would wait for it until a deadline (agreed.h only tells them at the end).
#pragma once

#include <vector>

#include "computron/comm/mpi.h"

namespace computron {

class Alarm {
 public:
  // Collective.
  explicit Alarm(const Communicator& world);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Tells all other ranks that this one has failed; returns when the messages have left.
  void raise();
  // Whether another rank has raised it. Never blocks; stays true.
  bool heard();
  // heard(), after waiting for it for at most `limit_s` seconds.
  bool heard_within(double limit_s);

 private:
  Communicator world_;  // its own, so that a word that comes late meets no other receive
  std::vector<char> words_;
  std::vector<MessageRequest> receives_;
  bool heard_ = false;
};

}  // namespace computron
