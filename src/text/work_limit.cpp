#include "src/text/work_limit.h"

#include <fmt/format.h>

#include <ctime>
#include <limits>

#include "computron/base/error.h"

namespace computron {
namespace {

constexpr double kSeconds = 2, kSecondsPerByte = 4e-6;
constexpr unsigned kChecksPerLook = 64;  // at the clock, which costs some 200 ns

struct Limit {
  double allowed_s = 0, end_s = std::numeric_limits<double>::infinity();
  unsigned checks = 0;
};
thread_local Limit limit;

double thread_time_s() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

WorkLimit::WorkLimit(std::size_t bytes) : outermost_(limit.allowed_s == 0) {
  if (!outermost_) return;
  limit.allowed_s = kSeconds + kSecondsPerByte * static_cast<double>(bytes);
  limit.end_s = thread_time_s() + limit.allowed_s;
}

WorkLimit::~WorkLimit() {
  if (outermost_) limit = {};
}

void WorkLimit::check() {
  if (++limit.checks % kChecksPerLook != 0 || thread_time_s() < limit.end_s) return;
  throw RequestError(
      400, "invalid_request",
      fmt::format("with this model's tokenizer the text takes more than {:.1f} s to encode", limit.allowed_s));
}

}  // namespace computron
