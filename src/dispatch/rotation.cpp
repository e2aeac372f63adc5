#include "computron/dispatch/rotation.h"

#include <algorithm>

namespace computron {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

Rotation::Rotation(std::size_t count) : waits_(count, false), wakes_s_(count, kNever) {
  for (std::size_t member = 0; member < count; ++member) wake(member);
}

void Rotation::wake(std::size_t member) {
  if (waits_[member]) return;
  waits_[member] = true;
  waiting_.push_back(member);
}

void Rotation::leave(std::size_t member) {
  if (!waits_[member]) return;
  waits_[member] = false;
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), member));
}

void Rotation::sleep(std::size_t member, double time_s) {
  leave(member);
  wakes_s_[member] = time_s;
  first_s_ = std::min(first_s_, time_s);
}

void Rotation::yield(std::size_t member) {
  leave(member);
  wake(member);
}

std::optional<std::size_t> Rotation::front(double now_s) {
  if (now_s >= first_s_) wake_by_time(now_s);
  return waiting_.empty() ? std::nullopt : std::optional(waiting_.front());
}

void Rotation::wake_by_time(double now_s) {
  first_s_ = kNever;
  for (std::size_t member = 0; member < wakes_s_.size(); ++member) {
    if (wakes_s_[member] <= now_s) {
      wakes_s_[member] = kNever;
      wake(member);
    }
    first_s_ = std::min(first_s_, wakes_s_[member]);
  }
}

double Rotation::wakes_s() const { return waiting_.empty() ? first_s_ : -kNever; }

}  // namespace computron
