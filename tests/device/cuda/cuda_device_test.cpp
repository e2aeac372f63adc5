// What only the CUDA device has, and that it says so where there is no GPU; the rest is in ../device_contract_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace computron
