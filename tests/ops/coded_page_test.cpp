// Coded pages are exact to the bit, by every way to encode and decode, and damaged ones stay within their bounds.
#include "kernels/cpu/coded_page.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/ops/coded_pages.h"

namespace computron::testing {
namespace {

using kernels::CodedIsa, kernels::decode_blocks, kernels::Stores;

constexpr Stores kStores[] = {Stores::kStreaming, Stores::kCached};

std::vector<CodedIsa> coder_isas() {
  std::vector<CodedIsa> all = {CodedIsa::kPlain, CodedIsa::kAvx2};
  if (kernels::best_coded_isa() == CodedIsa::kAvx512) all.push_back(CodedIsa::kAvx512);
  return all;
}

// What the plain loops make of it; every other encoder must make the same.
CodedBytes encoded_alike(const MixedPage& page) {
  CodedBytes plain = encoded(page, CodedIsa::kPlain);
  for (const CodedIsa isa : coder_isas()) {
    EXPECT_EQ(encoded(page, isa).bytes, plain.bytes) << "instructions " << static_cast<int>(isa);
  }
  return plain;
}

MixedPage page_of_type(const PageBytes& bytes, DType dtype) {
  MixedPage page;
  page.append(bytes, encoding_of(dtype));
  return page;
}

void expect_exact(const MixedPage& page, const CodedBytes& coded) {
  const GuardedBytes from(coded.bytes.size()), decoded(round_up(page.bytes.size(), std::size_t{64}));
  std::ranges::copy(coded.bytes, from.data());
  for (const CodedIsa isa : coder_isas()) {
    SCOPED_TRACE(static_cast<int>(isa));
    for (const Stores stores : kStores) {
      decoded.refill();
      ASSERT_TRUE(decode_blocks({from.data(), coded.size}, page.bytes.size(), 0, page.encodings.size(), decoded.data(),
                                stores, isa));
      EXPECT_EQ(std::memcmp(decoded.data(), page.bytes.data(), page.bytes.size()), 0);
      EXPECT_TRUE(decoded.untouched(page.bytes.size(), decoded.size()));
    }
  }
}

// Returns how many bytes it takes coded.
std::size_t expect_exact(const PageBytes& bytes, DType dtype) {
  const MixedPage page = page_of_type(bytes, dtype);
  const CodedBytes coded = encoded_alike(page);
  expect_exact(page, coded);
  return coded.size;
}

constexpr std::array kTypes = {DType::kF32, DType::kF16, DType::kBF16};

TEST(CodedPage, EveryPatternOfSixteenBitsIsExact) {
  std::vector<std::uint16_t> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<std::uint16_t> mixed = all;
  std::shuffle(mixed.begin(), mixed.end(), std::mt19937(7));
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    expect_exact(page_of(all), dtype);
    expect_exact(page_of(mixed), dtype);
  }
}

// Where all blocks gain, and each pattern stands among seven exponents that are common.
TEST(CodedPage, EveryPatternOfSixteenBitsIsExactAmongCommonOnes) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    PageBytes page = gaussian_weights(std::size_t{1} << 20, dtype, 3);
    auto* const values = reinterpret_cast<std::uint16_t*>(page.data());
    for (std::size_t i = 0; i < 1 << 16; ++i) values[8 * i + i % 8] = static_cast<std::uint16_t>(i);
    EXPECT_LT(expect_exact(page, dtype), page.size() * 96 / 100);
  }
}

TEST(CodedPage, AnyPatternOfFloat32IsExactAmongWeights) {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> special = {0.0f,
                                      -0.0f,
                                      Limits::infinity(),
                                      -Limits::infinity(),
                                      Limits::quiet_NaN(),
                                      Limits::signaling_NaN(),
                                      -Limits::quiet_NaN(),
                                      Limits::denorm_min(),
                                      -Limits::denorm_min(),
                                      Limits::min(),
                                      Limits::max(),
                                      Limits::lowest()};
  PageBytes page = gaussian_weights(std::size_t{4} << 20, DType::kF32, 4);
  auto* const values = reinterpret_cast<std::uint32_t*>(page.data());
  std::mt19937 random(5);
  for (std::size_t i = 0; i < page.size() / 4; i += 8) {
    const std::uint32_t any = random();
    values[i + i / 8 % 8] = any % 4 == 0 ? std::bit_cast<std::uint32_t>(special[any / 4 % special.size()]) : any;
  }
  EXPECT_LT(expect_exact(page, DType::kF32), page.size() * 96 / 100);
}

TEST(CodedPage, RandomBitsAreExactAndHardlyGrow) {
  std::mt19937 random(1);
  std::vector<std::uint32_t> bits(1 << 18);
  for (std::uint32_t& word : bits) word = static_cast<std::uint32_t>(random());
  for (const DType dtype : kTypes) {
    EXPECT_LE(static_cast<double>(expect_exact(page_of(bits), dtype)), 1.002 * 4 * static_cast<double>(bits.size()));
  }
}

TEST(CodedPage, WeightsTakeTheirEntropyAndLittleMore) {
  const std::pair<DType, double> most[] = {{DType::kBF16, 11.3}, {DType::kF16, 14.3}, {DType::kF32, 27.4}};  // bits
  for (const auto& [dtype, bits] : most) {
    const PageBytes page = gaussian_weights(std::size_t{2} << 20, dtype, 5);
    const std::size_t size = expect_exact(page, dtype);
    EXPECT_LE(8.0 * static_cast<double>(size * size_of(dtype)), bits * static_cast<double>(page.size()));
  }
}

// Exponents that lie far from the largest, and many that are equally common: the vectors' encoders count all of them.
TEST(CodedPage, TheCommonestExponentsAreFoundWhereverTheyLie) {
  for (const unsigned common : {1u, 20u, 100u, 239u}) {
    std::vector<std::uint16_t> values(1 << 15);
    std::mt19937 random(common);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const unsigned exponent = i % 50 == 0 ? random() % 256 : common + random() % 9;
      values[i] = static_cast<std::uint16_t>(exponent << 7 | random() % 128);
    }
    EXPECT_LT(expect_exact(page_of(values), DType::kBF16), 2 * values.size() * 13 / 16);
  }
}

TEST(CodedPage, BlocksOfFewExponentsHaveNoEscapes) {
  for (unsigned exponents = 1; exponents <= 8; ++exponents) {
    std::vector<std::uint16_t> values(kCodedBlockBytes / 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto exponent = static_cast<unsigned>(i % 1000 == 7 ? exponents - 1 : i % exponents);
      values[i] = static_cast<std::uint16_t>(exponent * 30 << 7 | i % 128);
    }
    const std::size_t size = expect_exact(page_of(values), DType::kBF16);
    const std::size_t without = coded_directory_bytes(1) + round_up(CodedBf16::kEscapesAt, kCodedGrain);
    EXPECT_EQ(size == without, exponents <= kCodedExponents) << size;
  }
}

// A block of 7 common exponents and `escapes` values of others, which stand behind each other.
PageBytes block_with_escapes(std::size_t escapes) {
  std::vector<std::uint16_t> values(kCodedBlockBytes / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t exponent = i >= 640 && i < 640 + escapes ? 8 + i % 248 : i % 7;
    values[i] = static_cast<std::uint16_t>(exponent << 7 | i % 128);
  }
  return page_of(values);
}

TEST(CodedPage, BlocksAreCodedUpToTheLastEscapeThatGains) {
  const std::size_t most = kCodedBlockBytes - CodedBf16::kEscapesAt - 1;
  for (const std::size_t escapes : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{65}, most, most + 1}) {
    const PageBytes block = block_with_escapes(escapes);
    const std::size_t size = expect_exact(block, DType::kBF16) - coded_directory_bytes(1);
    EXPECT_EQ(size, escapes > most ? kCodedBlockBytes : round_up(CodedBf16::kEscapesAt + escapes, kCodedGrain));
  }
}

TEST(CodedPage, OneValueAllOverTakesALineABlock) {
  for (const int value : {0, 0x55}) {
    const PageBytes page(std::size_t{1} << 20, std::byte(value));
    EXPECT_LT(expect_exact(page, DType::kBF16), page.size() / 100);
  }
}

TEST(CodedPage, PagesOfMixedContentAndAnyLengthAreExact) {
  for (const std::size_t tail : {0, 1, 31, 64, 4000, 8191}) {
    const MixedPage page = mixed_page(tail);
    expect_exact(page, encoded_alike(page));
  }
}

TEST(CodedPage, AnyBlocksAreDecodedByThemselves) {
  const MixedPage page = mixed_page(100);
  const CodedBytes coded = encoded_alike(page);
  const std::size_t blocks = page.encodings.size();
  EXPECT_EQ(kernels::coded_offset(coded.page(), blocks), coded.size);
  const GuardedBytes decoded(round_up(page.bytes.size(), std::size_t{64}));
  for (const CodedIsa isa : coder_isas()) {
    for (std::size_t first = 0; first < blocks; ++first) {
      const std::size_t last = std::min(first + 1 + first % 3, blocks);
      const std::size_t begin = first * kCodedBlockBytes, end = std::min(last * kCodedBlockBytes, page.bytes.size());
      decoded.refill();
      const Stores stores = kStores[first % 2];
      ASSERT_TRUE(decode_blocks(coded.page(), page.bytes.size(), first, last, decoded.data() + begin, stores, isa));
      EXPECT_EQ(std::memcmp(decoded.data() + begin, page.bytes.data() + begin, end - begin), 0);
      EXPECT_TRUE(decoded.untouched(0, begin) && decoded.untouched(end, decoded.size()));
    }
  }
}

TEST(CodedPage, SomeBlocksAtATimeAreEncodedAsAllAtOnce) {
  const MixedPage page = mixed_page(100);
  const CodedBytes whole = encoded_alike(page);
  const std::size_t blocks = page.encodings.size();
  PageBytes parts(most_coded_bytes(page.bytes.size()));
  kernels::PageEncoder encoder(page.bytes, page.encodings, parts.data());
  for (std::size_t end = 1; end < blocks; end += 3) encoder.encode_to(end);
  encoder.encode_to(blocks);
  ASSERT_EQ(encoder.bytes(), whole.size);
  EXPECT_EQ(std::memcmp(parts.data(), whole.bytes.data(), whole.size), 0);
}

TEST(CodedPage, WhatIsCutOffIsRefused) {
  const MixedPage page = page_of_type(gaussian_weights(4 * kCodedBlockBytes, DType::kBF16, 2), DType::kBF16);
  const CodedBytes coded = encoded_alike(page);
  const std::size_t bytes = page.bytes.size();
  const GuardedBytes decoded(bytes);
  EXPECT_TRUE(decode_blocks(coded.page(), bytes, 0, 4, decoded.data()));
  EXPECT_FALSE(decode_blocks(coded.page().first(coded.size - 16), bytes, 0, 4, decoded.data()));
  EXPECT_FALSE(decode_blocks(coded.page().first(8), bytes, 0, 1, decoded.data()));
  EXPECT_FALSE(decode_blocks(coded.page(), bytes, 0, 5, decoded.data()));
}

// Decodes all of a damaged page; whether it was not refused. Crashes where anything outside of it is touched.
bool decode_damaged(const GuardedBytes& damaged, std::size_t size, const GuardedBytes& decoded, CodedIsa isa,
                    Stores stores = Stores::kStreaming) {
  decoded.refill();
  return decode_blocks({damaged.data(), size}, decoded.size(), 0, coded_blocks(decoded.size()), decoded.data(), stores,
                       isa);
}

TEST(CodedPage, DamagedPagesStayWithinTheirBounds) {
  MixedPage page = mixed_page(0);
  const CodedBytes coded = encoded_alike(page);
  const GuardedBytes damaged(coded.bytes.size()), expected(page.bytes.size()), decoded(page.bytes.size());
  Damage damage(11);
  int refused = 0, different = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    std::ranges::copy(coded.bytes, damaged.data());
    damage({damaged.data(), coded.size}, page.encodings.size());
    const bool good = decode_damaged(damaged, coded.size, expected, CodedIsa::kPlain);
    refused += !good;
    different += good && std::memcmp(expected.data(), page.bytes.data(), page.bytes.size()) != 0;
    for (const CodedIsa isa : coder_isas()) {
      ASSERT_EQ(decode_damaged(damaged, coded.size, decoded, isa, kStores[trial % 2]), good) << trial;
      ASSERT_EQ(std::memcmp(decoded.data(), expected.data(), decoded.size()), 0) << trial;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(different, 1000);
}

// Where every value of the page's last block would take the next escape, and there is none.
TEST(CodedPage, BlocksThatClaimMoreThanTheyHoldStayWithinTheirBounds) {
  for (const DType dtype : kTypes) {
    const MixedPage page = page_of_type(gaussian_weights(kCodedBlockBytes, dtype, 2), dtype);
    const CodedBytes coded = encoded_alike(page);
    const GuardedBytes damaged(coded.bytes.size()), decoded(page.bytes.size());
    std::ranges::copy(coded.bytes, damaged.data());
    std::fill(damaged.data() + coded_directory_bytes(1), damaged.data() + damaged.size(), std::byte{0});
    for (const CodedIsa isa : coder_isas()) EXPECT_TRUE(decode_damaged(damaged, coded.size, decoded, isa));
  }
}

}  // namespace
}  // namespace computron::testing
