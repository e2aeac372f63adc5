#include "src/device/cpu/copy_stream.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <ctime>

#include "computron/base/digest.h"
#include "computron/base/error.h"
#include "computron/base/time.h"
#include "computron/base/trace.h"
#include "src/device/cpu/streaming_copy.h"

namespace computron {
namespace {

constexpr std::size_t kLinkChunk = std::size_t{1} << 20;
constexpr int kAttempts = 2;             // a page is copied this often at most before its wrong digest ends the stream
constexpr int kStopInterval_us = 20000;  // a thread asleep on an event looks this often whether it is to stop

// Sleeps to a time of now_s(), not at all if it is over.
void sleep_until(double deadline_s) {
  const auto ns = static_cast<std::int64_t>(std::ceil(deadline_s * 1e9));
  const timespec until{ns / 1000000000, ns % 1000000000};
  int status = EINTR;
  while (status == EINTR) status = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  ensure(status == 0, "clock_nanosleep failed");
}

Error wrong_digest(const PageName& name) {
  return Error(ExitCode::kDevice,
               fmt::format("page {} of model {} arrived damaged in device memory {} times: its digest is wrong",
                           name.page, name.model, kAttempts));
}

}  // namespace

CpuCopyStream::CpuCopyStream(double link_gb_per_s, CopyHook copied, Trace* trace)
    : link_(link_gb_per_s * 1e9),
      copied_(std::move(copied)),
      trace_(trace),
      thread_([this](std::stop_token stop) { run(stop); }) {}

void CpuCopyStream::record(Event& event) {
  auto& cpu_event = cpu(event);
  give(Record{&cpu_event, cpu_event.begin_record(*this)});
}

void CpuCopyStream::wait(const Event& event) { give(Wait{mark_of(&event)}); }

void CpuCopyStream::copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  give(Copy{destination, source, bytes, now_s()});
}

// Both memories are this process's, and the link is one.
void CpuCopyStream::copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) {
  give(Copy{destination, source, bytes, now_s(), "copy to host"});
}

void CpuCopyStream::copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  give(Copy{.destination = destination,
            .source = source,
            .bytes = bytes,
            .enqueued_s = now_s(),
            .what = "copy on device",
            .over_link = false});
}

void CpuCopyStream::fetch(std::byte* frame, const std::byte* page, std::size_t bytes, const PageName& name,
                          std::optional<std::uint64_t> digest) {
  give(Copy{frame, page, bytes, now_s(), "fetch", name, digest});
}

void CpuCopyStream::give(const Entry& entry) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(entry);
  ++unfinished_;
  if (queue_.size() == 1) given_.notify_one();
}

void CpuCopyStream::synchronize() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return unfinished_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

LinkStatistics CpuCopyStream::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void CpuCopyStream::run(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "copy");
  prctl(PR_SET_TIMERSLACK, 1);  // ns; deadlines are often shorter than the usual slack of 50 us
  std::vector<Entry> entries;
  while (take(entries, stop)) execute_all(entries, stop);
}

// Counts the entries taken before as finished and takes the next ones; false when the stream goes.
bool CpuCopyStream::take(std::vector<Entry>& entries, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  unfinished_ -= entries.size();
  entries.clear();
  if (unfinished_ == 0) finished_.notify_all();
  given_.wait(lock, stop, [this] { return !queue_.empty(); });
  entries.swap(queue_);
  return !stop.stop_requested();
}

void CpuCopyStream::execute_all(const std::vector<Entry>& entries, const std::stop_token& stop) {
  for (const Entry& entry : entries) {
    if (stop.stop_requested()) return;
    try {
      std::visit([&](const auto& what) { execute(what, stop); }, entry);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
  }
}

void CpuCopyStream::execute(const Wait& wait, const std::stop_token& stop) {
  if (error_ || wait.mark.event == nullptr) return;
  while (!wait.mark.event->wait_for(wait.mark.record, kStopInterval_us)) {
    if (stop.stop_requested()) return;
  }
}

void CpuCopyStream::execute(const Copy& copy, const std::stop_token& stop) {
  if (error_) return;
  if (!copy.over_link) return streaming_copy(copy.destination, copy.source, copy.bytes);
  const double begin_s = now_s();
  if (trace_ != nullptr) {
    trace_->begin(TraceTrack::kCopy, copy.what, begin_s, copy.name.model, {{"page", copy.name.page}});
  }
  int attempts = 0;
  bool right = false;
  while (!right && attempts < kAttempts) {
    perform(copy, attempts++, stop);
    if (stop.stop_requested()) return;
    right = is_right(copy);
  }
  const double end_s = now_s();
  if (trace_ != nullptr) {
    trace_->add(TraceTrack::kCopy, copy.what, begin_s, end_s, copy.name.model,
                {{"page", copy.name.page}, {"bytes", copy.bytes}, {"attempts", static_cast<std::uint64_t>(attempts)}});
    trace_->end(TraceTrack::kCopy);
  }
  ++copies_;
  const std::lock_guard lock(mutex_);
  statistics_.bytes += static_cast<std::size_t>(attempts) * copy.bytes;
  statistics_.busy_s += end_s - begin_s;
  statistics_.pages_verified += copy.digest && right;
  statistics_.pages_refetched += attempts > 1;
  if (!right) throw wrong_digest(copy.name);
}

bool CpuCopyStream::is_right(const Copy& copy) const {
  if (!copy.digest) return true;
  const TraceSpan span(trace_, TraceTrack::kCopy, "verify", copy.name.model, {"page", copy.name.page});
  return digest64(std::span(copy.destination, copy.bytes)) == *copy.digest;
}

void CpuCopyStream::perform(const Copy& copy, int attempt, const std::stop_token& stop) {
  if (link_.throttled()) {
    copy_at_link_rate(copy, stop);
  } else {
    streaming_copy(copy.destination, copy.source, copy.bytes);
  }
  if (copied_) copied_(copies_, attempt, std::span(copy.destination, copy.bytes));
}

void CpuCopyStream::copy_at_link_rate(const Copy& copy, const std::stop_token& stop) {
  for (std::size_t at = 0; at < copy.bytes && !stop.stop_requested(); at += kLinkChunk) {
    const std::size_t bytes = std::min(kLinkChunk, copy.bytes - at);
    const double deadline_s = link_.deadline_of(bytes, copy.enqueued_s, now_s());
    streaming_copy(copy.destination + at, copy.source + at, bytes);
    sleep_until(deadline_s);
  }
}

void CpuCopyStream::execute(const Record& record, const std::stop_token&) {
  error_ ? record.event->fail(error_) : record.event->complete(record.record);
}

}  // namespace computron
