#include "computron/runtime/stop_exchange.h"

#include <algorithm>

#include "computron/comm/tags.h"

namespace computron {

void StopTeller::poll(int signals) {
  if (signals > told_) {
    told_ = signals;
    outbox_.send(mesh_.world, {static_cast<std::byte>(std::min(signals, 255))}, 0, tags::kStop);
  }
  if (!outbox_.empty()) outbox_.poll();
}

StopListener::StopListener(const Mesh& mesh) : mesh_(mesh), ranks_(static_cast<std::size_t>(mesh.shape.ranks() - 1)) {
  for (int rank = 1; rank < mesh.shape.ranks(); ++rank) post(rank);
}

void StopListener::post(int rank) {
  Rank& entry = ranks_[static_cast<std::size_t>(rank - 1)];
  entry.bytes.resize(1);
  entry.request = mesh_.world.receive(entry.bytes, rank, tags::kStop);
}

int StopListener::poll() {
  if (ranks_.empty()) return most_;
  next_ = (next_ + 1) % ranks_.size();
  if (ranks_[next_].request.done()) {
    most_ = std::max(most_, static_cast<int>(ranks_[next_].bytes[0]));
    post(static_cast<int>(next_) + 1);
  }
  return most_;
}

}  // namespace computron
