// The deferred compute stream: same results as an inline one where the code waits for what it needs, and wrong ones
// where it forgot to.
#include "tests/support/deferred_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/device/device_support.h"

namespace computron {
namespace {

class DeferredStreamTest : public testing::Test {
 protected:
  CpuBench bench_{{.threads = 2, .wrap_compute_stream = test::deferred}};
};

TEST_F(DeferredStreamTest, RunsNothingBeforeSynchronizeThenAllInOrder) {
  const auto event = bench_.device->make_event();
  const auto source = pattern(100);
  std::vector<std::byte> destination(100);
  std::vector<int> ran;
  bench_.launch([&](CpuContext&) {
    ran.push_back(1);
    EXPECT_NE(destination, source);
  });
  bench_.compute->copy_to_device(destination.data(), source.data(), source.size());
  bench_.launch([&](CpuContext&) {
    ran.push_back(2);
    EXPECT_EQ(destination, source);
    EXPECT_FALSE(event->query());
  });
  bench_.compute->record(*event);
  bench_.launch([&](CpuContext&) {
    ran.push_back(3);
    EXPECT_TRUE(event->query());
  });
  EXPECT_THAT(ran, testing::IsEmpty());
  EXPECT_FALSE(event->query());
  bench_.compute->synchronize();
  EXPECT_THAT(ran, testing::ElementsAre(1, 2, 3));
  EXPECT_TRUE(event->query());
}

TEST_F(DeferredStreamTest, ComputesInParallelAsTheInlineOne) {
  std::vector<std::atomic<int>> runs(100);
  bench_.launch([&](CpuContext& context) {
    context.parallel_for(100, [&](int, int item) { ++runs[static_cast<std::size_t>(item)]; });
  });
  bench_.compute->synchronize();
  for (const auto& count : runs) EXPECT_EQ(count, 1);
}

TEST_F(DeferredStreamTest, WaitMeansTheRecordAtItsCall) {
  const auto fetched = bench_.device->make_event();
  const auto released = bench_.device->make_event();
  bench_.copy->record(*fetched);
  bench_.compute->wait(*fetched);
  bench_.compute->record(*released);
  bench_.copy->wait(*released);
  bench_.copy->record(*fetched);  // after `released`: a wait for this one would never end
  bench_.compute->synchronize();
  bench_.copy->synchronize();
  EXPECT_TRUE(fetched->query());
}

// Two pages through one frame; each is summed by compute work. Returns the sums.
std::vector<int> sums_through_one_frame(const CpuDeviceOptions& options, bool wait_for_reader) {
  CpuBench bench(options);
  constexpr std::size_t kBytes = 4096;
  const std::vector<std::byte> pages[2] = {std::vector(kBytes, std::byte{1}), std::vector(kBytes, std::byte{2})};
  const auto frame = bench.device->allocate(kBytes, "test frame");
  const auto fetched = bench.device->make_event();
  const auto released = bench.device->make_event();
  std::vector<int> sums;
  for (const auto& page : pages) {
    if (wait_for_reader) bench.copy->wait(*released);
    bench.copy->copy_to_device(frame->data(), page.data(), kBytes);
    bench.copy->record(*fetched);
    bench.compute->wait(*fetched);
    bench.launch([&sums, data = frame->data()](CpuContext&) {
      int sum = 0;
      for (std::size_t i = 0; i < kBytes; ++i) sum += static_cast<int>(data[i]);
      sums.push_back(sum);
    });
    bench.compute->record(*released);
    if (!wait_for_reader) bench.copy->synchronize();  // "the copy is surely later than the reader"
  }
  bench.compute->synchronize();
  return sums;
}

TEST(ForgottenWait, GoesUnseenInlineAndIsWrongDeferred) {
  const CpuDeviceOptions inline_options{};
  const CpuDeviceOptions deferred{.wrap_compute_stream = test::deferred};
  EXPECT_THAT(sums_through_one_frame(inline_options, /*wait_for_reader=*/true), testing::ElementsAre(4096, 8192));
  EXPECT_THAT(sums_through_one_frame(deferred, /*wait_for_reader=*/true), testing::ElementsAre(4096, 8192));
  EXPECT_THAT(sums_through_one_frame(inline_options, /*wait_for_reader=*/false), testing::ElementsAre(4096, 8192));
  EXPECT_THAT(sums_through_one_frame(deferred, /*wait_for_reader=*/false), testing::ElementsAre(8192, 8192));
}

TEST_F(DeferredStreamTest, ErrorStopsTheRestAndReachesWaiters) {
  const auto before = bench_.device->make_event();
  const auto after = bench_.device->make_event();
  bool ran = false;
  bench_.compute->record(*before);
  bench_.launch([](CpuContext&) { throw std::runtime_error("planted"); });
  bench_.launch([&](CpuContext&) { ran = true; });
  bench_.compute->record(*after);
  bench_.copy->wait(*after);
  EXPECT_THROW(bench_.compute->synchronize(), std::runtime_error);
  EXPECT_THROW(bench_.copy->synchronize(), std::runtime_error);
  EXPECT_TRUE(before->query());
  EXPECT_THROW(after->query(), std::runtime_error);
  EXPECT_FALSE(ran);
}

TEST_F(DeferredStreamTest, AnEventPendingElsewhereIsRefused) {
  const auto event = bench_.device->make_event();
  bench_.compute->record(*event);
  EXPECT_THROW(bench_.copy->record(*event), Error);
  bench_.compute->synchronize();
  bench_.copy->record(*event);
  bench_.copy->synchronize();
  EXPECT_TRUE(event->query());
}

}  // namespace
}  // namespace computron
