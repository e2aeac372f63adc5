// How signals reach rank 0. A rank that receives a signal to stop tells rank 0, which asks all ranks for an answer and
// then stops them all. A rank that receives the signal for the job's status tells rank 0, too, which writes the status.
// Nothing here blocks. Belongs to the thread that owns MPI.
#pragma once

#include <vector>

#include "computron/runtime/step_exchange.h"

namespace computron {

// Tells rank 0; on every other rank.
class StopTeller {
 public:
  explicit StopTeller(const Mesh& mesh);
  // Tells rank 0 of new signals, and answers its question. `stops` and `status_requests`: signals of each kind that
  // this rank has received so far; `only_warned`: those to stop were warnings of the batch system, no more.
  void poll(int stops, bool only_warned, int status_requests);

 private:
  const Mesh& mesh_;
  int told_stops_ = 0, told_status_ = 0;
  bool answered_ = false;
  std::vector<std::byte> question_;
  MessageRequest asked_;
  Outbox outbox_;
};

// Hears the other ranks; on rank 0.
class StopListener {
 public:
  explicit StopListener(const Mesh& mesh);
  // The most signals to stop that any one rank has told of: a launcher sends each signal to all ranks. Tests the
  // receive of one rank a call.
  int poll();
  // No rank has told of more than a warning.
  bool only_warned() const { return only_warned_; }
  // Asks every rank for an answer. A rank that is alive answers even from within a step that it computes. To be called
  // once.
  void ask();
  bool all_answered() const { return answers_ == ranks_.size(); }
  // Grows whenever some rank has received the signal for the status.
  int status_requests() const { return status_requests_; }

 private:
  struct Rank {
    std::vector<std::byte> bytes;  // [3]: signals to stop, flags, status requests modulo 256
    MessageRequest request;
    std::byte status{};  // bytes[2] of the message before
  };
  void post(int rank);

  const Mesh& mesh_;
  std::vector<Rank> ranks_;  // [rank - 1]
  std::size_t next_ = 0;
  int most_ = 0;
  bool only_warned_ = true;
  std::size_t answers_ = 0;
  int status_requests_ = 0;
  Outbox outbox_;
};

}  // namespace computron
