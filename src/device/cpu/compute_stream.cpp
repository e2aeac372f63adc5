#include "src/device/cpu/compute_stream.h"

#include <algorithm>
#include <cstring>

#include "computron/base/error.h"
#include "computron/base/time.h"
#include "computron/base/trace.h"

namespace computron {
namespace {

constexpr int kPollInterval_us = 200;
constexpr int kLongSleep_us = 100000;  // of threads that have nothing to poll

}  // namespace

InlineComputeStream::InlineComputeStream(ComputePool& pool, Progress& progress, Trace* trace)
    : pool_(pool), progress_(progress), trace_(trace), last_wait_(static_cast<std::size_t>(pool.threads())) {}

void InlineComputeStream::record(Event& event) {
  auto& cpu_event = cpu(event);
  cpu_event.complete(cpu_event.begin_record(*this));
}

void InlineComputeStream::copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) {
  if (bytes > 0) std::memcpy(destination, source, bytes);
}

void InlineComputeStream::parallel_for(int items, const std::function<void(int, int)>& body) {
  std::fill(last_wait_.begin(), last_wait_.end(), Interval{});
  count_waits_after(pool_.parallel_for(items, body, progress_));
}

// Thread 0 also stalls where it has no item left and a worker waits for an event.
void InlineComputeStream::count_waits_after(double out_of_items_s) {
  Interval longest;
  for (Interval wait : last_wait_) {
    wait.begin_s = std::max(wait.begin_s, out_of_items_s);
    if (wait.seconds() > longest.seconds()) longest = wait;
  }
  if (longest.event != nullptr) count(longest);
}

void InlineComputeStream::count(const Interval& wait) {
  exposed_s_ += wait.seconds();
  if (trace_ == nullptr) return;
  const PageName& page = wait.event->page();
  trace_->add(TraceTrack::kCompute, kWaitForPage, wait.begin_s, wait.end_s, page.owner, {{"page", page.page}});
}

void InlineComputeStream::wait(int thread, const CpuEventMark& mark) {
  if (reached(mark)) return;
  const double begin_s = now_s();
  if (thread == 0) {
    const PageName& page = mark.event->page();
    if (trace_ != nullptr)
      trace_->begin(TraceTrack::kCompute, kWaitForPage, begin_s, page.owner, {{"page", page.page}});
    while (!mark.event->wait_for(mark.record, kPollInterval_us)) progress_.poll();
    count({begin_s, now_s(), mark.event});
    if (trace_ != nullptr) trace_->end(TraceTrack::kCompute);
  } else {
    while (!mark.event->wait_for(mark.record, kLongSleep_us)) {
    }
    last_wait_[static_cast<std::size_t>(thread)] = {begin_s, now_s(), mark.event};
  }
}

CpuComputeStream& cpu(Stream& stream) {
  auto* compute = dynamic_cast<CpuComputeStream*>(&stream);
  ensure(compute != nullptr, "a CPU operation was given a stream that is not a CPU compute stream");
  return *compute;
}

}  // namespace computron
