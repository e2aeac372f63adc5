// A rank that is asked to stop tells rank 0, which stops all. Nothing here blocks.
#pragma once

#include <vector>

#include "computron/runtime/step_exchange.h"

namespace computron {

// Every other rank's end.
class StopTeller {
 public:
  explicit StopTeller(const Mesh& mesh) : mesh_(mesh) {}
  // `signals`: how many have come so far.
  void poll(int signals);

 private:
  const Mesh& mesh_;
  int told_ = 0;
  Outbox outbox_;
};

// Rank 0's end.
class StopListener {
 public:
  explicit StopListener(const Mesh& mesh);
  // The most signals that any rank has told of: a launcher sends each to all ranks. Looks at one rank a call.
  int poll();

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
};

}  // namespace computron
