#include "src/device/cpu/event.h"

#include "src/device/cpu/futex.h"

namespace computron {

std::uint64_t CpuEvent::begin_record(const Stream& stream) {
  ensure(recorder_ == &stream || query(), "an event was recorded on a stream while a record on another is pending");
  recorder_ = &stream;
  return records_.fetch_add(1, std::memory_order_relaxed) + 1;
}

void CpuEvent::complete(std::uint64_t record) {
  const auto before = state_.exchange(record << kRecordShift, std::memory_order_acq_rel);
  if (before & kSleepers) futex_wake(&state_);
}

void CpuEvent::fail(std::exception_ptr error) {
  if (state_.load(std::memory_order_relaxed) & kFailed) return;
  error_ = std::move(error);
  state_.fetch_or(kFailed, std::memory_order_release);
  futex_wake(&state_);
}

bool CpuEvent::has_reached_in(std::uint64_t state, std::uint64_t record) const {
  if (state >> kRecordShift >= record) return true;
  if (state & kFailed) std::rethrow_exception(error_);
  return false;
}

bool CpuEvent::wait_for(std::uint64_t record, int timeout_us) const {
  auto state = state_.load(std::memory_order_acquire);
  do {
    if (has_reached_in(state, record)) return true;
  } while (!state_.compare_exchange_weak(state, state | kSleepers, std::memory_order_acquire));
  futex_wait(&state_, static_cast<std::uint32_t>(state | kSleepers), timeout_us);
  return has_reached(record);
}

CpuEvent& cpu(Event& event) {
  auto* cpu_event = dynamic_cast<CpuEvent*>(&event);
  ensure(cpu_event != nullptr, "a CPU stream was given an event of another device");
  return *cpu_event;
}

CpuEventMark mark_of(const Event* event) {
  if (event == nullptr) return {};
  const auto* cpu_event = dynamic_cast<const CpuEvent*>(event);
  ensure(cpu_event != nullptr, "a CPU stream was given an event of another device");
  return {cpu_event, cpu_event->latest()};
}

bool reached(const CpuEventMark& mark) { return mark.event == nullptr || mark.event->has_reached(mark.record); }

}  // namespace computron
