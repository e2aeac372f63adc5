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
#include "kernels/cpu/coded_page.h"
#include "src/device/cpu/coded_pieces.h"
#include "src/device/cpu/streaming_copy.h"
#include "src/device/wrong_page.h"

namespace computron {
namespace {

constexpr std::size_t kLinkPiece = std::size_t{1} << 20;  // bytes that cross the emulated link before the next sleep
constexpr int kStopInterval_us = 20000;  // while it sleeps on an event the copy thread checks this often for a stop

// Sleeps until now_s() is `deadline_s`; returns at once if that is past, or 0.
void sleep_until(double deadline_s) {
  if (deadline_s == 0) return;
  const auto ns = static_cast<std::int64_t>(std::ceil(deadline_s * 1e9));
  const timespec until{ns / 1000000000, ns % 1000000000};
  int status = EINTR;
  while (status == EINTR) status = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  ensure(status == 0, "clock_nanosleep failed");
}

}  // namespace

CpuCopyStream::CpuCopyStream(double link_gb_per_s, CopyHook copied, Trace* trace)
    : host_link_(link_gb_per_s * 1e9),
      copied_(std::move(copied)),
      trace_(trace),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

void CpuCopyStream::record(Event& event) {
  auto& cpu_event = cpu(event);
  enqueue(Record{&cpu_event, cpu_event.begin_record(*this)});
}

void CpuCopyStream::wait(const Event& event) { enqueue(Wait{mark_of(&event)}); }

void CpuCopyStream::copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  enqueue(Copy{destination, raw_page(source, bytes), now_s()});
}

// Host and device memory are both this process's, and one emulated link serves both directions.
void CpuCopyStream::copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) {
  enqueue(Copy{destination, raw_page(source, bytes), now_s(), "copy to host"});
}

void CpuCopyStream::copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  enqueue(Copy{.destination = destination,
               .source = raw_page(source, bytes),
               .enqueued_s = now_s(),
               .what = "copy on device",
               .over_link = false});
}

void CpuCopyStream::fetch(std::byte* frame, const HostPage& page, const PageName& name,
                          std::optional<std::uint64_t> digest) {
  enqueue(Copy{frame, page, now_s(), "fetch", name, digest});
}

void CpuCopyStream::enqueue(const Entry& entry) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(entry);
  ++unfinished_;
  if (queue_.size() == 1) enqueued_.notify_one();
}

void CpuCopyStream::synchronize() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return unfinished_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

CopyStatistics CpuCopyStream::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void CpuCopyStream::run(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "copy");
  prctl(PR_SET_TIMERSLACK, 1);  // ns; deadlines are often shorter than the usual slack of 50 us
  std::vector<Entry> entries;
  while (take(entries, stop)) execute_all(entries, stop);
}

// Counts `entries` as finished, then waits for the next ones and takes them all; false when the stream is destroyed.
bool CpuCopyStream::take(std::vector<Entry>& entries, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  unfinished_ -= entries.size();
  entries.clear();
  if (unfinished_ == 0) finished_.notify_all();
  enqueued_.wait(lock, stop, [this] { return !queue_.empty(); });
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
  if (!copy.over_link) return streaming_copy(copy.destination, copy.source.data, copy.source.bytes);
  const double begin_s = now_s();
  if (trace_ != nullptr) {
    trace_->begin(TraceTrack::kCopy, copy.what, begin_s, copy.name.owner, {{"page", copy.name.page}});
  }
  int attempts = 0;
  Arrival arrived;
  bool is_same = false;
  crossed_ = 0;
  while (!is_right(arrived, copy) && attempts < kPageCopies) {
    const Arrival before = arrived;
    arrived = perform(copy, attempts++, stop);
    if (stop.stop_requested()) return;
    is_same = arrived == before;
  }
  const bool right = is_right(arrived, copy);
  const double end_s = now_s();
  if (trace_ != nullptr) {
    trace_->add(TraceTrack::kCopy, copy.what, begin_s, end_s, copy.name.owner,
                {{"page", copy.name.page},
                 {"bytes", copy.source.bytes},
                 {"link_bytes", copy.source.link_bytes},
                 {"attempts", static_cast<std::uint64_t>(attempts)}});
    trace_->end(TraceTrack::kCopy);
  }
  ++copies_;
  count(copy, attempts, right, begin_s, end_s);
  if (!right) throw wrong_page(copy.name, arrived.is_decoded, is_same);
}

void CpuCopyStream::count(const Copy& copy, int attempts, bool right, double begin_s, double end_s) {
  const std::lock_guard lock(mutex_);
  statistics_.bytes += crossed_;
  statistics_.frame_bytes += copy.source.bytes;
  statistics_.busy_s += end_s - begin_s;
  statistics_.pages_verified += copy.digest && right;
  statistics_.pages_refetched += attempts > 1;
}

bool CpuCopyStream::is_right(const Arrival& arrived, const Copy& copy) {
  return arrived.is_there && arrived.is_decoded && arrived.digest == copy.digest;
}

CpuCopyStream::Arrival CpuCopyStream::perform(const Copy& copy, int attempt, const std::stop_token& stop) {
  const std::span<std::byte> written(copy.destination, copy.source.bytes);
  Arrival arrived{.is_there = true};
  if (copy.source.coded) {
    arrived.is_decoded = decode(copy, stop);
  } else {
    copy_plain(copy, stop);
  }
  if (copied_) copied_(copies_, attempt, written);
  if (!copy.digest || !arrived.is_decoded || stop.stop_requested()) return arrived;
  const TraceSpan span(trace_, TraceTrack::kCopy, "verify", copy.name.owner, {"page", copy.name.page});
  arrived.digest = page_digest(written);
  return arrived;
}

void CpuCopyStream::copy_plain(const Copy& copy, const std::stop_token& stop) {
  const std::size_t all = copy.source.bytes;
  const std::size_t piece = host_link_.throttled() ? kLinkPiece : std::max<std::size_t>(all, 1);
  for (std::size_t at = 0; at < all && !stop.stop_requested(); at += piece) {
    const std::size_t bytes = std::min(piece, all - at);
    const double deadline_s = deadline_of(bytes, copy);
    streaming_copy(copy.destination + at, copy.source.data + at, bytes);
    sleep_until(deadline_s);
  }
}

// In pieces that end with a block. The link is charged for what the page takes, whatever a damaged one says of itself.
bool CpuCopyStream::decode(const Copy& copy, const std::stop_token& stop) {
  const std::span coded(copy.source.data, copy.source.link_bytes);
  CodedPieces pieces(coded, copy.source.bytes, host_link_.throttled() ? kLinkPiece : coded.size());
  bool good = true;
  while (good && !stop.stop_requested() && !pieces.at_end()) {
    const CodedPieces::Piece piece = pieces.next();
    const double deadline_s = deadline_of(piece.link_bytes, copy);
    std::byte* const to = copy.destination + piece.begin * kCodedBlockBytes;
    good = kernels::decode_blocks(coded, copy.source.bytes, piece.begin, piece.end, to);
    sleep_until(deadline_s);
  }
  return good;
}

// 0 where no link is emulated.
double CpuCopyStream::deadline_of(std::size_t bytes, const Copy& copy) {
  crossed_ += bytes;
  return host_link_.throttled() ? host_link_.deadline_of(bytes, copy.enqueued_s, now_s()) : 0;
}

void CpuCopyStream::execute(const Record& record, const std::stop_token&) {
  error_ ? record.event->fail(error_) : record.event->complete(record.record);
}

}  // namespace computron
