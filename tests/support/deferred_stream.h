// A compute stream for tests that runs nothing before synchronize(). Work that forgot to wait for an event meets
// whatever the other streams have done meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <utility>

#include "computron/device/cpu/cpu_stream.h"
#include "computron/device/device.h"
#include "src/device/cpu/event.h"

namespace computron::test {

// synchronize() runs everything in order on the calling thread, on the CPU device's own stream. An event recorded here
// stays pending until then: synchronize this stream before one that waits for the event. After an error the stream is
// done for: the rest is dropped, events recorded on it fail, and every synchronize() rethrows the error.
class DeferredComputeStream final : public CpuComputeStream {
 public:
  explicit DeferredComputeStream(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}

  void launch(Work work) override { entries_.push_back({std::move(work), {}}); }
  void record(Event& event) override {
    CpuEvent& cpu_event = cpu(event);
    entries_.push_back({nullptr, {&cpu_event, cpu_event.begin_record(*this)}});
  }
  void wait(const Event& event) override {
    launch([mark = mark_of(&event)](CpuContext& context) { context.wait(0, mark); });
  }
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    launch([=, this](CpuContext&) { stream_->copy_to_device(destination, source, bytes); });
  }
  void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    copy_to_device(destination, source, bytes);  // one memory
  }
  void copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    copy_to_device(destination, source, bytes);
  }
  void synchronize() override {
    while (!entries_.empty()) {
      Entry entry = std::move(entries_.front());
      entries_.pop_front();
      run(entry);
    }
    if (error_) std::rethrow_exception(error_);
  }
  double exposed_s() const override { return stream_->exposed_s(); }

 private:
  struct Record {
    CpuEvent* event = nullptr;  // null: the entry is work
    std::uint64_t record = 0;
  };
  struct Entry {
    Work work;
    Record record;
  };

  void run(Entry& entry) {
    const auto [event, record] = entry.record;
    if (event != nullptr) {
      error_ ? event->fail(error_) : event->complete(record);
    } else if (!error_) {
      try {
        cpu(*stream_).launch(std::move(entry.work));  // runs at the call
      } catch (...) {
        error_ = std::current_exception();
      }
    }
  }

  std::unique_ptr<Stream> stream_;
  std::deque<Entry> entries_;
  std::exception_ptr error_;
};

// For CpuDeviceOptions::wrap_compute_stream.
inline std::unique_ptr<Stream> deferred(std::unique_ptr<Stream> stream) {
  return std::make_unique<DeferredComputeStream>(std::move(stream));
}

}  // namespace computron::test
