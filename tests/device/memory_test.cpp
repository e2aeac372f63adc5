#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "src/device/mapped_pages.h"
#include "tests/device/device_support.h"

namespace computron {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kTooMuch = std::size_t{1} << 46;

bool aligned(const std::byte* data, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
}

// Whether every page of the buffer is in memory, so that no access to it faults.
bool resident(const DeviceBuffer& buffer) {
  std::vector<unsigned char> pages((buffer.bytes() + 4095) / 4096);
  EXPECT_EQ(mincore(buffer.data(), buffer.bytes(), pages.data()), 0);
  return std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
}

TEST(DeviceMemory, IsAlignedZeroAndThere) {
  const auto device = make_cpu_device({.threads = 2});
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, 9 * kMiB + 3}) {
    const auto buffer = device->allocate(bytes, "test pool");
    ASSERT_EQ(buffer->bytes(), bytes);
    ASSERT_NE(buffer->data(), nullptr);
    EXPECT_TRUE(aligned(buffer->data(), 4096));
    EXPECT_TRUE(resident(*buffer)) << bytes;
    EXPECT_TRUE(std::all_of(buffer->data(), buffer->data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(DeviceMemory, SaysWhatDoesNotFit) {
  const auto device = make_cpu_device({});
  try {
    device->allocate(kTooMuch, "the page pool");
    FAIL() << "allocated 64 TiB";
  } catch (const OutOfDeviceMemory& error) {
    EXPECT_EQ(error.code(), ExitCode::kSystem);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("the page pool"), testing::HasSubstr("64.00 TiB"),
                                             testing::HasSubstr("available")));
  }
}

TEST(HostMemory, SaysWhatDoesNotFit) {
  const auto device = make_cpu_device({});
  try {
    device->allocate_host(kTooMuch, "model a");
    FAIL() << "allocated 64 TiB";
  } catch (const OutOfDeviceMemory&) {
    FAIL() << "host memory is not device memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kSystem);
    EXPECT_THAT(error.what(), testing::HasSubstr("model a"));
  }
}

TEST(HostMemory, IsWritableThenReadOnly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto device = make_cpu_device({});
  const auto buffer = device->allocate_host(3 * kMiB + 1, "test pages");
  const auto content = pattern(buffer->bytes());
  ASSERT_TRUE(aligned(buffer->data(), 4096));
  std::copy(content.begin(), content.end(), buffer->data());
  buffer->make_read_only();
  EXPECT_TRUE(std::equal(content.begin(), content.end(), buffer->data()));
  EXPECT_DEATH(*static_cast<volatile std::byte*>(buffer->data() + buffer->bytes() - 1) = std::byte{0}, "");
}

TEST(HostMemory, IsCopiedFromWhileReadOnly) {
  CpuBench bench({});
  const auto buffer = bench.device->allocate_host(2 * kMiB, "test pages");
  const auto content = pattern(buffer->bytes());
  std::copy(content.begin(), content.end(), buffer->data());
  buffer->make_read_only();
  const auto frame = bench.device->allocate(buffer->bytes(), "test frame");
  bench.copy->copy_to_device(frame->data(), buffer->data(), buffer->bytes());
  bench.copy->synchronize();
  EXPECT_TRUE(std::equal(content.begin(), content.end(), frame->data()));
}

TEST(MappedPages, GoBackToTheSystem) {
  std::byte* data = nullptr;
  {
    auto pages = MappedPages::map(4 * kMiB);
    ASSERT_TRUE(pages);
    ASSERT_TRUE(pages->populate(3));
    EXPECT_TRUE(aligned(pages->data(), 2 * kMiB));
    data = pages->data();
    const MappedPages moved = std::move(*pages);
    EXPECT_EQ(moved.data(), data);
  }
  EXPECT_NE(msync(data, 4096, MS_ASYNC), 0);  // ENOMEM: not mapped
}

}  // namespace
}  // namespace computron
