// A rank that is asked to stop tells rank 0, which stops all, and asks first who is still there. Nothing here blocks.
#pragma once

#include <vector>

#include "computron/runtime/step_exchange.h"

namespace computron {

// Every other rank's end.
class StopTeller {
 public:
  explicit StopTeller(const Mesh& mesh);
  // `signals`: how many have come so far; `only_warned`: no more than a warning. Answers rank 0, too.
  void poll(int signals, bool only_warned);

 private:
  const Mesh& mesh_;
  int told_ = 0;
  bool answered_ = false;
  std::vector<std::byte> question_;
  MessageRequest asked_;
  Outbox outbox_;
};

// Rank 0's end.
class StopListener {
 public:
  explicit StopListener(const Mesh& mesh);
  // The most signals that any rank has told of: a launcher sends each to all ranks. Looks at one rank a call.
  int poll();
  // None has told of more than a warning.
  bool only_warned() const { return only_warned_; }
  // Asks every rank whether it is there: one that is answers from within the step that it computes. Once.
  void ask();
  bool all_answered() const { return answers_ == ranks_.size(); }

 private:
  struct Rank {
    std::vector<std::byte> bytes;
    MessageRequest request;
  };
  void post(int rank);

  const Mesh& mesh_;
  std::vector<Rank> ranks_;  // [rank - 1]
  std::size_t next_ = 0;
  int most_ = 0;
  bool only_warned_ = true;
  std::size_t answers_ = 0;
  Outbox outbox_;
};

}  // namespace computron
