// Digests of parts are those of the whole, and both are what XXH3 says.
#include "computron/base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

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

TEST(Digest, OfPartsIsThatOfTheWhole) {
  std::mt19937 random(1);
  for (const std::size_t count : {0, 1, 240, 241, 1024, 8192, 100'003}) {
    const std::vector<std::byte> bytes = random_bytes(count);
    Digest64 digest;
    EXPECT_EQ(digest.value(), digest64({}));
    for (std::size_t at = 0; at < count;) {
      const std::size_t some = std::min<std::size_t>(count - at, random() % 3000);
      digest.add(std::span(bytes).subspan(at, some));
      at += some;
    }
    EXPECT_EQ(digest.value(), digest64(bytes)) << count;
    EXPECT_EQ(digest.value(), digest64(bytes)) << "asking changes nothing";
  }
}

}  // namespace
}  // namespace computron
