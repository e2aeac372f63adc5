// What only the CUDA device has, and that it says so where there is no GPU; the rest is in ../device_contract_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "src/device/cuda/cuda_memory.h"
#include "src/device/cuda/cuda_stream.h"
#include "tests/device/device_support.h"

namespace computron {
namespace {

TEST(CudaDeviceWithoutGpu, SaysThatThereIsNone) {
  if (cuda_device_present()) GTEST_SKIP() << "this machine has a GPU";
  try {
    make_cuda_device(0);
    FAIL() << "made a device that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDevice);
    EXPECT_THAT(error.what(), testing::HasSubstr("no usable GPU"));
  }
}

// Slabs end at multiples of their size, wherever a buffer begins.
TEST(PinnedSlabs, ACopyStaysInItsSlab) {
  const auto at = [](std::size_t address) { return reinterpret_cast<const std::byte*>(address); };
  EXPECT_EQ(bytes_left_in_slab(at(kSlabBytes)), kSlabBytes);
  EXPECT_EQ(bytes_left_in_slab(at(3 * kSlabBytes - 1)), 1u);
  EXPECT_EQ(bytes_left_in_slab(at(5 * kSlabBytes + 4096)), kSlabBytes - 4096);
}

TEST(CudaDevice, OtherDevicesEventsAreRefused) {
  if (!cuda_device_present()) GTEST_SKIP() << "this machine has no GPU";
  Progress progress(kTestIdle);
  const auto device = make_cuda_device(0);
  const auto compute = device->make_compute_stream(progress);
  const auto copy = device->make_copy_stream();
  const auto foreign = make_cpu_device({})->make_event();
  EXPECT_THROW(compute->wait(*foreign), Error);
  EXPECT_THROW(copy->record(*foreign), Error);
  EXPECT_THROW(cuda(*copy), Error);
}

// Work that copies numbers up and down again, through Stream::run_capturable().
class CapturableWork : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 4096;

  void SetUp() override {
    if (!cuda_device_present()) GTEST_SKIP() << "this machine has no GPU";
    device_ = make_cuda_device(0);
    in_ = device_->allocate_host(kBytes, "what goes up");
    out_ = device_->allocate_host(kBytes, "what comes down");
    memory_ = device_->allocate(2 * kBytes, "memory of the work");
    stream_ = device_->make_compute_stream(progress_);
  }

  // Through the first or the second half of the memory, or in between.
  void pass(std::size_t at) {
    stream_->copy_to_device(memory_->data() + at, in_->data(), kBytes);
    stream_->copy_to_host(out_->data(), memory_->data() + at, kBytes);
  }
  // Checks that `work` brings a new value up and down.
  void expect_copies(const std::string& key, const std::function<void()>& work, const Agreement& agree = {}) {
    value_ = static_cast<std::byte>(static_cast<int>(value_) % 255 + 1);
    std::fill_n(in_->data(), kBytes, value_);
    std::fill_n(out_->data(), kBytes, std::byte{0});
    stream_->run_capturable(key, work, agree);
    stream_->synchronize();
    EXPECT_EQ(std::count(out_->data(), out_->data() + kBytes, value_), std::ptrdiff_t{kBytes});
  }

  Progress progress_{kTestIdle};
  std::unique_ptr<Device> device_;
  std::unique_ptr<HostBuffer> in_, out_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::unique_ptr<Stream> stream_;
  std::byte value_{0};
};

TEST_F(CapturableWork, IsAGraphFromTheSecondTimeOn) {
  int calls = 0;
  for (std::uint64_t i = 0; i < 4; ++i) {
    expect_copies("a", [&] {
      ++calls;
      pass(0);
    });
    EXPECT_EQ(stream_->graph_launches(), i);
  }
  EXPECT_EQ(calls, 2) << "a graph is launched without calling the work";
}

TEST_F(CapturableWork, AnotherKeyMakesAnotherGraph) {
  for (int i = 0; i < 3; ++i) expect_copies("a", [this] { pass(0); });
  for (int i = 0; i < 3; ++i) {
    expect_copies("b", [this] { pass(16); });
    EXPECT_EQ(stream_->graph_launches(), 2u + static_cast<unsigned>(i)) << "the first time is launched as it is";
  }
  expect_copies("a", [this] { pass(0); });
  EXPECT_EQ(stream_->graph_launches(), 5u);
}

TEST_F(CapturableWork, MoreThanTheCacheHoldsIsCapturedAgain) {
  for (int round = 0; round < 2; ++round) {
    for (std::size_t at = 0; at < 100; ++at) {
      for (int i = 0; i < 3; ++i) expect_copies(std::to_string(at), [this, at] { pass(16 * at); });
    }
  }
  EXPECT_EQ(stream_->graph_launches(), 400u);
}

TEST_F(CapturableWork, IsLaunchedAsItIsWhereOneRankHasNoRoomForAGraph) {
  int asked = 0;
  for (int i = 0; i < 4; ++i) {
    expect_copies(
        "a", [this] { pass(0); },
        [&](bool mine) {
          EXPECT_TRUE(mine);
          ++asked;
          return false;
        });
  }
  EXPECT_EQ(asked, 1) << "nobody tries again";
  EXPECT_EQ(stream_->graph_launches(), 0u);
}

// What waits, records or borrows would do so once, and the graph without it ever after.
TEST_F(CapturableWork, ThatIsNoneIsRefused) {
  const auto event = device_->make_event();
  const std::vector<std::pair<std::string, std::function<void()>>> refused = {
      {"waits", [&] { stream_->synchronize(); }},
      {"records", [&] { stream_->record(*event); }},
      {"borrows", [&] { cuda_compute(*stream_).after([] {}); }}};
  for (const auto& [key, act] : refused) {
    const auto work = [this, &act] {
      pass(0);
      act();
    };
    expect_copies(key, work);
    EXPECT_THROW(stream_->run_capturable(key, work, {}), Error) << key;
    stream_->synchronize();
    for (int i = 0; i < 2; ++i) expect_copies("fine after " + key, [this] { pass(0); });
  }
  EXPECT_EQ(stream_->graph_launches(), 3u);
}

TEST_F(CapturableWork, IsCapturedAgainWhenGraphsHaveBeenDropped) {
  for (int i = 0; i < 3; ++i) expect_copies("a", [this] { pass(0); });
  stream_->drop_graphs();
  for (int i = 0; i < 3; ++i) expect_copies("a", [this] { pass(0); });
  EXPECT_EQ(stream_->graph_launches(), 4u);
}

}  // namespace
}  // namespace computron
