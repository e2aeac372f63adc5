#include "computron/serve/copies_in_flight.h"

#include <gtest/gtest.h>

namespace computron {
namespace {

TEST(CopiesInFlight, LandInOrderByTheirBytesInFrames) {
  CopiesInFlight copies;
  copies.add({.fetched = 3, .frame_bytes = 100, .link_bytes = 70});
  copies.add({.fetched = 1, .frame_bytes = 60, .link_bytes = 60});
  copies.add({.fetched = 3, .frame_bytes = 100, .link_bytes = 65});
  EXPECT_TRUE(copies.take_landed(0).empty());
  EXPECT_EQ(copies.landed_link_bytes(), 0u);
  const auto first = copies.take_landed(160);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].fetched, 3u);
  EXPECT_EQ(first[0].link_bytes, 70u);
  EXPECT_EQ(first[1].fetched, 1u);
  EXPECT_EQ(copies.landed_link_bytes(), 130u);
  EXPECT_TRUE(copies.take_landed(160).empty());
  EXPECT_EQ(copies.take_landed(260).size(), 1u);
  EXPECT_EQ(copies.landed_link_bytes(), 195u);
}

// A cache of several frames is several copies on the rank.
TEST(CopiesInFlight, CachesLandInParts) {
  CopiesInFlight copies;
  copies.add({.fetched = {}, .frame_bytes = 300, .link_bytes = 300});
  copies.add({.fetched = 0, .frame_bytes = 100, .link_bytes = 50});
  EXPECT_EQ(copies.take_landed(100).size(), 1u);
  EXPECT_EQ(copies.landed_link_bytes(), 100u);
  EXPECT_EQ(copies.take_landed(400).size(), 2u);
  EXPECT_EQ(copies.landed_link_bytes(), 350u);
}

// However far the ranks of a stage differ over their links, rank 0 sees both idle when all has landed.
TEST(CopiesInFlight, NothingIsLeftWhenAllHasLanded) {
  CopiesInFlight copies;
  std::size_t given = 0;
  for (std::size_t page = 1; page <= 1000; ++page) {
    given += 7 * page;
    copies.add({.fetched = 0, .frame_bytes = 10 * page, .link_bytes = 7 * page});
  }
  copies.take_landed(10 * 1000 * 1001 / 2);
  EXPECT_EQ(copies.landed_link_bytes(), given);
}

}  // namespace
}  // namespace computron
