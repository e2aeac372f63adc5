#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "src/device/cpu/event.h"
#include "tests/device/device_support.h"

namespace computron {
namespace {

TEST(InlineComputeStream, RunsWorkAtTheCallOnTheCaller) {
  CpuBench bench({.threads = 2});
  std::thread::id ran_on;
  bench.launch([&](CpuContext& context) {
    ran_on = std::this_thread::get_id();
    EXPECT_EQ(context.threads(), 2);
  });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(InlineComputeStream, RecordIsCompleteAtOnce) {
  CpuBench bench({});
  const auto event = bench.device->make_event();
  bench.compute->record(*event);
  EXPECT_TRUE(event->query());
}

TEST(InlineComputeStream, ErrorsLeaveTheCall) {
  CpuBench bench({.threads = 2});
  const auto fail = [](CpuContext& context) {
    context.parallel_for(8, [](int, int item) {
      if (item == 5) throw std::runtime_error("planted");
    });
  };
  EXPECT_THROW(bench.launch(fail), std::runtime_error);
  EXPECT_NO_THROW(bench.compute->synchronize());
}

TEST(InlineComputeStream, CopiesAtTheCall) {
  CpuBench bench({});
  const auto source = pattern(1000);
  std::vector<std::byte> destination(1000);
  bench.compute->copy_to_device(destination.data(), source.data(), source.size());
  EXPECT_EQ(destination, source);
}

// The event completes only when the wait has polled several times.
TEST(InlineComputeStream, WaitPollsAndCountsExposedTime) {
  CpuBench bench({});
  CpuEvent event;
  const auto record = event.begin_record(*bench.copy);
  int polls = 0;
  bench.progress.set_hook([&] {
    if (++polls == 5) event.complete(record);
  });
  EXPECT_EQ(cpu(*bench.compute).exposed_s(), 0);
  bench.compute->wait(event);
  EXPECT_TRUE(event.query());
  EXPECT_EQ(polls, 5);
  EXPECT_GE(cpu(*bench.compute).exposed_s(), 5 * 200e-6);
}

TEST(InlineComputeStream, WaitForSomethingReachedCostsNothing) {
  CpuBench bench({});
  const auto event = bench.device->make_event();
  bench.progress.set_hook([] { FAIL() << "polled without waiting"; });
  bench.compute->wait(*event);
  bench.compute->record(*event);
  bench.compute->wait(*event);
  EXPECT_EQ(cpu(*bench.compute).exposed_s(), 0);
}

// A worker stalls and thread 0 has nothing left to do: exposed. Thread 0's polls in the join complete the event;
// a worker that reaches its wait later than that has not waited, hence several tries.
TEST(InlineComputeStream, CountsAWorkersWaitOnceTheCallerIsOut) {
  CpuBench bench({.threads = 2});
  CpuEvent event;
  for (int tries = 0; tries < 100 && cpu(*bench.compute).exposed_s() == 0; ++tries) {
    const CpuEventMark mark{&event, event.begin_record(*bench.copy)};
    std::atomic<bool> worker_inside = false;
    int polls = 0;
    bench.progress.set_hook([&] {
      if (worker_inside && ++polls == 6) event.complete(mark.record);
    });
    bench.launch([&](CpuContext& context) {
      context.parallel_for(2, [&](int thread, int) {
        if (thread == 0) {
          while (!worker_inside) std::this_thread::yield();
        } else {
          worker_inside = true;
          context.wait(thread, mark);
        }
      });
    });
  }
  EXPECT_GT(cpu(*bench.compute).exposed_s(), 0);
}

TEST(InlineComputeStream, EveryThreadMayWait) {
  CpuBench bench({.threads = 4});
  CpuEvent event;
  for (int round = 0; round < 50; ++round) {
    const CpuEventMark mark{&event, event.begin_record(*bench.copy)};
    std::atomic<int> passed = 0;
    std::jthread completer([&] { event.complete(mark.record); });
    bench.launch([&](CpuContext& context) {
      context.parallel_for(8, [&](int thread, int) {
        context.wait(thread, mark);
        ++passed;
      });
    });
    ASSERT_EQ(passed, 8);
  }
}

TEST(ComputeStream, OnlyCpuComputeStreamsAreOnes) {
  CpuBench bench({});
  EXPECT_EQ(&cpu(*bench.compute), bench.compute.get());
  EXPECT_THROW(cpu(*bench.copy), Error);
}

TEST(CpuDevice, RefusesOptionsThatMakeNoSense) {
  const auto code_of = [](const CpuDeviceOptions& options) {
    try {
      make_cpu_device(options);
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::kOk;
  };
  EXPECT_EQ(code_of({.threads = 0}), ExitCode::kUsage);
  EXPECT_EQ(code_of({.link_gb_per_s = -1}), ExitCode::kUsage);
  EXPECT_EQ(code_of({.link_gb_per_s = 1e-300}), ExitCode::kUsage);
  EXPECT_EQ(code_of({.spin_us = -1}), ExitCode::kUsage);
  EXPECT_EQ(code_of({}), ExitCode::kOk);
}

TEST(CpuDevice, SaysWhatItIs) {
  EXPECT_EQ(make_cpu_device({.threads = 1})->name(), "cpu (1 thread)");
  EXPECT_EQ(make_cpu_device({.threads = 2})->name(), "cpu (2 threads)");
  EXPECT_EQ(make_cpu_device({})->default_page_bytes(), 8u << 20);
}

}  // namespace
}  // namespace computron
