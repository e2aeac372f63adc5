#include "src/runtime/shard_deal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace computron {
namespace {

using ::testing::ElementsAre;

Digest128 key(int number) {
  Digest128 key{};
  key[0] = static_cast<std::uint8_t>(number);
  return key;
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(ShardDeal, WhatOneRankWantsIsItsOwn) {
  const ShardDeal deal = deal_shards({{{key(1), 5}, {key(2), 7}, {key(1), 5}}, {{key(3), 9}}});
  EXPECT_EQ(deal.shards.size(), 3u);
  for (const auto& [of, shard] : deal.shards) {
    EXPECT_FALSE(shard.shared);
    EXPECT_EQ(shard.holder, of == key(3) ? 1 : 0);
  }
  EXPECT_THAT(deal.segment_bytes, ElementsAre(0, 0));
}

TEST(ShardDeal, SharedOnesGoToWhoHasLeastToLoad) {
  const std::vector<WantedShard> both = {{key(1), 4 * kMiB}, {key(2), 3 * kMiB}, {key(3), 3 * kMiB}};
  std::vector<WantedShard> more = both;
  more.push_back({key(9), 5 * kMiB});
  const ShardDeal deal = deal_shards({more, both});
  EXPECT_EQ(deal.shards.at(key(9)).holder, 0);  // has 5
  EXPECT_EQ(deal.shards.at(key(1)).holder, 1);  // has 4
  EXPECT_EQ(deal.shards.at(key(2)).holder, 1);  // has 7
  EXPECT_EQ(deal.shards.at(key(3)).holder, 0);  // has 8
  EXPECT_THAT(deal.segment_bytes, ElementsAre(4 * kMiB, 8 * kMiB));
}

// Every key has one holder that wants it, and places in a segment do not overlap.
TEST(ShardDeal, GivesEachItsPlace) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<WantedShard>> wanted(1 + random() % 5);
    for (auto& shards : wanted) {
      for (int count = static_cast<int>(random() % 6); count > 0; --count) {
        const int number = static_cast<int>(random() % 8);
        shards.push_back({key(number), (number + 1) * 700'000u});
      }
    }
    const ShardDeal deal = deal_shards(wanted);
    std::map<std::pair<int, std::size_t>, std::size_t> ends;  // by holder and begin
    for (const auto& [of, shard] : deal.shards) {
      const auto wants = [&, k = of](const WantedShard& one) { return one.key == k; };
      const auto bytes = std::ranges::find_if(wanted[shard.holder], wants);
      ASSERT_NE(bytes, wanted[shard.holder].end());
      const auto ranks =
          std::ranges::count_if(wanted, [&](const auto& shards) { return std::ranges::any_of(shards, wants); });
      EXPECT_EQ(shard.shared, ranks > 1);
      if (!shard.shared) continue;
      EXPECT_EQ(shard.offset % kSegmentAlignment, 0u);
      EXPECT_LE(shard.offset + bytes->bytes, deal.segment_bytes[shard.holder]);
      EXPECT_TRUE(ends.emplace(std::pair(shard.holder, shard.offset), shard.offset + bytes->bytes).second);
    }
    for (auto it = ends.begin(); it != ends.end(); ++it) {
      const auto next = std::next(it);
      if (next != ends.end() && next->first.first == it->first.first) {
        EXPECT_LE(it->second, next->first.second);
      }
    }
  }
}

}  // namespace
}  // namespace computron
