// The CPU copy stream: a thread of its own that copies pages past the caches, in the order of the calls.
//
// The tasks:
//
//   caller       wait, copy, record: each appends an entry to queue_ and returns
//   copy thread  swaps all of queue_ into a vector of its own, then for each entry in order
//                  Wait    sleeps until the event's record has been reached
//                  Copy    copies, held to the emulated host link's rate; verifies; copies once more where that fails.
//                          A coded page is decoded from host memory into its frame: no byte of it is copied before
//                  Record  completes the event's record, which wakes its waiters; fails it after an error
//
// queue_ is the double buffer: the caller fills one vector while the copy thread empties the other. So copies that are
// queued back to back run without an allocation or a look at the queue between them, and with one short lock each, for
// the statistics. The thread sleeps on the queue, on an event or until a deadline; it never spins.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <variant>
#include <vector>

#include "src/device/cpu/emulated_link.h"
#include "src/device/cpu/event.h"

namespace computron {

// After an error the stream copies nothing more: the entries behind it are dropped, but events recorded on the stream
// fail, and every synchronize() rethrows the error. The destructor drops the entries that have not run.
class CpuCopyStream final : public CopyStream {
 public:
  // Emulates a host link of `link_gb_per_s` 10^9 bytes a second; 0: copies as fast as memory allows.
  explicit CpuCopyStream(double link_gb_per_s, CopyHook copied = {}, Trace* trace = nullptr);

  void record(Event& event) override;
  void wait(const Event& event) override;
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void synchronize() override;
  CopyStatistics statistics() const override;
  void fetch(std::byte* frame, const HostPage& page, const PageName& name,
             std::optional<std::uint64_t> digest) override;

 private:
  struct Wait {
    CpuEventMark mark;
  };
  struct Copy {
    std::byte* destination;
    HostPage source;
    double enqueued_s;                         // now_s() of the call
    const char* what = "copy";                 // the span's name in the trace
    PageName name = {};                        // of a fetch
    std::optional<std::uint64_t> digest = {};  // that the destination must have; none: not verified
    bool over_link = true;                     // false: within the device, not throttled and not counted
  };
  struct Record {
    CpuEvent* event;
    std::uint64_t record;
  };
  using Entry = std::variant<Wait, Copy, Record>;

  void enqueue(const Entry& entry);

  // On the copy thread. All return early, with the work undone, when `stop` is requested.
  void run(const std::stop_token& stop);
  bool take(std::vector<Entry>& entries, const std::stop_token& stop);
  void execute_all(const std::vector<Entry>& entries, const std::stop_token& stop);
  void execute(const Wait& wait, const std::stop_token& stop);
  void execute(const Copy& copy, const std::stop_token& stop);
  void execute(const Record& record, const std::stop_token& stop);
  // What a copy has brought.
  struct Arrival {
    bool is_there = false;
    bool is_decoded = true;                    // false: a coded page that cannot be
    std::optional<std::uint64_t> digest = {};  // of what is decoded, where it is verified
    bool operator==(const Arrival&) const = default;
  };
  static bool is_right(const Arrival& arrived, const Copy& copy);
  Arrival perform(const Copy& copy, int attempt, const std::stop_token& stop);
  void copy_plain(const Copy& copy, const std::stop_token& stop);
  bool decode(const Copy& copy, const std::stop_token& stop);
  double deadline_of(std::size_t bytes, const Copy& copy);
  void count(const Copy& copy, int attempts, bool right, double begin_s, double end_s);

  mutable std::mutex mutex_;
  std::condition_variable_any enqueued_;  // queue_ is no longer empty
  std::condition_variable finished_;      // unfinished_ is 0 again
  // Guarded by mutex_.
  std::vector<Entry> queue_;
  std::size_t unfinished_ = 0;  // entries in queue_, and those that the copy thread has taken
  CopyStatistics statistics_;
  std::exception_ptr error_;  // written by the copy thread only, which reads it without the lock
  // Only the copy thread's.
  EmulatedLink host_link_;
  CopyHook copied_;
  Trace* trace_;
  std::size_t crossed_ = 0;   // bytes of the copy in hand that the link has been charged for
  std::uint64_t copies_ = 0;  // over the link, complete: the number of the copy in hand (CopyHook)

  std::jthread thread_;  // the last member: joined before anything that it uses is destroyed
};

}  // namespace computron
