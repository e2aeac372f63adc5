#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "computron/base/time.h"
#include "src/device/cpu/emulated_link.h"
#include "src/device/cpu/event.h"
#include "src/device/cpu/streaming_copy.h"
#include "tests/device/device_support.h"
#include "tests/support/flip_bit.h"

namespace computron {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::byte kUntouched{0xee};

// [first, last) of `destination` holds `source`, and everything else is untouched.
void expect_copied(const std::vector<std::byte>& destination, std::size_t first, const std::byte* source,
                   std::size_t bytes) {
  EXPECT_TRUE(std::equal(source, source + bytes, destination.begin() + static_cast<std::ptrdiff_t>(first)));
  for (std::size_t i = 0; i < destination.size(); ++i) {
    const bool inside = i >= first && i < first + bytes;
    ASSERT_TRUE(inside || destination[i] == kUntouched) << "byte " << i;
  }
}

TEST(StreamingCopy, EverySizeAndAlignment) {
  const auto source = pattern(1024);
  for (std::size_t to = 0; to < 64; to += 7) {
    for (std::size_t from = 0; from < 64; from += 9) {
      for (const std::size_t bytes : {0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 255, 511, 777}) {
        std::vector<std::byte> destination(1024, kUntouched);
        streaming_copy(destination.data() + to, source.data() + from, bytes);
        ASSERT_NO_FATAL_FAILURE(expect_copied(destination, to, source.data() + from, bytes));
      }
    }
  }
}

TEST(StreamingCopy, WholeGroupsAndWhatIsLeft) {
  const auto source = pattern(70000);
  for (const std::size_t bytes : {16383, 16384, 16385, 16384 + 128, 2 * 16384 + 129, 4 * 16384 - 1}) {
    for (const std::size_t to : {0, 1, 63, 64}) {
      std::vector<std::byte> destination(70000, kUntouched);
      streaming_copy(destination.data() + to, source.data() + 5, bytes);
      ASSERT_NO_FATAL_FAILURE(expect_copied(destination, to, source.data() + 5, bytes));
    }
  }
}

TEST(EmulatedLink, DeadlinesFollowFromDeadlines) {
  EmulatedLink link(1e6);
  EXPECT_DOUBLE_EQ(link.deadline_of(1000, 10.0, 10.0), 10.001);
  EXPECT_DOUBLE_EQ(link.deadline_of(1000, 10.0, 10.0), 10.002);    // queued behind the first
  EXPECT_DOUBLE_EQ(link.deadline_of(1000, 10.0, 10.004), 10.003);  // woken up late: made good
  EXPECT_DOUBLE_EQ(link.deadline_of(1000, 10.0, 11.0), 10.996);    // but by no more than the credit
  EXPECT_DOUBLE_EQ(link.deadline_of(1000, 12.0, 12.0), 12.001);    // an idle link saves nothing up
}

class CopyStreamTest : public testing::TestWithParam<double> {  // link_gb_per_s
 protected:
  CpuBench bench_{{.link_gb_per_s = GetParam()}};
};

TEST_P(CopyStreamTest, OddSizesAndAlignments) {
  const auto source = pattern(3 * kMiB);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4095}, kMiB - 1, kMiB + 17, 2 * kMiB + 5}) {
    std::vector<std::byte> destination(3 * kMiB, kUntouched);
    bench_.copy->copy_to_device(destination.data() + 13, source.data() + 29, bytes);
    bench_.copy->synchronize();
    ASSERT_NO_FATAL_FAILURE(expect_copied(destination, 13, source.data() + 29, bytes));
  }
}

TEST_P(CopyStreamTest, CopiesRunInOrder) {
  const auto last = pattern(100000, 40);
  std::vector<std::byte> destination(100000);
  std::vector<std::vector<std::byte>> sources;
  for (std::uint64_t i = 1; i <= 40; ++i) sources.push_back(pattern(100000, i));
  for (const auto& source : sources) bench_.copy->copy_to_device(destination.data(), source.data(), source.size());
  bench_.copy->synchronize();
  EXPECT_EQ(destination, last);
}

// What leaves a frame is what the copy before it brought, and the frame can be filled behind it.
TEST_P(CopyStreamTest, CopiesToTheHostKeepTheirPlaceInTheOrder) {
  const auto first = pattern(2 * kMiB + 5, 1), second = pattern(2 * kMiB + 5, 2);
  std::vector<std::byte> frame(first.size()), left(first.size());
  bench_.copy->copy_to_device(frame.data(), first.data(), first.size());
  bench_.copy->copy_to_host(left.data(), frame.data(), frame.size());
  bench_.copy->copy_to_device(frame.data(), second.data(), second.size());
  bench_.copy->synchronize();
  EXPECT_EQ(left, first);
  EXPECT_EQ(frame, second);
  EXPECT_EQ(bench_.copy->statistics().bytes, 3 * first.size());
}

TEST_P(CopyStreamTest, EventFiresAfterItsCopyAndNotBefore) {
  const auto event = bench_.device->make_event();
  std::vector<std::byte> destination(2 * kMiB);
  for (std::uint64_t round = 1; round <= 20; ++round) {
    const auto source = pattern(destination.size(), round);
    bench_.copy->copy_to_device(destination.data(), source.data(), source.size());
    bench_.copy->record(*event);
    bench_.compute->wait(*event);
    ASSERT_EQ(destination, source);
    ASSERT_TRUE(event->query());
  }
}

// The copy waits for the reader of the frame's old content.
TEST_P(CopyStreamTest, CopyWaitsForTheEventOfAnotherStream) {
  CpuEvent released;
  const auto source = pattern(kMiB);
  std::vector<std::byte> destination(kMiB, kUntouched);
  const auto record = released.begin_record(*bench_.compute);
  bench_.copy->wait(released);
  bench_.copy->copy_to_device(destination.data(), source.data(), source.size());
  linger(5);
  EXPECT_THAT(destination, testing::Each(kUntouched));
  released.complete(record);
  bench_.copy->synchronize();
  EXPECT_EQ(destination, source);
}

TEST_P(CopyStreamTest, WaitIsForTheLatestRecordAtItsCall) {
  CpuEvent event;
  const auto source = pattern(1000);
  std::vector<std::byte> destination(1000);
  const auto first = event.begin_record(*bench_.compute);
  bench_.copy->wait(event);
  const auto second = event.begin_record(*bench_.compute);
  bench_.copy->copy_to_device(destination.data(), source.data(), source.size());
  event.complete(first);
  bench_.copy->synchronize();  // would never return if the wait meant the second record
  EXPECT_EQ(destination, source);
  EXPECT_FALSE(event.query());
  event.complete(second);
}

TEST_P(CopyStreamTest, WaitForAnEventNeverRecordedIsNone) {
  const auto event = bench_.device->make_event();
  bench_.copy->wait(*event);
  bench_.copy->synchronize();
  EXPECT_TRUE(event->query());
}

TEST_P(CopyStreamTest, CountsBytesAndBusyTime) {
  const auto source = pattern(kMiB + 1);
  std::vector<std::byte> destination(kMiB + 1);
  EXPECT_EQ(bench_.copy->statistics().bytes, 0u);
  EXPECT_EQ(bench_.copy->statistics().busy_s, 0);
  const double begin_s = now_s();
  for (int i = 0; i < 5; ++i) bench_.copy->copy_to_device(destination.data(), source.data(), source.size());
  bench_.copy->synchronize();
  const double elapsed_s = now_s() - begin_s;
  const auto statistics = bench_.copy->statistics();
  EXPECT_EQ(statistics.bytes, 5 * source.size());
  EXPECT_GT(statistics.busy_s, 0);
  EXPECT_LE(statistics.busy_s, elapsed_s);
}

TEST_P(CopyStreamTest, BusyTimeExcludesWaiting) {
  CpuEvent event;
  const auto record = event.begin_record(*bench_.compute);
  const auto source = pattern(1000);
  std::vector<std::byte> destination(1000);
  const double begin_s = now_s();
  bench_.copy->wait(event);
  bench_.copy->copy_to_device(destination.data(), source.data(), source.size());
  linger(30);
  const double waited_s = now_s() - begin_s;
  event.complete(record);
  bench_.copy->synchronize();
  EXPECT_LE(bench_.copy->statistics().busy_s, now_s() - begin_s - waited_s);
}

TEST_P(CopyStreamTest, ErrorIsRethrownAndFailsLaterEvents) {
  CpuEvent failed;
  const auto done = bench_.device->make_event();
  const auto source = pattern(1000);
  std::vector<std::byte> destination(1000, kUntouched);
  failed.begin_record(*bench_.compute);
  failed.fail(std::make_exception_ptr(std::runtime_error("planted")));
  bench_.copy->wait(failed);
  bench_.copy->copy_to_device(destination.data(), source.data(), source.size());
  bench_.copy->record(*done);
  EXPECT_THROW(bench_.copy->synchronize(), std::runtime_error);
  EXPECT_THROW(bench_.copy->synchronize(), std::runtime_error);
  EXPECT_THROW(bench_.compute->wait(*done), std::runtime_error);
  EXPECT_THAT(destination, testing::Each(kUntouched));
}

TEST_P(CopyStreamTest, GoesWhileItWaits) {
  CpuEvent never;
  CpuEvent behind;
  never.begin_record(*bench_.compute);
  bench_.copy->wait(never);
  bench_.copy->record(behind);
  bench_.copy.reset();
  EXPECT_FALSE(behind.query());
}

// Pages whose copies are damaged at one random bit: at the first attempt, or at both.
class VerifiedFetch : public testing::TestWithParam<double> {  // link_gb_per_s
 protected:
  static constexpr int kPages = 300;
  static constexpr std::size_t kBytes = 40001;

  // Flips a bit of every page's copy at its first `times` attempts.
  static CpuBench damaging_bench(int times) {
    const auto damage = [times](std::uint64_t copy, int attempt, std::span<std::byte> written) {
      if (attempt < times) test::flip_some_bit(written, hash_tuple(copy, attempt));
    };
    return CpuBench({.link_gb_per_s = GetParam(), .copied = damage});
  }
  void fetch(CpuBench& bench, CpuEvent& filled, std::uint32_t page, bool verify) {
    source_ = pattern(kBytes, page);
    bench.copy->fetch(frame_.data(), raw_page(source_.data(), kBytes), {"opt", page},
                      verify ? std::optional(page_digest(source_)) : std::nullopt);
    bench.copy->record(filled);
  }
  static std::string error_of(CpuBench& bench) try {
    bench.copy->synchronize();
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDevice);
    return error.what();
  }

  std::vector<std::byte> source_, frame_ = std::vector<std::byte>(kBytes);
};

TEST_P(VerifiedFetch, MendsEveryFlipBeforeTheEventFires) {
  CpuEvent filled;
  CpuBench bench = damaging_bench(1);
  for (std::uint32_t page = 0; page < kPages; ++page) {
    fetch(bench, filled, page, /*verify=*/true);
    bench.compute->wait(filled);
    ASSERT_EQ(frame_, source_) << "page " << page;
  }
  bench.copy->synchronize();
  const CopyStatistics statistics = bench.copy->statistics();
  EXPECT_EQ(statistics.pages_verified, kPages);
  EXPECT_EQ(statistics.pages_refetched, kPages);
  EXPECT_EQ(statistics.bytes, 2 * kPages * kBytes);
  EXPECT_EQ(statistics.frame_bytes, kPages * kBytes) << "each copy once";
}

TEST_P(VerifiedFetch, NamesThePageThatIsDamagedTwice) {
  for (std::uint32_t page = 0; page < kPages; ++page) {
    CpuEvent filled;
    CpuBench bench = damaging_bench(2);
    fetch(bench, filled, page, /*verify=*/true);
    EXPECT_THROW(bench.compute->wait(filled), Error);
    EXPECT_THAT(error_of(bench), testing::AllOf(testing::HasSubstr(fmt::format("page {} of model opt ", page)),
                                                testing::HasSubstr("digest")));
    EXPECT_EQ(bench.copy->statistics().pages_verified, 0u);
  }
}

TEST_P(VerifiedFetch, WithoutADigestNobodyLooks) {
  CpuEvent filled;
  CpuBench bench = damaging_bench(1);
  fetch(bench, filled, 1, /*verify=*/false);
  bench.copy->synchronize();
  EXPECT_NE(frame_, source_);
  EXPECT_EQ(bench.copy->statistics().pages_verified, 0u);
}

TEST_P(VerifiedFetch, WholePagesAreNotFetchedTwice) {
  CpuEvent filled;
  CpuBench bench({.link_gb_per_s = GetParam()});
  for (std::uint32_t page = 0; page < 20; ++page) {
    fetch(bench, filled, page, /*verify=*/true);
    bench.copy->synchronize();
  }
  EXPECT_EQ(bench.copy->statistics().pages_verified, 20u);
  EXPECT_EQ(bench.copy->statistics().pages_refetched, 0u);
  EXPECT_EQ(bench.copy->statistics().bytes, 20 * kBytes);
}

INSTANTIATE_TEST_SUITE_P(Links, VerifiedFetch, testing::Values(0.0, 2.0), [](const auto& test) {
  return test.param == 0 ? std::string("Free") : std::string("Emulated");
});

INSTANTIATE_TEST_SUITE_P(Links, CopyStreamTest, testing::Values(0.0, 2.0), [](const auto& test) {
  return test.param == 0 ? std::string("Free") : std::string("Emulated");
});

// 12 copies of 1.5 MiB, the event of each no sooner than the bytes so far could have crossed the link.
TEST(EmulatedCopyStream, IsNeverFasterThanItsLink) {
  constexpr double kRate = 0.5e9;
  constexpr std::size_t kBytes = 3 * kMiB / 2;
  CpuBench bench({.link_gb_per_s = kRate / 1e9});
  const auto source = pattern(kBytes);
  std::vector<std::byte> destination(kBytes);
  std::vector<CpuEvent> events(12);
  const double begin_s = now_s();
  for (auto& event : events) {
    bench.copy->copy_to_device(destination.data(), source.data(), kBytes);
    bench.copy->record(event);
  }
  for (std::size_t i = 0; i < events.size(); ++i) {
    bench.compute->wait(events[i]);
    EXPECT_GE(now_s() - begin_s, static_cast<double>((i + 1) * kBytes) / kRate);
  }
}

// Both ways round: pages go through one frame, fetched after the reader before, read after the fetch.
TEST(CopyAndComputeStreams, OrderEachOther) {
  CpuBench bench({.threads = 2});
  constexpr std::size_t kPages = 50;
  constexpr std::size_t kBytes = 64 * 1024;
  std::vector<std::vector<std::byte>> pages;
  for (std::uint64_t page = 0; page < kPages; ++page) pages.push_back(pattern(kBytes, page));
  const auto frame = bench.device->allocate(kBytes, "test frame");
  CpuEvent fetched;
  CpuEvent released;
  for (std::size_t page = 0; page < kPages; ++page) {
    bench.copy->wait(released);
    bench.copy->copy_to_device(frame->data(), pages[page].data(), kBytes);
    bench.copy->record(fetched);
    bench.compute->wait(fetched);
    bool equal = false;
    bench.launch([&](CpuContext&) { equal = std::equal(pages[page].begin(), pages[page].end(), frame->data()); });
    ASSERT_TRUE(equal) << "page " << page;
    bench.compute->record(released);
  }
}

}  // namespace
}  // namespace computron
