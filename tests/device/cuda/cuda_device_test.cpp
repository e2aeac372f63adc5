// The CUDA device where there is one; elsewhere, that it says so.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "src/device/cuda/cuda_stream.h"
#include "tests/device/device_support.h"

namespace computron {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(CudaDeviceWithoutGpu, SaysThatThereIsNone) {
  if (cuda_device_present()) GTEST_SKIP() << "this machine has a GPU";
  try {
    make_cuda_device(0);
    FAIL() << "made a device that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDevice);
  }
}

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_device_present()) GTEST_SKIP() << "this machine has no GPU";
    device_ = make_cuda_device(0);
    compute_ = device_->make_compute_stream(progress_);
    copy_ = device_->make_copy_stream();
  }

  std::unique_ptr<HostBuffer> host_pages(std::size_t bytes, std::uint64_t seed) {
    auto buffer = device_->allocate_host(bytes, "test pages");
    const auto content = pattern(bytes, seed);
    std::copy(content.begin(), content.end(), buffer->data());
    buffer->make_read_only();
    return buffer;
  }
  static std::vector<std::byte> read_back(const std::byte* data, std::size_t bytes) {
    std::vector<std::byte> content(bytes);
    EXPECT_EQ(cudaMemcpy(content.data(), data, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return content;
  }

  Progress progress_{kTestIdle};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<CopyStream> copy_;
};

TEST_F(CudaDeviceTest, SaysWhatItIs) {
  EXPECT_THAT(device_->name(), testing::StartsWith("cuda 0: "));
  EXPECT_EQ(device_->default_page_bytes(), 64 * kMiB);
}

TEST_F(CudaDeviceTest, CopiesReadOnlyPagesOfOddSizes) {
  const auto frames = device_->allocate(9 * kMiB, "test frames");
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(frames->data()) % 4096, 0u);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4095}, 8 * kMiB + 17}) {
    const auto pages = host_pages(bytes, bytes);
    copy_->copy_to_device(frames->data() + 13, pages->data(), bytes);
    copy_->synchronize();
    ASSERT_EQ(read_back(frames->data() + 13, bytes), pattern(bytes, bytes));
  }
}

// A frame goes to host memory and comes back into another, behind one another on one stream.
TEST_F(CudaDeviceTest, FramesGoToTheHostAndBack) {
  const auto frames = device_->allocate(2 * kMiB, "test frames");
  const auto page = host_pages(kMiB, 1);
  const auto spilled = device_->allocate_host(kMiB, "test slot");
  copy_->copy_to_device(frames->data(), page->data(), kMiB);
  copy_->copy_to_host(spilled->data(), frames->data(), kMiB);
  copy_->copy_to_device(frames->data() + kMiB, spilled->data(), kMiB);
  copy_->synchronize();
  EXPECT_EQ(read_back(frames->data() + kMiB, kMiB), pattern(kMiB, 1));
  EXPECT_EQ(copy_->statistics().bytes, 3 * kMiB);
}

// Pages go through one frame and are copied on by the compute stream.
TEST_F(CudaDeviceTest, CopyAndComputeStreamsOrderEachOther) {
  constexpr std::size_t kPages = 20;
  const auto frame = device_->allocate(kMiB, "test frame");
  const auto kept = device_->allocate(kPages * kMiB, "test frames");
  const auto fetched = device_->make_event();
  const auto released = device_->make_event();
  std::vector<std::unique_ptr<HostBuffer>> pages;
  for (std::size_t page = 0; page < kPages; ++page) pages.push_back(host_pages(kMiB, page));
  for (std::size_t page = 0; page < kPages; ++page) {
    copy_->wait(*released);
    copy_->copy_to_device(frame->data(), pages[page]->data(), kMiB);
    copy_->record(*fetched);
    compute_->wait(*fetched);
    ASSERT_EQ(
        cudaMemcpyAsync(kept->data() + page * kMiB, frame->data(), kMiB, cudaMemcpyDeviceToDevice, cuda(*compute_)),
        cudaSuccess);
    compute_->record(*released);
  }
  compute_->synchronize();
  EXPECT_TRUE(released->query());
  for (std::size_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(read_back(kept->data() + page * kMiB, kMiB), pattern(kMiB, page)) << "page " << page;
  }
}

TEST_F(CudaDeviceTest, NeverRecordedIsComplete) {
  const auto event = device_->make_event();
  EXPECT_TRUE(event->query());
  compute_->wait(*event);
  compute_->synchronize();
}

TEST_F(CudaDeviceTest, CountsBytesAndBusyTime) {
  const auto frame = device_->allocate(kMiB, "test frame");
  const auto page = host_pages(kMiB, 1);
  for (int i = 0; i < 50; ++i) copy_->copy_to_device(frame->data(), page->data(), kMiB);
  copy_->synchronize();
  const auto statistics = copy_->statistics();
  EXPECT_EQ(statistics.bytes, 50 * kMiB);
  EXPECT_GT(statistics.busy_s, 0);
}

TEST_F(CudaDeviceTest, SaysWhatDoesNotFitAndGoesOn) {
  EXPECT_THROW(device_->allocate(std::size_t{1} << 46, "the page pool"), OutOfDeviceMemory);
  EXPECT_NO_THROW(device_->allocate(kMiB, "something smaller"));
}

TEST_F(CudaDeviceTest, OtherDevicesEventsAreRefused) {
  const auto foreign = make_cpu_device({})->make_event();
  EXPECT_THROW(compute_->wait(*foreign), Error);
  EXPECT_THROW(copy_->record(*foreign), Error);
  EXPECT_THROW(cuda(*copy_), Error);
}

}  // namespace
}  // namespace computron
