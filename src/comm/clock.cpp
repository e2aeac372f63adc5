#include "computron/comm/clock.h"

#include <limits>
#include <span>

#include "computron/base/idle.h"
#include "computron/base/time.h"
#include "computron/comm/tags.h"

namespace computron {
namespace {

constexpr int kRoundTrips = 16;

void finish(MessageRequest request) {
  Idler idler({.kind = IdlePolicy::Kind::kYield});
  while (!request.done()) idler.pause();
}

template <class T>
void send(const Communicator& world, const T& value, int to) {
  finish(world.send(std::as_bytes(std::span(&value, 1)), to, tags::kClock));
}

template <class T>
T receive(const Communicator& world, int from) {
  T value{};
  finish(world.receive(std::as_writable_bytes(std::span(&value, 1)), from, tags::kClock));
  return value;
}

// Rank 0's side: the other's clock was read at some time between sending and receiving.
ClockOffset measure(const Communicator& world, int rank) {
  ClockOffset best{.offset_s = 0, .error_s = std::numeric_limits<double>::infinity()};
  for (int i = 0; i < kRoundTrips; ++i) {
    const double begin_s = now_s();
    send(world, begin_s, rank);
    const auto theirs_s = receive<double>(world, rank);
    const double end_s = now_s();
    const double error_s = (end_s - begin_s) / 2;
    if (error_s < best.error_s) best = {.offset_s = begin_s + error_s - theirs_s, .error_s = error_s};
  }
  return best;
}

}  // namespace

ClockOffset measure_clock_offset(const Communicator& world) {
  if (world.rank() == 0) {
    for (int rank = 1; rank < world.size(); ++rank) send(world, measure(world, rank), rank);
    return {};
  }
  for (int i = 0; i < kRoundTrips; ++i) {
    receive<double>(world, 0);
    send(world, now_s(), 0);
  }
  return receive<ClockOffset>(world, 0);
}

}  // namespace computron
