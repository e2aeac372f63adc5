// A rank that is asked to stop tells rank 0, which stops all, and asks first who is still there; one that is asked how
// far the job has come tells rank 0, too, which knows. Nothing here blocks.
#pragma once

#include <vector>

#include "computron/runtime/step_exchange.h"

namespace computron {

// Every other rank's end.
class StopTeller {
 public:
  explicit StopTeller(const Mesh& mesh);
  // How many signals of each kind have come so far; `only_warned`: to stop, no more than a warning. Answers rank 0, too.
  void poll(int stops, bool only_warned, int status_requests);

 private:
  const Mesh& mesh_;
  int told_stops_ = 0, told_status_ = 0;
  bool answered_ = false;
  std::vector<std::byte> question_;
  MessageRequest asked_;
  Outbox outbox_;
};

// Rank 0's end.
class StopListener {
 public:
  explicit StopListener(const Mesh& mesh);
  // The most signals to stop that any rank has told of: a launcher sends each to all ranks. Looks at one rank a call.
  int poll();
  // None has told of more than a warning.
  bool only_warned() const { return only_warned_; }
  // Asks every rank whether it is there: one that is answers from within the step that it computes. Once.
  void ask();
  bool all_answered() const { return answers_ == ranks_.size(); }
  // Grows when some rank is asked for the job's status.
  int status_requests() const { return status_requests_; }

 private:
  struct Rank {
    std::vector<std::byte> bytes;  // signals to stop, what else there is to say, requests for the status modulo 256
    MessageRequest request;
    std::byte status{};  // the latter, as told before
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
