// The CPU copy stream: a thread of its own that copies pages past the caches, in the order given.
//
//   caller       wait / copy / record --> queue_
//   copy thread  takes all of queue_ ── for each: wait for the mark | copy, held to the link's rate, and verify |
//   complete the event
//
// Copies queued back to back run without a lock, an allocation or a look at the queue between them, but for the count
// of what has been copied. The thread sleeps on the queue, on an event or until a deadline; it never spins.
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

// After an error the stream is done for: the rest is dropped, events recorded on it fail, and every synchronize()
// rethrows the error. The destructor drops what has not run.
class CpuCopyStream final : public CopyStream {
 public:
  // Held to `link_gb_per_s` 10^9 bytes a second unless that is 0.
  explicit CpuCopyStream(double link_gb_per_s, CopyHook copied = {}, Trace* trace = nullptr);

  void record(Event& event) override;
  void wait(const Event& event) override;
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) override;
  void synchronize() override;
  LinkStatistics statistics() const override;
  void fetch(std::byte* frame, const std::byte* page, std::size_t bytes, const PageName& name,
             std::optional<std::uint64_t> digest) override;

 private:
  struct Wait {
    CpuEventMark mark;
  };
  struct Copy {
    std::byte* destination;
    const std::byte* source;
    std::size_t bytes;
    double enqueued_s;
    const char* what = "copy";  // for the trace
    PageName name = {};         // of a page
    std::optional<std::uint64_t> digest = {};
    bool over_link = true;
  };
  struct Record {
    CpuEvent* event;
    std::uint64_t record;
  };
  using Entry = std::variant<Wait, Copy, Record>;

  void give(const Entry& entry);

  // On the copy thread.
  void run(const std::stop_token& stop);
  bool take(std::vector<Entry>& entries, const std::stop_token& stop);
  void execute_all(const std::vector<Entry>& entries, const std::stop_token& stop);
  void execute(const Wait& wait, const std::stop_token& stop);
  void execute(const Copy& copy, const std::stop_token& stop);
  void execute(const Record& record, const std::stop_token& stop);
  bool is_right(const Copy& copy) const;
  void perform(const Copy& copy, int attempt, const std::stop_token& stop);
  void copy_at_link_rate(const Copy& copy, const std::stop_token& stop);

  mutable std::mutex mutex_;
  std::condition_variable_any given_;  // queue_ is no longer empty
  std::condition_variable finished_;   // unfinished_ is 0 again
  // Guarded by mutex_.
  std::vector<Entry> queue_;
  std::size_t unfinished_ = 0;  // entries in queue_ and in the copy thread's hands
  LinkStatistics statistics_;
  std::exception_ptr error_;  // written by the copy thread only, which reads it without the lock
  // The copy thread's.
  EmulatedLink link_;
  CopyHook copied_;
  Trace* trace_;
  std::uint64_t copies_ = 0;  // begun

  std::jthread thread_;  // last: stops before anything it uses goes
};

}  // namespace computron
