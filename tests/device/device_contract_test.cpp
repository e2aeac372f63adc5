// What device.h promises of every device, on the CPU's and, from the same source, on a GPU (label gpu).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/device/device_support.h"
#include "tests/support/coded_bytes.h"
#include "tests/support/deferred_stream.h"
#include "tests/support/test_device.h"

namespace computron {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class DeviceContract : public testing::TestWithParam<bool> {  // deferred; nothing else than false on a GPU
 protected:
  void SetUp() override {
    if (GetParam() && !test::on_cpu()) GTEST_SKIP() << "only CPU streams are deferred";
  }

  std::unique_ptr<HostBuffer> host_pages(std::size_t bytes, std::uint64_t seed) {
    auto buffer = device_->allocate_host(bytes, "test pages");
    const auto content = pattern(bytes, seed);
    std::copy(content.begin(), content.end(), buffer->data());
    buffer->make_read_only();
    return buffer;
  }
  std::vector<std::byte> read_back(const std::byte* data, std::size_t bytes) {
    std::vector<std::byte> content(bytes);
    compute_->copy_to_host(content.data(), data, bytes);
    compute_->synchronize();
    return content;
  }

  Progress progress_{kTestIdle};
  std::unique_ptr<Device> device_ =
      test::make_test_device({.wrap_compute_stream = GetParam() ? test::deferred : StreamWrapper()});
  std::unique_ptr<Stream> compute_ = device_->make_compute_stream(progress_);
  std::unique_ptr<CopyStream> copy_ = device_->make_copy_stream({.coded = kMiB, .verified = kMiB});
};

TEST_P(DeviceContract, SaysWhatItIs) {
  EXPECT_THAT(device_->name(), testing::StartsWith(test::on_cpu() ? "cpu (" : "cuda 0: "));
  EXPECT_EQ(device_->default_page_bytes(), (test::on_cpu() ? 8 : 64) * kMiB);
  EXPECT_EQ(device_->hardware_id().empty(), test::on_cpu());
  EXPECT_EQ(device_->own_memory().has_value(), !test::on_cpu());
}

// What one process writes another one reads: here two buffers of one.
TEST_P(DeviceContract, CopiesPagesThatAreMappedTwice) {
  constexpr std::size_t kOffset = 4 * kMiB, kBytes = 3 * kMiB + 5;
  FileDescriptor memory = make_shared_memory(kOffset + kBytes);
  ASSERT_TRUE(memory);
  const auto written = device_->map_host(memory.get(), kOffset, kBytes, "test pages");
  const auto read = device_->map_host(memory.get(), kOffset, kBytes, "test pages");
  memory = {};
  ASSERT_TRUE(written->populate(0, kBytes));
  EXPECT_EQ(written->bytes(), kBytes);
  EXPECT_TRUE(std::all_of(read->data(), read->data() + kBytes, [](std::byte b) { return b == std::byte{0}; }));
  const auto content = pattern(kBytes, /*seed=*/3);
  std::copy(content.begin(), content.end(), written->data());
  written->make_read_only();
  read->make_read_only();
  const auto frames = device_->allocate(kBytes, "test frames");
  copy_->copy_to_device(frames->data(), read->data(), kBytes);
  copy_->synchronize();
  EXPECT_EQ(read_back(frames->data(), kBytes), content);
}

TEST_P(DeviceContract, SaysThatMemoryCannotBeMapped) {
  try {
    device_->map_host(/*memory=*/-1, 0, kMiB, "model a");
    FAIL() << "there is no such memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kSystem);
    EXPECT_THAT(error.what(), testing::HasSubstr("model a"));
  }
}

TEST_P(DeviceContract, CopiesReadOnlyPagesOfOddSizes) {
  const auto frames = device_->allocate(9 * kMiB, "test frames");
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(frames->data()) % 4096, 0u);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, 8 * kMiB + 17}) {
    const auto pages = host_pages(bytes, bytes);
    copy_->copy_to_device(frames->data() + 13, pages->data(), bytes);
    copy_->synchronize();
    ASSERT_EQ(read_back(frames->data() + 13, bytes), pattern(bytes, bytes));
  }
}

// A frame goes to host memory and comes back into another, and within the device into a third, on one stream.
TEST_P(DeviceContract, FramesGoToTheHostAndBack) {
  const auto frames = device_->allocate(3 * kMiB, "test frames");
  const auto page = host_pages(kMiB, 1);
  const auto offloaded = device_->allocate_host(kMiB, "test slot");
  copy_->copy_to_device(frames->data(), page->data(), kMiB);
  copy_->copy_to_host(offloaded->data(), frames->data(), kMiB);
  copy_->copy_to_device(frames->data() + kMiB, offloaded->data(), kMiB);
  copy_->copy_on_device(frames->data() + 2 * kMiB, frames->data() + kMiB, kMiB);
  copy_->synchronize();
  EXPECT_EQ(read_back(frames->data() + kMiB, kMiB), pattern(kMiB, 1));
  EXPECT_EQ(read_back(frames->data() + 2 * kMiB, kMiB), pattern(kMiB, 1));
  EXPECT_EQ(copy_->statistics().bytes, 3 * kMiB) << "what crosses the link, and nothing else";
  EXPECT_EQ(copy_->statistics().frame_bytes, 3 * kMiB);
}

// Pages go through one frame and are copied on by the compute stream.
TEST_P(DeviceContract, CopyAndComputeStreamsOrderEachOther) {
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
    compute_->copy_on_device(kept->data() + page * kMiB, frame->data(), kMiB);
    compute_->record(*released);
    if (GetParam()) compute_->synchronize();  // a deferred stream runs nowhere else
  }
  compute_->synchronize();
  EXPECT_TRUE(released->query());
  for (std::size_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(read_back(kept->data() + page * kMiB, kMiB), pattern(kMiB, page)) << "page " << page;
  }
}

TEST_P(DeviceContract, ComputeStreamsCopyBothWays) {
  const auto frames = device_->allocate(2 * kMiB, "test frames");
  const auto page = host_pages(kMiB, 7);
  const auto back = device_->allocate_host(kMiB, "test slot");
  compute_->copy_to_device(frames->data(), page->data(), kMiB);
  compute_->copy_on_device(frames->data() + kMiB, frames->data(), kMiB);
  compute_->copy_to_host(back->data(), frames->data() + kMiB, kMiB);
  compute_->synchronize();
  EXPECT_TRUE(std::equal(back->data(), back->data() + kMiB, page->data()));
}

TEST_P(DeviceContract, NeverRecordedIsComplete) {
  const auto event = device_->make_event();
  EXPECT_TRUE(event->query());
  compute_->wait(*event);
  copy_->wait(*event);
  compute_->synchronize();
  copy_->synchronize();
}

// The wait for a copy is counted, and no wait for what is there already. A copy may be over before it is waited for.
TEST_P(DeviceContract, StallsAreCounted) {
  const auto frame = device_->allocate(16 * kMiB, "test frame");
  const auto page = host_pages(16 * kMiB, 1);
  const auto fetched = device_->make_event();
  for (int tries = 0; tries < 100 && compute_->exposed_s() == 0; ++tries) {
    for (int i = 0; i < 4; ++i) copy_->copy_to_device(frame->data(), page->data(), 16 * kMiB);
    copy_->record(*fetched);
    compute_->wait(*fetched);
    compute_->synchronize();
  }
  const double waited_s = compute_->exposed_s();
  EXPECT_GT(waited_s, 0);
  for (int i = 0; i < 10; ++i) compute_->wait(*fetched);
  compute_->synchronize();
  EXPECT_EQ(compute_->exposed_s(), waited_s);
}

TEST_P(DeviceContract, CountsBytesAndBusyTime) {
  const auto frame = device_->allocate(kMiB, "test frame");
  const auto page = host_pages(kMiB, 1);
  for (int i = 0; i < 50; ++i) copy_->copy_to_device(frame->data(), page->data(), kMiB);
  copy_->synchronize();
  const auto statistics = copy_->statistics();
  EXPECT_EQ(statistics.bytes, 50 * kMiB);
  EXPECT_GT(statistics.busy_s, 0);
}

TEST_P(DeviceContract, VerifiesPagesOrSaysThatItCannot) {
  const auto frame = device_->allocate(kMiB, "test frame");
  const auto page = host_pages(kMiB, 1);
  const auto digest = page_digest(std::span(page->data(), kMiB));
  if (device_->verifies_pages()) {
    copy_->fetch(frame->data(), raw_page(page->data(), kMiB), {"model", 0}, digest);
    copy_->synchronize();
    EXPECT_EQ(copy_->statistics().pages_verified, 1u);
  } else {
    EXPECT_THROW(copy_->fetch(frame->data(), raw_page(page->data(), kMiB), {"model", 0}, digest), NotCompiled);
  }
}

TEST_P(DeviceContract, DecodesPagesOrSaysThatItCannot) {
  const auto frame = device_->allocate(kMiB, "test frame");
  const auto page = test::weights_and_others(kMiB, 1);
  const test::CodedBytes coded(page, BlockEncoding::kBf16);
  if (!device_->decodes_pages()) {
    EXPECT_THROW(copy_->fetch(frame->data(), coded.page(), {"model", 0}, std::nullopt), NotCompiled);
    return;
  }
  copy_->fetch(frame->data(), coded.page(), {"model", 0}, std::nullopt);
  const auto back = device_->allocate_host(kMiB, "test pages");
  copy_->copy_to_host(back->data(), frame->data(), kMiB);
  copy_->synchronize();
  EXPECT_TRUE(std::equal(page.begin(), page.end(), back->data()));
  EXPECT_EQ(copy_->statistics().bytes, coded.bytes().size() + kMiB);
  EXPECT_EQ(copy_->statistics().frame_bytes, 2 * kMiB);
}

// Many more pages than landing pages, coded and raw in turn, into few frames, each read as soon as its event lets it.
TEST_P(DeviceContract, CodedPagesKeepTheOrderOfTheStream) {
  if (!device_->decodes_pages()) GTEST_SKIP() << "this device takes no coded pages";
  constexpr std::size_t kPages = 24, kFrames = 3, kBytes = 5 * kCodedBlockBytes + 100, kApart = 6 * kCodedBlockBytes;
  const auto frames = device_->allocate(kFrames * kApart, "test frames");
  const auto frame_of = [&](std::size_t i) { return frames->data() + i % kFrames * kApart; };
  const auto results = device_->allocate_host(2 * kPages * kBytes, "what is read");
  std::vector<test::CodedBytes> coded;
  std::vector<std::vector<std::byte>> pages;
  std::vector<std::unique_ptr<Event>> landed, released;
  for (std::size_t i = 0; i < kPages; ++i) {
    pages.push_back(test::weights_and_others(kBytes, i));
    coded.emplace_back(pages[i], BlockEncoding::kBf16);
    landed.push_back(device_->make_event());
    released.push_back(device_->make_event());
  }
  for (std::size_t i = 0; i < kPages; ++i) {
    if (i >= kFrames) copy_->wait(*released[i - kFrames]);
    const bool raw = i % 5 == 4;
    copy_->fetch(frame_of(i), raw ? raw_page(pages[i].data(), kBytes) : coded[i].page(), {"model", 0}, std::nullopt);
    if (i % 4 == 0) copy_->copy_to_host(results->data() + i * kBytes, frame_of(i), kBytes);
    copy_->record(*landed[i]);
    compute_->wait(*landed[i]);
    compute_->copy_to_host(results->data() + (kPages + i) * kBytes, frame_of(i), kBytes);
    compute_->record(*released[i]);
  }
  compute_->synchronize();
  copy_->synchronize();
  for (std::size_t i = 0; i < kPages; ++i) {
    const auto is_page = [&](const std::byte* read) { return std::equal(pages[i].begin(), pages[i].end(), read); };
    EXPECT_TRUE(is_page(results->data() + (kPages + i) * kBytes)) << "on the compute stream, page " << i;
    EXPECT_TRUE(i % 4 != 0 || is_page(results->data() + i * kBytes)) << "on the copy stream, page " << i;
  }
}

// A page that nobody reads is written over by the next one, coded or not.
TEST_P(DeviceContract, ALaterPageWinsItsFrame) {
  if (!device_->decodes_pages()) GTEST_SKIP() << "this device takes no coded pages";
  constexpr std::size_t kBytes = 4 * kCodedBlockBytes;
  const auto frame = device_->allocate(kBytes, "test frame");
  const auto first = test::weights_and_others(kBytes, 1), second = test::weights_and_others(kBytes, 2);
  const test::CodedBytes coded(first, BlockEncoding::kBf16);
  for (int round = 0; round < 20; ++round) {
    copy_->fetch(frame->data(), coded.page(), {"model", 0}, std::nullopt);
    copy_->copy_to_device(frame->data(), second.data(), kBytes);
    copy_->synchronize();
    ASSERT_EQ(read_back(frame->data(), kBytes), second);
  }
}

TEST_P(DeviceContract, WhoeverWaitsIsToldWhichPageCannotBeDecoded) {
  if (!device_->decodes_pages()) GTEST_SKIP() << "this device takes no coded pages";
  constexpr std::size_t kBytes = 4 * kCodedBlockBytes;
  const auto frame = device_->allocate(2 * kBytes, "test frames");
  const auto page = test::weights_and_others(kBytes, 1);
  const test::CodedBytes good(page, BlockEncoding::kBf16), damaged(page, BlockEncoding::kBf16);
  const std::uint32_t nowhere = ~0u;
  std::memcpy(damaged.bytes().data(), &nowhere, sizeof nowhere);
  const auto landed = device_->make_event();
  copy_->fetch(frame->data(), damaged.page(), {"opt", 7}, std::nullopt);
  copy_->fetch(frame->data() + kBytes, good.page(), {"opt", 8}, std::nullopt);
  copy_->record(*landed);
  const auto error_of = [](const auto& waits) -> std::string {
    try {
      waits();
      return "nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDevice);
      return error.what();
    }
  };
  const auto named = testing::HasSubstr("page 7 of model opt");
  EXPECT_THAT(error_of([&] {
                compute_->wait(*landed);
                compute_->synchronize();
              }),
              named);
  EXPECT_THAT(error_of([&] { copy_->synchronize(); }), named);
  EXPECT_THAT(error_of([&] { landed->query(); }), named);
}

TEST_P(DeviceContract, SaysWhatDoesNotFitAndGoesOn) {
  EXPECT_THROW(device_->allocate(std::size_t{1} << 46, "the page pool"), OutOfDeviceMemory);
  EXPECT_NO_THROW(device_->allocate(kMiB, "something smaller"));
}

INSTANTIATE_TEST_SUITE_P(Streams, DeviceContract, testing::Values(false, true),
                         [](const auto& test) { return test.param ? "Deferred" : "Usual"; });

}  // namespace
}  // namespace computron
