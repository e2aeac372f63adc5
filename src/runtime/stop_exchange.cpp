#include "computron/runtime/stop_exchange.h"

#include <algorithm>
#include <utility>

#include "computron/comm/tags.h"

namespace computron {
namespace {

// What a message says beside numbers.
constexpr unsigned kWarning = 1, kAnswer = 2;

std::vector<std::byte> message(int stops, unsigned what, int status_requests) {
  return {static_cast<std::byte>(std::min(stops, 255)), static_cast<std::byte>(what),
          static_cast<std::byte>(status_requests & 255)};
}

}  // namespace

StopTeller::StopTeller(const Mesh& mesh)
    : mesh_(mesh), question_(1), asked_(mesh.job.receive(question_, 0, tags::kStop)) {}

void StopTeller::poll(int stops, bool only_warned, int status_requests) {
  const bool answer = !answered_ && asked_.done();
  if (stops > told_stops_ || status_requests > told_status_ || answer) {
    told_stops_ = stops;
    told_status_ = status_requests;
    answered_ |= answer;
    const unsigned what = (only_warned ? kWarning : 0u) | (answer ? kAnswer : 0u);
    outbox_.send(mesh_.job, message(stops, what, status_requests), 0, tags::kStop);
  }
  if (!outbox_.empty()) outbox_.poll();
}

StopListener::StopListener(const Mesh& mesh) : mesh_(mesh), ranks_(static_cast<std::size_t>(mesh.job.size() - 1)) {
  for (int rank = 1; rank < mesh.job.size(); ++rank) post(rank);
}

void StopListener::post(int rank) {
  Rank& entry = ranks_[static_cast<std::size_t>(rank - 1)];
  entry.bytes.resize(3);
  entry.request = mesh_.job.receive(entry.bytes, rank, tags::kStop);
}

int StopListener::poll() {
  if (!outbox_.empty()) outbox_.poll();
  if (ranks_.empty()) return most_;
  next_ = (next_ + 1) % ranks_.size();
  if (ranks_[next_].request.done()) {
    Rank& entry = ranks_[next_];
    const int stops = static_cast<int>(entry.bytes[0]);
    const auto what = static_cast<unsigned>(entry.bytes[1]);
    most_ = std::max(most_, stops);
    only_warned_ &= stops == 0 || (what & kWarning) != 0;
    answers_ += (what & kAnswer) != 0 ? 1 : 0;
    status_requests_ += std::exchange(entry.status, entry.bytes[2]) != entry.bytes[2];
    post(static_cast<int>(next_) + 1);
  }
  return most_;
}

void StopListener::ask() {
  for (int rank = 1; rank < mesh_.job.size(); ++rank) {
    outbox_.send(mesh_.job, {std::byte{0}}, rank, tags::kStop);
  }
}

}  // namespace computron
