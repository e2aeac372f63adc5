#include "computron/runtime/stop_exchange.h"

#include <algorithm>
#include <utility>

#include "computron/comm/tags.h"

namespace computron {

void StopTeller::poll(int stops, int status_requests) {
  if (stops > told_stops_ || status_requests > told_status_) {
    told_stops_ = stops;
    told_status_ = status_requests;
    outbox_.send(mesh_.world, {static_cast<std::byte>(std::min(stops, 255)), static_cast<std::byte>(status_requests & 255)},
                 0, tags::kStop);
  }
  if (!outbox_.empty()) outbox_.poll();
}

StopListener::StopListener(const Mesh& mesh) : mesh_(mesh), ranks_(static_cast<std::size_t>(mesh.shape.ranks() - 1)) {
  for (int rank = 1; rank < mesh.shape.ranks(); ++rank) post(rank);
}

void StopListener::post(int rank) {
  Rank& entry = ranks_[static_cast<std::size_t>(rank - 1)];
  entry.bytes.resize(2);
  entry.request = mesh_.world.receive(entry.bytes, rank, tags::kStop);
}

int StopListener::poll() {
  if (ranks_.empty()) return most_;
  next_ = (next_ + 1) % ranks_.size();
  if (ranks_[next_].request.done()) {
    Rank& entry = ranks_[next_];
    most_ = std::max(most_, static_cast<int>(entry.bytes[0]));
    status_requests_ += std::exchange(entry.status, entry.bytes[1]) != entry.bytes[1];
    post(static_cast<int>(next_) + 1);
  }
  return most_;
}

}  // namespace computron
