#include "computron/comm/alarm.h"

#include <algorithm>

#include "computron/base/idle.h"
#include "computron/base/time.h"
#include "computron/comm/tags.h"

namespace computron {

Alarm::Alarm(const Communicator& world) : world_(world.split(/*color=*/0, world.rank())), words_(world_.size()) {
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (rank == world_.rank()) continue;
    receives_.push_back(world_.receive(std::as_writable_bytes(std::span(&words_[rank], 1)), rank, tags::kAlarm));
  }
}

Alarm::~Alarm() {
  world_.leave_to_finalize();  // another rank may have raised it just now
}

void Alarm::raise() {
  const char word = 'a';
  std::vector<MessageRequest> sends;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (rank != world_.rank()) sends.push_back(world_.send(std::as_bytes(std::span(&word, 1)), rank, tags::kAlarm));
  }
  Idler idler(IdlePolicy{});
  while (!std::all_of(sends.begin(), sends.end(), [](MessageRequest& send) { return send.done(); })) idler.pause();
}

bool Alarm::heard() {
  for (MessageRequest& receive : receives_) heard_ = receive.done() || heard_;
  return heard_;
}

bool Alarm::heard_within(double limit_s) {
  const double end_s = now_s() + limit_s;
  for (Idler idler(IdlePolicy{}); !heard() && now_s() < end_s;) idler.pause();
  return heard_;
}

}  // namespace computron
