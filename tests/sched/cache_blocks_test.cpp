#include "computron/sched/cache_blocks.h"

#include <gmock/gmock.h>

#include <numeric>

#include "computron/base/error.h"
#include "computron/sched/cache_forecast.h"

namespace computron {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kBlock = 4;

std::vector<TokenId> tokens(int count, TokenId first = 100) {
  std::vector<TokenId> list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), first);
  return list;
}

CacheBlocks make(int count, bool prefix_caching = true) {
  CacheBlocks cache(kBlock, prefix_caching);
  cache.resize(count);
  return cache;
}

std::vector<std::uint32_t> take(CacheBlocks& cache, int count) {
  std::vector<std::uint32_t> list;
  for (int i = 0; i < count; ++i) list.push_back(cache.allocate());
  return list;
}

// A sequence of these tokens has been computed, its full blocks are cached, and it is over.
void compute(CacheBlocks& cache, const std::vector<TokenId>& sequence) {
  const auto list = take(cache, ceil_div(static_cast<int>(sequence.size()), kBlock));
  cache.cache_full_blocks(list, sequence, 0, static_cast<int>(sequence.size()) / kBlock);
  cache.release(list);
}

TEST(CacheBlocks, AllocatesTheLowestFirstSoThatTheEndIsFreeSoonest) {
  CacheBlocks cache = make(4, false);
  EXPECT_THAT(take(cache, 3), ElementsAre(0, 1, 2));
  cache.release(std::vector<std::uint32_t>{2, 0});
  EXPECT_EQ(cache.end_of_used(), 2);
  EXPECT_THAT(take(cache, 2), ElementsAre(0, 2));
  EXPECT_EQ(cache.available(), 1);
  EXPECT_EQ(cache.end_of_used(), 3);
  EXPECT_THROW(cache.resize(2), Error);
  cache.resize(3);
  EXPECT_THROW(cache.allocate(), Error);
}

TEST(CacheBlocks, ReleasingWhatNobodyUsesIsAnError) {
  CacheBlocks cache = make(2, false);
  EXPECT_THROW(cache.release(std::vector<std::uint32_t>{1}), Error);
}

// What other rotary factors have made of the same tokens is something else.
TEST(CacheBlocks, FindsWhatHasTheSameRootOnly) {
  CacheBlocks cache = make(10);
  const std::vector<TokenId> sequence = tokens(9);
  const std::vector<std::uint32_t> plain = {cache.allocate(), cache.allocate()};
  cache.cache_full_blocks(plain, sequence, 0, 2, /*root=*/0);
  EXPECT_THAT(cache.find_prefix(sequence, /*root=*/1), SizeIs(0));
  const std::vector<std::uint32_t> other = {cache.allocate(), cache.allocate()};
  cache.cache_full_blocks(other, sequence, 0, 2, /*root=*/1);
  EXPECT_EQ(cache.acquire_prefix(sequence, /*root=*/0), plain);
  EXPECT_EQ(cache.acquire_prefix(sequence, /*root=*/1), other);
}

TEST(CacheBlocks, FindsFullBlocksWithEqualTokensAndEqualHistory) {
  CacheBlocks cache = make(10);
  compute(cache, tokens(11));  // two full blocks
  EXPECT_THAT(cache.acquire_prefix(tokens(9)), ElementsAre(0, 1));
  EXPECT_THAT(cache.acquire_prefix(tokens(8)), ElementsAre(0)) << "the last token is computed";
  std::vector<TokenId> other = tokens(12);
  other[1] = 7;
  EXPECT_THAT(cache.acquire_prefix(other), IsEmpty()) << "equal second block behind another first";
  EXPECT_EQ(cache.ref_count(0), 2);
  EXPECT_EQ(cache.ref_count(1), 1);
  EXPECT_EQ(cache.available(), 8);
}

TEST(CacheBlocks, CachesNothingWithoutPrefixCaching) {
  CacheBlocks cache = make(10, false);
  compute(cache, tokens(11));
  EXPECT_THAT(cache.acquire_prefix(tokens(11)), IsEmpty());
  EXPECT_EQ(cache.free(), 10);
}

TEST(CacheBlocks, EvictsCachedBlocksWhenNoneIsFreeTheLongestUnusedFirst) {
  CacheBlocks cache = make(6);
  compute(cache, tokens(8, 100));
  compute(cache, tokens(8, 200));
  compute(cache, tokens(8, 300));
  EXPECT_EQ(cache.free(), 0);
  cache.release(cache.acquire_prefix(tokens(9, 100)));  // used again
  const auto taken = take(cache, 3);
  EXPECT_THAT(cache.find_prefix(tokens(9, 200)), SizeIs(0));
  EXPECT_THAT(cache.find_prefix(tokens(9, 300)), SizeIs(1)) << "its end goes before its beginning";
  EXPECT_THAT(cache.find_prefix(tokens(9, 100)), SizeIs(2));
  cache.release(taken);
  EXPECT_EQ(cache.free(), 3);
}

TEST(CacheBlocks, TwoThatComputeTheSameAtOnceAreOneForThoseWhoFollow) {
  CacheBlocks cache = make(8);
  const std::vector<TokenId> sequence = tokens(12);
  const auto a = take(cache, 3), b = take(cache, 3);
  cache.cache_full_blocks(a, sequence, 0, 1);
  cache.cache_full_blocks(b, sequence, 0, 3);  // knows its first block as a's
  cache.release(b);
  const auto found = cache.acquire_prefix(tokens(13));
  EXPECT_THAT(found, ElementsAre(a[0], b[1], b[2]));
  cache.release(a);
  cache.release(found);
  EXPECT_EQ(cache.available(), 8);
  EXPECT_EQ(cache.free(), 5);
}

TEST(CacheBlocks, BlocksThatAreCutOffAreNotFound) {
  CacheBlocks cache = make(6);
  compute(cache, tokens(16));
  cache.resize(2);
  EXPECT_THAT(cache.acquire_prefix(tokens(17)), ElementsAre(0, 1));
  cache.resize(6);
  EXPECT_THAT(cache.find_prefix(tokens(17)), SizeIs(2));
  EXPECT_EQ(cache.free(), 4);
}

// Two that have 3 blocks and grow by 2, and one that has 1 and grows by 6: when the two are done, the third has 3.
TEST(CacheForecast, LooksAheadToTheTimeWhenMostIsUsed) {
  CacheForecast forecast;
  EXPECT_EQ(forecast.peak({1, 6}, 1), 7) << "alone";
  forecast.add({3, 2});
  forecast.add({3, 2});
  EXPECT_EQ(forecast.peak({1, 6}, 1), 3 + 2 + 3 + 2 + 1 + 2);
  EXPECT_EQ(forecast.peak({1, 6}, 0.5), 3 + 1 + 3 + 1 + 1 + 1) << "half of their growth";
  EXPECT_EQ(forecast.peak({1, 0}, 1), 10) << "it is done before they grow";
  forecast.add({1, 6});
  forecast.remove({3, 2});
  EXPECT_EQ(forecast.sum().blocks, 4);
  EXPECT_EQ(forecast.sum().growth, 8);
  EXPECT_EQ(forecast.peak({0, 0}, 1), 8);
}

}  // namespace
}  // namespace computron
