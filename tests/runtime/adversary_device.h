// A device whose streams run asynchronously, interleaved by a seeded adversary. For tests of ordering rules only.
//
// Work is queued and nothing runs until the adversary picks the head of one of the queues at random. A copy has two
// halves, between which the destination holds neither the old bytes nor the new ones; a read, and a copy to the host,
// looks at the frame at its start and at its end. So any missing order between copies and reads shows for some seed.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "computron/device/device.h"

namespace computron::testing {

class AdversaryEvent : public Event {
 public:
  bool query() const override { return completed == recorded; }
  std::uint64_t recorded = 0;   // records enqueued
  std::uint64_t completed = 0;  // records reached
};

// One operation of a queue: runs when ready() says so.
struct Operation {
  std::function<bool()> ready;
  std::function<void()> run;
};

class Adversary {
 public:
  explicit Adversary(std::uint64_t seed) : random_(seed) {}

  std::deque<Operation>& queue(int i) { return queues_[i]; }

  // Runs up to `steps` operations, each the head of a random queue. False: there is work, but none can run.
  bool run(int steps) {
    for (int i = 0; i < steps; ++i) {
      std::vector<int> runnable;
      for (int q = 0; q < 2; ++q) {
        if (!queues_[q].empty() && queues_[q].front().ready()) runnable.push_back(q);
      }
      if (runnable.empty()) return queues_[0].empty() && queues_[1].empty();
      const int q = runnable[random_() % runnable.size()];
      const Operation operation = std::move(queues_[q].front());
      queues_[q].pop_front();
      operation.run();
    }
    return true;
  }
  bool run_all() { return run(1 << 30); }
  void run_some() { run(static_cast<int>(random_() % 6)); }

 private:
  std::mt19937_64 random_;
  std::deque<Operation> queues_[2];  // 0: compute, 1: copy
};

class AdversaryStream : public CopyStream {
 public:
  AdversaryStream(Adversary& adversary, int queue) : adversary_(adversary), queue_(queue) {}

  void record(Event& event) override {
    auto& e = static_cast<AdversaryEvent&>(event);
    const std::uint64_t record = ++e.recorded;
    enqueue([&e, record] { e.completed = record; });
  }
  void wait(const Event& event) override {
    const auto& e = static_cast<const AdversaryEvent&>(event);
    const std::uint64_t record = e.recorded;
    adversary_.queue(queue_).push_back({[&e, record] { return e.completed >= record; }, [] {}});
  }
  void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    enqueue([=] { std::memset(destination, 0xee, bytes); });
    enqueue([=] { std::memcpy(destination, source, bytes); });
  }
  void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    const auto seen = std::make_shared<std::vector<std::byte>>();
    enqueue([=] {
      seen->assign(source, source + bytes);
      std::memset(destination, 0xee, bytes);
    });
    enqueue([=] {
      if (std::memcmp(seen->data(), source, bytes) == 0) std::memcpy(destination, source, bytes);
    });
  }
  void copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) override {
    copy_to_device(destination, source, bytes);
  }
  void synchronize() override {
    if (!adversary_.run_all()) throw Error(ExitCode::kInternal, "deadlock: every queue waits");
  }
  CopyStatistics statistics() const override { return {}; }

  void enqueue(std::function<void()> run) {
    adversary_.queue(queue_).push_back({[] { return true; }, std::move(run)});
  }

 private:
  Adversary& adversary_;
  int queue_;
};

// Memory of both kinds is plain; only events and allocation are used of this device.
class AdversaryDevice : public Device {
 public:
  std::string name() const override { return "adversary"; }
  std::size_t default_page_bytes() const override { return 64; }
  std::unique_ptr<DeviceBuffer> allocate(std::size_t bytes, std::string_view) override {
    return std::make_unique<Buffer<DeviceBuffer>>(bytes);
  }
  std::unique_ptr<HostBuffer> allocate_host(std::size_t bytes, std::string_view) override {
    return std::make_unique<Pages>(bytes);
  }
  std::unique_ptr<Stream> make_compute_stream(Progress&) override { return nullptr; }
  std::unique_ptr<CopyStream> make_copy_stream(const LargestPages&) override { return nullptr; }
  std::unique_ptr<Event> make_event() override { return std::make_unique<AdversaryEvent>(); }

 private:
  template <class Base>
  struct Buffer : Base {
    explicit Buffer(std::size_t size) : memory(size) {}
    std::byte* data() const override { return const_cast<std::byte*>(memory.data()); }
    std::size_t bytes() const override { return memory.size(); }
    std::vector<std::byte> memory;
  };
  struct Pages : Buffer<HostBuffer> {
    using Buffer::Buffer;
    void make_read_only() override {}
  };
};

}  // namespace computron::testing
