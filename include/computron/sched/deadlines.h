// Deadlines of requests: what is done about late ones, and how many were in time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "computron/sched/request.h"

namespace computron {

// What becomes of a request that is late. One that has begun is served to its end, whatever its deadline.
enum class OnLate : std::uint8_t {
  kServe,   // nothing: scheduling knows no deadlines
  kDrop,    // one that has not begun when its deadline has passed ends then
  kReject,  // one that is predicted to end behind its deadline ends when it would be given to a group
};

// As they are written on the command line.
std::string_view name_of(OnLate on_late);

// The end of a request that is not served because it is late: deadline_exceeded.
Completion late_completion(const Request& request, std::string message, double now_s);

// It ended in time, and without an error.
bool met_deadline(const Completion& completion);
// It was dropped or rejected.
bool is_unserved(const Completion& completion);

// Of requests with a deadline.
struct DeadlineCount {
  std::uint64_t total = 0;     // that have ended
  std::uint64_t met = 0;       // in time, and without an error
  std::uint64_t unserved = 0;  // dropped or rejected

  // A request with all its parts, which have one deadline; nothing if they have none. It has met it if all of them
  // have.
  void add(std::span<const Completion> parts);
  DeadlineCount& operator+=(const DeadlineCount& other);
};

}  // namespace computron
