// The GPU digests pages as the host does, has wrong ones copied again, and tells of those that stay wrong.
#include "kernels/cuda/page_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/types.h"
#include "src/device/cuda/cuda_stream.h"
#include "tests/device/device_support.h"
#include "tests/support/test_device.h"

namespace computron {
namespace {

using kernels::cuda::LostPage;
using kernels::cuda::PageVerdict;
using kernels::cuda::VerifiedPages;

class PageDigestOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_device_present()) GTEST_SKIP() << "this machine has no GPU";
    device_ = make_cuda_device(0);
    stream_ = device_->make_compute_stream(progress_);
  }

  // Of `bytes` in device memory.
  std::vector<std::uint64_t> pieces_of(const std::vector<std::byte>& bytes, const int* only_if = nullptr) {
    const std::vector<std::uint64_t> none(std::max<std::size_t>(1, ceil_div(bytes.size(), kDigestPieceBytes)), 7);
    const test::OnDevice<std::uint64_t> pieces(*device_, *stream_, none);
    const test::OnDevice<std::byte> page(*device_, *stream_, bytes);
    kernels::cuda::digest_pieces(cuda(*stream_), {page.data(), bytes.size(), pieces.data(), only_if});
    return pieces.values();
  }

  // What judge_page() says of pieces, and of earlier pages in `verdict`; all as on the device.
  struct Judged {
    PageVerdict verdict;
    VerifiedPages told;
  };
  Judged judge(const std::vector<std::uint64_t>& pieces, std::uint64_t expected, bool again = false,
               const Judged& before = {}) {
    const test::OnDevice<std::uint64_t> list(*device_, *stream_, pieces);
    const std::vector<PageVerdict> verdicts = {before.verdict};
    const std::vector<VerifiedPages> tolds = {before.told};
    const test::OnDevice<PageVerdict> verdict(*device_, *stream_, verdicts);
    const test::OnDevice<VerifiedPages> told(*device_, *stream_, tolds);
    kernels::cuda::judge_page(cuda(*stream_), {.pieces = list.data(),
                                               .count = pieces.size(),
                                               .expected = expected,
                                               .again = again,
                                               .link_bytes = 100,
                                               .number = 9,
                                               .verdict = verdict.data(),
                                               .told = told.data()});
    return {verdict.values()[0], told.values()[0]};
  }

  Progress progress_{kTestIdle};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(PageDigestOnGpu, PiecesOfEveryLengthAreThoseOfXxh3) {
  const std::vector<std::byte> all = pattern(3 * kDigestPieceBytes, 5);
  for (std::size_t count = 1; count <= kDigestPieceBytes; count += count < 1100 ? 1 : 61) {
    const std::vector<std::byte> bytes(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    ASSERT_EQ(pieces_of(bytes)[0], digest64(bytes)) << count;
  }
}

TEST_F(PageDigestOnGpu, EachPieceIsDigestedByItself) {
  for (const std::size_t tail : {0, 1, 64, 240, 241, 1024, 1025, 4095}) {
    const std::vector<std::byte> bytes = pattern(19 * kDigestPieceBytes + tail, tail);
    const std::vector<std::uint64_t> pieces = pieces_of(bytes);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::size_t at = i * kDigestPieceBytes;
      const auto piece = std::span(bytes).subspan(at, std::min(kDigestPieceBytes, bytes.size() - at));
      ASSERT_EQ(pieces[i], digest64(piece)) << "piece " << i << " of " << bytes.size();
    }
  }
}

TEST_F(PageDigestOnGpu, NothingIsDoneWhereNothingIsWrong) {
  const std::vector<int> flags = {0, 1};
  const test::OnDevice<int> only_if(*device_, *stream_, flags);
  const std::vector<std::byte> bytes = pattern(100);
  EXPECT_EQ(pieces_of(bytes, only_if.data())[0], 7u);
  EXPECT_EQ(pieces_of(bytes, only_if.data() + 1)[0], digest64(bytes));
}

// Of as many pieces as pages of 128 KiB, 64 MiB and 72 MiB have, and of those at which the algorithm changes.
TEST_F(PageDigestOnGpu, TheDigestOfAnyNumberOfPiecesIsThatOfXxh3) {
  for (const std::size_t count : {0,   1,   2,   3,    16,   17,   30,   31,   32,    127,   128,  129,
                                  255, 256, 257, 4095, 4096, 4097, 4224, 4225, 16384, 18432, 20000}) {
    const std::vector<std::byte> bytes = pattern(8 * count, count);
    std::vector<std::uint64_t> pieces(count);
    std::memcpy(pieces.data(), bytes.data(), bytes.size());
    EXPECT_EQ(judge(pieces, digest64(bytes)).told.verified, 1u) << count;
    const Judged wrong = judge(pieces, digest64(bytes) + 1);
    EXPECT_EQ(wrong.told.verified, 0u) << count;
    EXPECT_EQ(wrong.verdict.wrong, 1) << count;
    EXPECT_EQ(wrong.verdict.digest, digest64(bytes)) << count;
  }
}

TEST_F(PageDigestOnGpu, APageThatIsRightTheSecondTimeIsCounted) {
  const std::vector<std::uint64_t> wrong = {1, 2}, right = {1, 3};
  const std::uint64_t digest = digest64(std::as_bytes(std::span(right)));
  const Judged first = judge(wrong, digest);
  const Judged second = judge(right, digest, /*again=*/true, first);
  EXPECT_EQ(second.verdict.wrong, 0);
  EXPECT_EQ(second.told.verified, 1u);
  EXPECT_EQ(second.told.copied_again, 1u);
  EXPECT_EQ(second.told.bytes_again, 100u);
  EXPECT_EQ(second.told.lost, 0u);
  const Judged untouched = judge(right, digest, /*again=*/true, judge(right, digest, /*again=*/false, second));
  EXPECT_EQ(untouched.told.verified, 2u) << "a second look at a page that was right the first time says nothing";
  EXPECT_EQ(untouched.told.copied_again, 1u);
}

TEST_F(PageDigestOnGpu, APageThatIsWrongTwiceIsTold) {
  const std::vector<std::uint64_t> wrong = {1, 2}, otherwise = {1, 4}, right = {1, 3};
  const std::uint64_t digest = digest64(std::as_bytes(std::span(right)));
  const Judged first = judge(wrong, digest);
  const LostPage same(judge(wrong, digest, /*again=*/true, first).told.lost);
  EXPECT_EQ(same.number, 9);
  EXPECT_TRUE(same.same && !same.undecoded);
  const LostPage other(judge(otherwise, digest, /*again=*/true, first).told.lost);
  EXPECT_TRUE(other.number == 9 && !other.same && !other.undecoded);
}

// What the frame holds may be right by chance, as where the page was there before.
TEST_F(PageDigestOnGpu, APageThatTheDecoderRefusesIsWrong) {
  const std::vector<std::uint64_t> right = {1, 3};
  const std::uint64_t digest = digest64(std::as_bytes(std::span(right)));
  Judged refused{};
  refused.verdict.refused = 1;
  Judged first = judge(right, digest, /*again=*/false, refused);
  EXPECT_EQ(first.verdict.wrong, 1);
  EXPECT_EQ(first.verdict.refused, 0) << "the next decoder begins anew";
  EXPECT_EQ(judge(right, digest, /*again=*/true, first).told.verified, 1u);
  first.verdict.refused = 1;
  const LostPage lost(judge(right, digest, /*again=*/true, first).told.lost);
  EXPECT_TRUE(lost.number == 9 && lost.same && lost.undecoded);
}

TEST_F(PageDigestOnGpu, HostMemoryIsCopiedAgainToTheByte) {
  const std::vector<int> flags = {0, 1};
  const test::OnDevice<int> only_if(*device_, *stream_, flags);
  const std::vector<std::byte> content = pattern(3'000'017, 3), before = pattern(content.size() + 16, 4);
  const auto host = device_->allocate_host(content.size(), "test page");
  std::ranges::copy(content, host->data());
  void* mapped = nullptr;
  ASSERT_EQ(cudaHostGetDevicePointer(&mapped, host->data(), 0), cudaSuccess);
  for (const std::size_t count : {std::size_t{1}, std::size_t{16}, std::size_t{4111}, content.size()}) {
    for (int flag = 0; flag < 2; ++flag) {
      const test::OnDevice<std::byte> to(*device_, *stream_, before);
      kernels::cuda::copy_again(cuda(*stream_),
                                {static_cast<const std::byte*>(mapped), to.data(), count, only_if.data() + flag});
      std::vector<std::byte> expected = before;
      if (flag == 1) std::copy_n(content.begin(), count, expected.begin());
      ASSERT_EQ(to.values(), expected) << count;
    }
  }
}

}  // namespace
}  // namespace computron
