// Coded pages are exact to the bit, by every way to decode, and damaged ones stay within their bounds.
#include "kernels/cpu/coded_page.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

namespace computron::kernels {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<CodedIsa> isas() {
  std::vector<CodedIsa> all = {CodedIsa::kPlain, CodedIsa::kAvx2};
  if (best_coded_isa() == CodedIsa::kAvx512) all.push_back(CodedIsa::kAvx512);
  return all;
}

// Memory that ends where nothing may be touched, and begins at a multiple of 64 bytes if `bytes` is one.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : bytes_(bytes), mapped_(round_up(bytes, kPage) + kPage) {
    map_ = static_cast<std::byte*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(map_ + mapped_ - kPage, kPage, PROT_NONE);
  }
  ~Guarded() { munmap(map_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  std::byte* data() const { return map_ + mapped_ - kPage - bytes_; }

 private:
  static constexpr std::size_t kPage = 4096;
  std::size_t bytes_, mapped_;
  std::byte* map_;
};

struct Coded {
  Bytes bytes;  // with kCodedPadding
  std::size_t size = 0;
  std::span<const std::byte> page() const { return std::span(bytes).first(size); }
};

Coded encode(const Bytes& page, const std::vector<BlockCode>& values) {
  Coded coded{Bytes(most_coded_bytes(page.size())), 0};
  coded.size = encode_page(page, values, coded.bytes.data());
  coded.bytes.resize(coded.size + kCodedPadding);
  return coded;
}

Coded encode(const Bytes& page, DType dtype) {
  return encode(page, std::vector<BlockCode>(coded_blocks(page.size()), code_of(dtype)));
}

void expect_exact(const Bytes& page, const Coded& coded) {
  for (const CodedIsa isa : isas()) {
    SCOPED_TRACE(static_cast<int>(isa));
    const Guarded decoded(round_up(page.size(), std::size_t{64}));
    ASSERT_TRUE(decode_blocks(coded.page(), page.size(), 0, coded_blocks(page.size()), decoded.data(), isa));
    EXPECT_EQ(std::memcmp(decoded.data(), page.data(), page.size()), 0);
  }
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// As the weights of a matrix: normally distributed.
Bytes weights(std::size_t bytes, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  Bytes page;
  while (page.size() < bytes) {
    const float value = normal(random);
    const std::uint16_t half = dtype == DType::kBF16 ? bf16_from_f32(value) : f16_from_f32(value);
    const auto one = dtype == DType::kF32 ? std::as_bytes(std::span(&value, 1)) : std::as_bytes(std::span(&half, 1));
    page.insert(page.end(), one.begin(), one.end());
  }
  return page;
}

constexpr std::array kTypes = {DType::kF32, DType::kF16, DType::kBF16};

TEST(CodedPage, EveryPatternOfSixteenBitsIsExact) {
  std::vector<std::uint16_t> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    expect_exact(bytes_of(all), encode(bytes_of(all), dtype));
    std::mt19937 random(7);
    std::vector<std::uint16_t> mixed = all;
    std::shuffle(mixed.begin(), mixed.end(), random);
    expect_exact(bytes_of(mixed), encode(bytes_of(mixed), dtype));
  }
}

// Where all blocks gain, and each pattern stands among seven exponents that are common.
TEST(CodedPage, EveryPatternOfSixteenBitsIsExactAmongCommonOnes) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Bytes page = weights(std::size_t{1} << 20, dtype, 3);
    auto* const values = reinterpret_cast<std::uint16_t*>(page.data());
    for (std::size_t i = 0; i < 1 << 16; ++i) values[8 * i + i % 8] = static_cast<std::uint16_t>(i);
    const Coded coded = encode(page, dtype);
    EXPECT_LT(coded.size, page.size());
    expect_exact(page, coded);
  }
}

TEST(CodedPage, RandomBitsAreExactAndHardlyGrow) {
  std::mt19937 random(1);
  std::vector<std::uint32_t> bits(1 << 18);
  for (std::uint32_t& word : bits) word = static_cast<std::uint32_t>(random());
  for (const DType dtype : kTypes) {
    const Coded coded = encode(bytes_of(bits), dtype);
    EXPECT_LE(static_cast<double>(coded.size), 1.002 * 4 * static_cast<double>(bits.size()));
    expect_exact(bytes_of(bits), coded);
  }
}

TEST(CodedPage, WeightsTakeTheirEntropyAndLittleMore) {
  const std::pair<DType, double> most[] = {{DType::kBF16, 11.3}, {DType::kF16, 14.3}, {DType::kF32, 27.4}};  // bits
  for (const auto& [dtype, bits] : most) {
    const Bytes page = weights(std::size_t{2} << 20, dtype, 5);
    const Coded coded = encode(page, dtype);
    EXPECT_LE(8.0 * static_cast<double>(coded.size * size_of(dtype)), bits * static_cast<double>(page.size()));
    expect_exact(page, coded);
  }
}

TEST(CodedPage, OneValueAllOverTakesALineABlock) {
  for (const int value : {0, 0x55}) {
    const Bytes page(std::size_t{1} << 20, std::byte(value));
    const Coded coded = encode(page, DType::kBF16);
    EXPECT_LT(coded.size, page.size() / 100);
    expect_exact(page, coded);
  }
}

// Blocks of any code beside each other; a last one of any length.
TEST(CodedPage, PagesOfMixedContentAndAnyLengthAreExact) {
  for (const std::size_t tail : {0, 1, 31, 64, 4000, 8191}) {
    Bytes page;
    std::vector<BlockCode> values;
    for (int block = 0; block < 9; ++block) {
      const DType dtype = kTypes[static_cast<std::size_t>(block) % kTypes.size()];
      const Bytes some = block == 4 ? Bytes(kCodedBlockBytes) : weights(kCodedBlockBytes, dtype, 10u + block);
      page.insert(page.end(), some.begin(), some.end());
      values.push_back(block == 7 ? BlockCode::kRaw : code_of(dtype));
    }
    page.resize(page.size() + tail, std::byte{0x5A});
    if (tail > 0) values.push_back(BlockCode::kBf16);
    expect_exact(page, encode(page, values));
  }
}

TEST(CodedPage, AnyBlocksAreDecodedByThemselves) {
  const Bytes page = weights(16 * kCodedBlockBytes, DType::kBF16, 2);
  const Coded coded = encode(page, DType::kBF16);
  EXPECT_EQ(coded_offset(coded.page(), 16), coded.size);
  for (std::size_t first = 0; first < 16; first += 5) {
    const Guarded decoded(page.size());
    ASSERT_TRUE(decode_blocks(coded.page(), page.size(), first, first + 1, decoded.data()));
    const std::size_t at = first * kCodedBlockBytes;
    EXPECT_EQ(std::memcmp(decoded.data() + at, page.data() + at, kCodedBlockBytes), 0);
    EXPECT_EQ(decoded.data()[at == 0 ? kCodedBlockBytes : at - 1], std::byte{0});
  }
}

TEST(CodedPage, WhatIsCutOffIsRefused) {
  const Bytes page = weights(4 * kCodedBlockBytes, DType::kBF16, 2);
  const Coded coded = encode(page, DType::kBF16);
  const Guarded decoded(page.size());
  EXPECT_FALSE(decode_blocks(coded.page().first(coded.size - 16), page.size(), 0, 4, decoded.data()));
  EXPECT_FALSE(decode_blocks(coded.page().first(8), page.size(), 0, 1, decoded.data()));
  EXPECT_FALSE(decode_blocks(coded.page(), page.size(), 0, 5, decoded.data()));
}

// Nothing beyond the padding is read and nothing beyond the page written, or this would crash; and every flip that
// changes anything changes what is decoded, or is refused.
TEST(CodedPage, DamagedPagesStayWithinTheirBounds) {
  std::mt19937 random(11);
  for (const DType dtype : kTypes) {
    const Bytes page = weights(3 * kCodedBlockBytes, dtype, 2);
    const Coded coded = encode(page, dtype);
    const Guarded damaged(coded.bytes.size()), decoded(page.size());
    int refused = 0, different = 0;
    for (int trial = 0; trial < 3000; ++trial) {
      std::memcpy(damaged.data(), coded.bytes.data(), coded.bytes.size());
      const bool in_directory = trial % 3 == 0;
      for (int flips = 1 + trial % 4; flips > 0; --flips) {
        damaged.data()[random() % (in_directory ? 16 : coded.size)] ^= std::byte(1u << random() % 8);
      }
      for (const CodedIsa isa : isas()) {
        const bool good = decode_blocks({damaged.data(), coded.size}, page.size(), 0, 3, decoded.data(), isa);
        refused += !good;
        different += good && std::memcmp(decoded.data(), page.data(), page.size()) != 0;
      }
    }
    EXPECT_GT(refused, 100);
    EXPECT_GT(different, 100);
  }
}

// Also where every value would take the next of `others`.
TEST(CodedPage, BlocksThatClaimMoreThanTheyHoldStayWithinTheirBounds) {
  for (const DType dtype : kTypes) {
    const Bytes page = weights(kCodedBlockBytes, dtype, 2);
    const Coded coded = encode(page, dtype);
    const Guarded damaged(coded.bytes.size()), decoded(page.size());
    std::memcpy(damaged.data(), coded.bytes.data(), coded.bytes.size());
    std::memset(damaged.data() + 16, 0, coded.bytes.size() - 16);
    for (const CodedIsa isa : isas()) {
      EXPECT_TRUE(decode_blocks({damaged.data(), coded.size}, page.size(), 0, 1, decoded.data(), isa));
    }
  }
}

}  // namespace
}  // namespace computron::kernels
