// Events of the CPU device.
//
//   record n enqueued --(the stream gets there)--> n complete --> everyone waiting for n or less goes on
//
// Records are counted on the host when they are enqueued, completions when they are reached, so a wait is fixed by a
// number: a later record does not move it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "computron/device/cpu/cpu_stream.h"

namespace computron {

class CpuEvent final : public Event {
 public:
  bool query() const override { return has_reached(latest()); }
  std::uint64_t latest() const { return records_.load(std::memory_order_relaxed); }

  // Counts a new record on `stream`, which completes (or fails) it when it gets there. Called where record() was.
  // Error{kInternal} while a record on another stream is pending: completions would come out of order.
  std::uint64_t begin_record(const Stream& stream);
  void complete(std::uint64_t record);
  // The work before the pending records threw `error`: whoever asks for one of them gets it.
  void fail(std::exception_ptr error);

  // Rethrows the error of a failed record.
  bool has_reached(std::uint64_t record) const {
    return has_reached_in(state_.load(std::memory_order_acquire), record);
  }
  // Sleeps until `record` has been reached, at most about `timeout_us`; whether it has been.
  bool wait_for(std::uint64_t record, int timeout_us) const;

 private:
  static constexpr std::uint64_t kSleepers = 1;  // somebody may be asleep on state_
  static constexpr std::uint64_t kFailed = 2;    // error_ is set, for good
  static constexpr int kRecordShift = 2;

  bool has_reached_in(std::uint64_t state, std::uint64_t record) const;

  std::atomic<std::uint64_t> records_{0};
  const Stream* recorder_ = nullptr;
  // Completed record << kRecordShift | flags. One word, so that whoever completes a record touches the event once and
  // a waiter may destroy it straight after. Sleepers sleep on its lower half.
  mutable std::atomic<std::uint64_t> state_{0};
  std::exception_ptr error_;
};

// The CPU event behind `event`; Error{kInternal} for any other kind.
CpuEvent& cpu(Event& event);

}  // namespace computron
