// Digests are what XXH3 says, those of pages by pieces, in parts or as a whole.
#include "computron/base/digest.h"

#define XXH_INLINE_ALL
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <random>
#include <vector>

#include "computron/base/error.h"

namespace computron {
namespace {

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Digest, IsThatOfXxh3) {
  EXPECT_EQ(digest64({}), 0x2D06800538D394C2u) << "of nothing, as the specification of XXH3 says";
  EXPECT_EQ(to_hex(digest128({})), "99aa06d3014798d86001c324468d497f");
}

// xxHash as its own header has it, in the oldest instructions.
std::uint64_t plain_digest(const void* bytes, std::size_t count) { return XXH3_64bits(bytes, count); }

std::uint64_t plain_page_digest(const std::vector<std::byte>& page) {
  std::vector<std::uint64_t> pieces;
  for (std::size_t at = 0; at < page.size(); at += 4096) {
    pieces.push_back(plain_digest(page.data() + at, std::min<std::size_t>(4096, page.size() - at)));
  }
  return plain_digest(pieces.data(), 8 * pieces.size());
}

constexpr std::size_t kLengths[] = {0,    1,    240,  241,    1024,    4095,      4096,
                                    4097, 8192, 8193, 12'288, 131'072, 1'000'003, (std::size_t{1} << 23) + 64};

TEST(PageDigest, IsThatOfTheDigestsOfItsPieces) {
  for (const std::size_t count : kLengths) {
    const std::vector<std::byte> page = random_bytes(count);
    EXPECT_EQ(page_digest(page), plain_page_digest(page)) << count;
  }
}

TEST(PageDigest, OfPartsIsThatOfTheWhole) {
  std::mt19937 random(1);
  for (const std::size_t count : kLengths) {
    const std::vector<std::byte> page = random_bytes(count);
    PageDigest digest;
    EXPECT_EQ(digest.value(), page_digest({}));
    for (std::size_t at = 0; at < count;) {
      const std::size_t some = std::min<std::size_t>(count - at, random() % 4 * kDigestPieceBytes);
      digest.add(std::span(page).subspan(at, some));
      at += some;
    }
    EXPECT_EQ(digest.value(), page_digest(page)) << count;
    EXPECT_EQ(digest.value(), page_digest(page)) << "asking changes nothing";
  }
}

TEST(PageDigest, RefusesPartsThatEndWithinAPiece) {
  const std::vector<std::byte> page = random_bytes(5000);
  PageDigest digest;
  digest.add(std::span(page).first(100));
  digest.add({});
  EXPECT_THROW(digest.add(std::span(page).subspan(100)), Error);
}

}  // namespace
}  // namespace computron
