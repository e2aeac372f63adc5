// Pages with a digest, raw and coded, on every device: nobody reads a wrong one, and whoever would is told.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/device/device_support.h"
#include "tests/support/bad_link.h"
#include "tests/support/coded_bytes.h"
#include "tests/support/test_device.h"

namespace computron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kPages = 12, kFrames = 3;
constexpr std::size_t kBytes = 5 * kCodedBlockBytes + 100, kApart = 6 * kCodedBlockBytes;

// Pages in memory that the device has allocated, every third one raw.
class VerifiedPages : public testing::Test {
 protected:
  void SetUp() override {
    for (std::uint32_t i = 0; i < kPages; ++i) add_page(i);
  }

  static bool is_raw(std::size_t i) { return i % 3 == 2; }
  void add_page(std::uint32_t i) {
    contents_.push_back(test::weights_and_others(kBytes, i));
    const test::CodedBytes coded(contents_[i], BlockEncoding::kBf16);
    HostPage page = is_raw(i) ? raw_page(contents_[i].data(), kBytes) : coded.page();
    memory_.push_back(device_->allocate_host(page.link_bytes + kCodedPadding, "a test page"));
    std::memcpy(memory_[i]->data(), page.data, page.link_bytes);
    page.data = memory_[i]->data();
    pages_.push_back(page);
  }
  std::unique_ptr<CopyStream> new_copy_stream() {
    return device_->make_copy_stream({.coded = kApart, .verified = kApart});
  }
  void fetch(CopyStream& copies, std::byte* frame, std::uint32_t i) {
    copies.fetch(frame, pages_[i], {"opt", i}, page_digest(contents_[i]));
  }

  // Fetches all pages through few frames and reads each as soon as its event lets one.
  std::vector<std::vector<std::byte>> read_all(CopyStream& copies) {
    const auto frames = device_->allocate(kFrames * kApart, "test frames");
    const auto results = device_->allocate_host(kPages * kBytes, "what is read");
    std::vector<std::unique_ptr<Event>> landed, released;
    for (std::uint32_t i = 0; i < kPages; ++i) {
      landed.push_back(device_->make_event());
      released.push_back(device_->make_event());
      std::byte* const frame = frames->data() + i % kFrames * kApart;
      if (i >= kFrames) copies.wait(*released[i - kFrames]);
      fetch(copies, frame, i);
      copies.record(*landed[i]);
      compute_->wait(*landed[i]);
      compute_->copy_to_host(results->data() + i * kBytes, frame, kBytes);
      compute_->record(*released[i]);
    }
    compute_->synchronize();
    copies.synchronize();
    std::vector<std::vector<std::byte>> read;
    for (std::size_t i = 0; i < kPages; ++i) {
      read.emplace_back(results->data() + i * kBytes, results->data() + (i + 1) * kBytes);
    }
    return read;
  }
  std::size_t link_bytes() const {
    std::size_t bytes = 0;
    for (const HostPage& page : pages_) bytes += page.link_bytes;
    return bytes;
  }

  // What is said where the error ought to be Error{kDevice}.
  template <class Waits>
  static std::string error_of(const Waits& waits) {
    try {
      waits();
      return "nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDevice);
      return error.what();
    }
  }
  // Whoever waits for page `i` is told of it.
  void expect_told(std::uint32_t i, const testing::Matcher<std::string>& what) {
    const auto copies = new_copy_stream();
    const auto frame = device_->allocate(kApart, "test frame");
    const auto landed = device_->make_event();
    fetch(*copies, frame->data(), i);
    copies->record(*landed);
    const auto waits = [&] {
      compute_->wait(*landed);
      compute_->synchronize();
    };
    EXPECT_THAT(error_of(waits), what);
    EXPECT_THAT(error_of([&] { copies->synchronize(); }), what);
    EXPECT_THAT(error_of([&] { landed->query(); }), what);
    EXPECT_EQ(copies->statistics().pages_verified, 0u);
    compute_ = device_->make_compute_stream(progress_);  // has heard of a page that it must not use
  }

  test::BadLink link_;
  Progress progress_{kTestIdle};
  std::unique_ptr<Device> device_ = test::make_test_device({.copied = link_.hook()});
  std::unique_ptr<Stream> compute_ = device_->make_compute_stream(progress_);
  std::vector<std::vector<std::byte>> contents_;
  std::vector<std::unique_ptr<HostBuffer>> memory_;
  std::vector<HostPage> pages_;
};

TEST_F(VerifiedPages, ArriveOnceWhereNothingIsWrong) {
  const auto copies = new_copy_stream();
  EXPECT_EQ(read_all(*copies), contents_);
  EXPECT_EQ(copies->statistics().pages_verified, kPages);
  EXPECT_EQ(copies->statistics().pages_refetched, 0u);
  EXPECT_EQ(copies->statistics().bytes, link_bytes());
  EXPECT_EQ(copies->statistics().frame_bytes, kPages * kBytes);
}

// What a coded page holds in one bit need not matter.
TEST_F(VerifiedPages, AreCopiedAgainWhereTheLinkDamagesOne) {
  if (!test::has_bad_link()) GTEST_SKIP() << "only links of the CPU device and of the emulated GPU are damaged";
  std::size_t mended = 0;
  for (std::size_t damaged = 0; damaged < kPages; ++damaged) {
    link_.damage(damaged, 1);
    const auto copies = new_copy_stream();
    ASSERT_EQ(read_all(*copies), contents_) << damaged;
    const CopyStatistics done = copies->statistics();
    EXPECT_EQ(done.pages_verified, kPages);
    EXPECT_TRUE(done.pages_refetched == 1 || (done.pages_refetched == 0 && !is_raw(damaged))) << damaged;
    EXPECT_EQ(done.bytes, link_bytes() + done.pages_refetched * pages_[damaged].link_bytes);
    EXPECT_EQ(done.frame_bytes, kPages * kBytes) << "each copy once";
    mended += done.pages_refetched;
  }
  EXPECT_GT(mended, kPages / 2);
}

TEST_F(VerifiedPages, AreNamedWhereTheLinkDamagesOneTwice) {
  if (!test::has_bad_link()) GTEST_SKIP() << "only links of the CPU device and of the emulated GPU are damaged";
  for (std::uint32_t i = 0; i < kPages; ++i) {
    if (!is_raw(i)) continue;
    link_.damage(0, 2);
    expect_told(i, AllOf(HasSubstr(fmt::format("page {} of model opt ", i)), HasSubstr("its digest is wrong"),
                         Not(HasSubstr("in host memory"))));
  }
}

TEST_F(VerifiedPages, AreNamedWhereHostMemoryIsDamaged) {
  const std::string same = "the same each time: the page is damaged in host memory";
  memory_[2]->data()[kBytes - 1] ^= std::byte{1};
  expect_told(2, AllOf(HasSubstr("page 2 of model opt "), HasSubstr("its digest is wrong"), HasSubstr(same)));
  const std::uint32_t nowhere = ~0u;
  std::memcpy(memory_[3]->data(), &nowhere, sizeof nowhere);
  expect_told(3, AllOf(HasSubstr("page 3 of model opt "), HasSubstr("it cannot be decoded"), HasSubstr(same)));
  memory_[4]->data()[pages_[4].link_bytes / 2] ^= std::byte{1};
  expect_told(4, AllOf(HasSubstr("page 4 of model opt "), HasSubstr(same)));
}

// Pages that nobody reads: the next one for the frame must not come before this one has been digested, and mended.
TEST_F(VerifiedPages, TheLastOneForAFrameStays) {
  const auto frame = device_->allocate(kApart, "test frame");
  const auto back = device_->allocate_host(kBytes, "what is read");
  for (std::uint64_t round = 0; round < 60; ++round) {
    if (test::has_bad_link()) link_.damage(round % 2, static_cast<int>(round / 2 % 2));
    const auto copies = new_copy_stream();
    const auto first = static_cast<std::uint32_t>(round / 4 % kPages);
    const auto second = static_cast<std::uint32_t>((first + 2) % kPages);
    fetch(*copies, frame->data(), first);
    if (round % 3 == 0 && is_raw(second)) {
      copies->fetch(frame->data(), pages_[second], {"opt", second}, std::nullopt);
    } else {
      fetch(*copies, frame->data(), second);
    }
    copies->copy_to_host(back->data(), frame->data(), kBytes);
    copies->synchronize();
    // Damaged, and not verified.
    const bool seen = test::has_bad_link() && round % 3 == 0 && is_raw(second) && round % 4 == 3;
    ASSERT_EQ(std::equal(back->data(), back->data() + kBytes, contents_[second].data()), !seen) << round;
  }
}

}  // namespace
}  // namespace computron
