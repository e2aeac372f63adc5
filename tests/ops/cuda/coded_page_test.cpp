// The GPU decodes what the CPU encodes, and gives what the CPU's plain loops give, of damaged pages as well.
#include "kernels/cuda/coded_page.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "src/device/cuda/cuda_stream.h"
#include "tests/ops/coded_pages.h"
#include "tests/support/test_device.h"

namespace computron::testing {
namespace {

using kernels::CodedIsa;

class CodedPageOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_device_present()) GTEST_SKIP() << "this machine has no GPU";
    device_ = make_cuda_device(0);
    stream_ = device_->make_compute_stream(progress_);
  }

  // Whether no block was refused. All in device memory.
  bool decode(const std::byte* coded, std::size_t size, std::size_t page_bytes, std::size_t first, std::size_t end,
              std::byte* page) {
    const std::vector<int> none = {0};
    const test::OnDevice<int> refused(*device_, *stream_, none);
    kernels::cuda::decode_blocks(cuda(*stream_), {coded, size, page_bytes, first, end, page, refused.data()});
    return refused.values()[0] == 0;
  }

  void expect_exact(const MixedPage& page, std::size_t first, std::size_t end) {
    const CodedBytes coded = encoded(page, CodedIsa::kPlain);
    const PageBytes untouched(page.bytes.size(), GuardedBytes::kUntouched);
    const test::OnDevice<std::byte> from(*device_, *stream_, coded.bytes), to(*device_, *stream_, untouched);
    EXPECT_TRUE(decode(from.data(), coded.size, page.bytes.size(), first, end, to.data()));
    PageBytes expected = untouched;
    const auto begin = static_cast<std::ptrdiff_t>(first * kCodedBlockBytes);
    const auto stop = static_cast<std::ptrdiff_t>(std::min(end * kCodedBlockBytes, page.bytes.size()));
    std::copy(page.bytes.begin() + begin, page.bytes.begin() + stop, expected.begin() + begin);
    EXPECT_EQ(to.values(), expected);
  }
  void expect_exact(const MixedPage& page) { expect_exact(page, 0, page.encodings.size()); }

  Progress progress_{IdlePolicy{.kind = IdlePolicy::Kind::kYield}};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CodedPageOnGpu, EveryPatternOfSixteenBitsIsExactAmongCommonOnes) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    MixedPage page;
    page.append(gaussian_weights(std::size_t{1} << 20, dtype, 3), encoding_of(dtype));
    auto* const values = reinterpret_cast<std::uint16_t*>(page.bytes.data());
    for (std::size_t i = 0; i < 1 << 16; ++i) values[8 * i + i % 8] = static_cast<std::uint16_t>(i);
    expect_exact(page);
  }
}

TEST_F(CodedPageOnGpu, AnyPatternOfFloat32IsExactAmongWeights) {
  MixedPage page;
  page.append(gaussian_weights(std::size_t{1} << 20, DType::kF32, 3), BlockEncoding::kF32);
  auto* const values = reinterpret_cast<std::uint32_t*>(page.bytes.data());
  std::mt19937 random(5);
  for (std::size_t i = 0; i < page.bytes.size() / 4; i += 8)
    values[i + i / 8 % 8] = static_cast<std::uint32_t>(random());
  expect_exact(page);
}

TEST_F(CodedPageOnGpu, PagesOfMixedContentAndAnyLengthAreExact) {
  for (const std::size_t tail : {0, 1, 17, 64, 4000, 8191}) expect_exact(mixed_page(tail));
}

TEST_F(CodedPageOnGpu, AnyBlocksAreDecodedByThemselves) {
  const MixedPage page = mixed_page(100);
  const std::size_t blocks = page.encodings.size();
  for (std::size_t first = 0; first < blocks; ++first)
    expect_exact(page, first, std::min(first + 1 + first % 3, blocks));
}

TEST_F(CodedPageOnGpu, WhatIsCutOffIsRefused) {
  const MixedPage page = mixed_page(0);
  const CodedBytes coded = encoded(page, CodedIsa::kPlain);
  const std::size_t bytes = page.bytes.size(), blocks = page.encodings.size();
  const test::OnDevice<std::byte> from(*device_, *stream_, coded.bytes), to(*device_, *stream_, page.bytes);
  EXPECT_TRUE(decode(from.data(), coded.size, bytes, 0, blocks, to.data()));
  EXPECT_FALSE(decode(from.data(), coded.size - 16, bytes, 0, blocks, to.data()));
  EXPECT_FALSE(decode(from.data(), 8, bytes, 0, 1, to.data()));
}

// In the CPU's memory, which the emulated GPU reads as its own: it would crash where anything outside is touched.
TEST_F(CodedPageOnGpu, DamagedPagesGiveWhatTheCpuGivesWithinTheirBounds) {
  if (!test::on_emulated_gpu()) GTEST_SKIP() << "a GPU cannot tell what is touched";
  const MixedPage page = mixed_page(0);
  const std::size_t bytes = page.bytes.size(), blocks = page.encodings.size();
  const CodedBytes coded = encoded(page, CodedIsa::kPlain);
  const GuardedBytes damaged(coded.bytes.size()), expected(bytes), decoded(bytes);
  Damage damage(12);
  int refused = 0, different = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    std::ranges::copy(coded.bytes, damaged.data());
    damage({damaged.data(), coded.size}, blocks);
    const bool good = kernels::decode_blocks({damaged.data(), coded.size}, bytes, 0, blocks, expected.data(),
                                             kernels::Stores::kStreaming, CodedIsa::kPlain);
    ASSERT_EQ(decode(damaged.data(), coded.size, bytes, 0, blocks, decoded.data()), good) << trial;
    if (good) {
      ASSERT_EQ(std::memcmp(decoded.data(), expected.data(), bytes), 0) << trial;
    }
    refused += !good;
    different += good && std::memcmp(decoded.data(), page.bytes.data(), bytes) != 0;
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(different, 200);
}

}  // namespace
}  // namespace computron::testing
