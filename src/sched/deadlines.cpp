#include "computron/sched/deadlines.h"

#include <algorithm>
#include <utility>

namespace computron {
namespace {

constexpr const char* kDeadlineExceeded = "deadline_exceeded";

}  // namespace

std::string_view name_of(OnLate on_late) {
  switch (on_late) {
    case OnLate::kServe:
      return "serve";
    case OnLate::kDrop:
      return "drop";
    case OnLate::kReject:
      break;
  }
  return "reject";
}

Completion late_completion(const Request& request, std::string message, double now_s) {
  Completion completion = ended(request);
  completion.error_code = kDeadlineExceeded;
  completion.error_message = std::move(message);
  completion.finished_s = std::max(now_s, request.arrival_s);
  return completion;
}

bool met_deadline(const Completion& completion) {
  return completion.error_code.empty() && completion.finished_s <= completion.due_s;
}

bool is_unserved(const Completion& completion) { return completion.error_code == kDeadlineExceeded; }

void DeadlineCount::add(std::span<const Completion> parts) {
  if (parts.front().due_s == kNoDeadline) return;
  ++total;
  met += std::ranges::all_of(parts, met_deadline) ? 1 : 0;
  unserved += std::ranges::any_of(parts, is_unserved) ? 1 : 0;
}

DeadlineCount& DeadlineCount::operator+=(const DeadlineCount& other) {
  total += other.total;
  met += other.met;
  unserved += other.unserved;
  return *this;
}

}  // namespace computron
