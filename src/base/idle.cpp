#include "computron/base/idle.h"

#include <fmt/format.h>
#include <sched.h>

#include <charconv>
#include <ctime>

#include "computron/base/error.h"
#include "computron/base/processor.h"

namespace computron {

IdlePolicy IdlePolicy::parse(std::string_view text) {
  if (text == "spin") return {.kind = Kind::kSpin};
  if (text == "yield") return {.kind = Kind::kYield};
  if (text.starts_with("sleep:")) {
    IdlePolicy policy{.kind = Kind::kSleep};
    const auto* last = text.data() + text.size();
    const auto [end, status] = std::from_chars(text.data() + 6, last, policy.sleep_us);
    if (status == std::errc() && end == last && policy.sleep_us >= 0 && policy.sleep_us <= 1000000) return policy;
  }
  throw Error(ExitCode::kUsage, fmt::format("'{}' is not an idle policy (spin, yield, sleep:MICROSECONDS)", text));
}

IdlePolicy IdlePolicy::choose(int cores, int ranks, int threads_per_rank) {
  return {.kind = ranks * threads_per_rank <= cores ? Kind::kSpin : Kind::kSleep};
}

std::string IdlePolicy::to_string() const {
  switch (kind) {
    case Kind::kSpin:
      return "spin";
    case Kind::kYield:
      return "yield";
    case Kind::kSleep:
      break;
  }
  return fmt::format("sleep:{}", sleep_us);
}

void Idler::pause() {
  switch (policy_.kind) {
    case IdlePolicy::Kind::kSpin:
      spin_pause();
      return;
    case IdlePolicy::Kind::kYield:
      sched_yield();
      return;
    case IdlePolicy::Kind::kSleep:
      break;
  }
  if (++pauses_ <= policy_.yields_before) {
    sched_yield();
    return;
  }
  const timespec t{policy_.sleep_us / 1000000, policy_.sleep_us % 1000000 * 1000L};
  nanosleep(&t, nullptr);
}

}  // namespace computron
