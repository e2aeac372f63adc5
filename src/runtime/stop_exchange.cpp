#include "computron/runtime/stop_exchange.h"

#include <algorithm>
#include <utility>

#include "computron/comm/tags.h"

namespace computron {
namespace {

// A rank's message: how many signals, and what else there is to say.
constexpr unsigned kWarning = 1, kAnswer = 2;

std::vector<std::byte> message(int signals, unsigned what) {
  return {static_cast<std::byte>(std::min(signals, 255)), static_cast<std::byte>(what)};
}

}  // namespace

StopTeller::StopTeller(const Mesh& mesh)
    : mesh_(mesh), question_(1), asked_(mesh.world.receive(question_, 0, tags::kStop)) {}

void StopTeller::poll(int signals, bool only_warned) {
  const bool answer = !answered_ && asked_.done();
  if (signals > told_ || answer) {
    told_ = signals;
    answered_ |= answer;
    outbox_.send(mesh_.world, message(signals, (only_warned ? kWarning : 0u) | (answer ? kAnswer : 0u)), 0,
                 tags::kStop);
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
  if (!outbox_.empty()) outbox_.poll();
  if (ranks_.empty()) return most_;
  next_ = (next_ + 1) % ranks_.size();
  if (ranks_[next_].request.done()) {
    const int signals = static_cast<int>(ranks_[next_].bytes[0]);
    const auto what = static_cast<unsigned>(ranks_[next_].bytes[1]);
    most_ = std::max(most_, signals);
    only_warned_ &= signals == 0 || (what & kWarning) != 0;
    answers_ += (what & kAnswer) != 0 ? 1 : 0;
    post(static_cast<int>(next_) + 1);
  }
  return most_;
}

void StopListener::ask() {
  for (int rank = 1; rank < mesh_.shape.ranks(); ++rank) {
    outbox_.send(mesh_.world, {std::byte{0}}, rank, tags::kStop);
  }
}

}  // namespace computron
