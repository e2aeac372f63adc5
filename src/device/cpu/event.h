// Events of the CPU device.
//
//   record n enqueued --(the stream reaches it)--> n complete --> whoever waits for n or less goes on
//
// Records are numbered when they are enqueued. A wait names the number of the latest record at its call, so a later
// record does not move it. Records complete in order: begin_record() refuses another stream while one is pending.
//
// Threads: begin_record() and latest() belong to the thread that enqueues; complete() and fail() to the thread that
// runs the recording stream; query(), has_reached() and wait_for() to any thread.
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

  // Numbers a new record on `stream`, which completes or fails it when it reaches it. Called by Stream::record().
  // Error{kInternal} while a record on another stream is pending: completions would come out of order.
  std::uint64_t begin_record(const Stream& stream);
  void complete(std::uint64_t record);
  // The work before the pending records has thrown `error`: whoever asks for one of them gets it. For good.
  void fail(std::exception_ptr error);

  // Rethrows the error of a failed record.
  bool has_reached(std::uint64_t record) const {
    return has_reached_in(state_.load(std::memory_order_acquire), record);
  }
  // Sleeps until `record` has been reached, for about `timeout_us` microseconds at most; returns whether it has been.
  // Rethrows the error of a failed record.
  bool wait_for(std::uint64_t record, int timeout_us) const;

 private:
  static constexpr std::uint64_t kSleepers = 1;  // a thread may be asleep on state_
  static constexpr std::uint64_t kFailed = 2;    // error_ is set, for good
  static constexpr int kRecordShift = 2;

  bool has_reached_in(std::uint64_t state, std::uint64_t record) const;

  std::atomic<std::uint64_t> records_{0};  // enqueued so far
  const Stream* recorder_ = nullptr;       // the stream of the latest record
  // Completed record << kRecordShift | flags. One word, so that whoever completes a record touches the event once and
  // a waiter may destroy it straight after. Sleepers sleep on its lower half.
  mutable std::atomic<std::uint64_t> state_{0};
  std::exception_ptr error_;  // written before kFailed is set, read after
};

// The CPU event behind `event`; Error{kInternal} for any other kind.
CpuEvent& cpu(Event& event);

}  // namespace computron
