#include "computron/placement/page_size.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <set>

#include "tests/requests/requests_support.h"

namespace computron {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kMiB = 1 << 20;

double uniform(std::mt19937& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

std::vector<TransferUnit> random_units(std::mt19937& random, std::size_t count) {
  std::vector<TransferUnit> units(count);
  for (TransferUnit& unit : units) unit = {uniform(random, 1e5, 2e7), uniform(random, 1e-6, 3e-3)};
  return units;
}

// Bit i of `cuts`: a group ends behind unit i.
std::vector<std::size_t> ends_of(std::uint32_t cuts, std::size_t units) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i + 1 < units; ++i) {
    if ((cuts >> i & 1) != 0) ends.push_back(i + 1);
  }
  ends.push_back(units);
  return ends;
}

TEST(BestGrouping, EqualsBruteForce) {
  std::mt19937 random(3);
  std::size_t several = 0;
  for (int instance = 0; instance < 400; ++instance) {
    const auto units = random_units(random, 1 + random() % 12);
    const CopyCosts costs{.copy_s = uniform(random, 0, 1e-3),
                          .bytes_per_s = uniform(random, 1e9, 2e10),
                          .event_s = uniform(random, 0, 5e-4)};
    double least_s = 1e9;
    for (std::uint32_t cuts = 0; cuts < std::uint32_t{1} << (units.size() - 1); ++cuts) {
      least_s = std::min(least_s, grouped_pass_s(units, ends_of(cuts, units.size()), costs));
    }
    const Grouping best = best_grouping(units, costs);
    EXPECT_NEAR(best.pass_s, least_s, 1e-12) << instance;
    EXPECT_NEAR(grouped_pass_s(units, best.ends, costs), best.pass_s, 1e-12) << instance;
    several += best.ends.size() > 1 && best.ends.size() < units.size() ? 1 : 0;
  }
  EXPECT_GT(several, 100u);  // where the answer is neither all together nor each alone
}

// facts of PipeSwitch's model: 42 units of 26 GB in all, over 12 GB/s.
TEST(BestGrouping, HardlyMattersWhereUnitsAreLarge) {
  const std::vector<TransferUnit> units(42, {26e9 / 42, .5 / 42});
  const CopyCosts costs{.copy_s = 1e-5, .bytes_per_s = 12e9, .event_s = 2e-5};
  std::vector<std::size_t> each(42);
  for (std::size_t i = 0; i < each.size(); ++i) each[i] = i + 1;
  const double alone_s = grouped_pass_s(units, each, costs), best_s = best_grouping(units, costs).pass_s;
  EXPECT_LE(best_s, alone_s);
  EXPECT_GT(best_s, .999 * alone_s);
  EXPECT_GT(grouped_pass_s(units, std::vector<std::size_t>{42}, costs), alone_s + .4);
}

TEST(BestGrouping, OfNothingIsNothing) {
  EXPECT_TRUE(best_grouping({}, {.bytes_per_s = 1}).ends.empty());
  EXPECT_THAT(best_grouping(std::vector<TransferUnit>{{1, 1}}, {.bytes_per_s = 1}).ends, ElementsAre(1));
}

ShardBytes raw(double bytes) { return {.bytes = bytes, .link_bytes = bytes}; }

// Of coded pages every second time.
TEST(PagedPass, IsThatOfItsPagesAsGroups) {
  std::mt19937 random(5);
  for (int instance = 0; instance < 200; ++instance) {
    const CopyCosts costs{.copy_s = uniform(random, 0, 1e-3),
                          .bytes_per_s = uniform(random, 1e9, 2e10),
                          .event_s = uniform(random, 0, 5e-4)};
    const double page = uniform(random, 1e5, 1e7), compute_s_per_byte = uniform(random, 1e-11, 1e-9);
    const double bytes = uniform(random, 1, 40) * page, link_share = instance % 2 == 0 ? 1 : uniform(random, 0.5, 1);
    std::vector<TransferUnit> pages;
    std::vector<std::size_t> ends;
    for (double left = bytes; left > 0; left -= page) {
      pages.push_back({link_share * std::min(left, page), std::min(left, page) * compute_s_per_byte});
      ends.push_back(pages.size());
    }
    EXPECT_NEAR(paged_pass_s({bytes, link_share * bytes}, page, compute_s_per_byte, costs),
                grouped_pass_s(pages, ends, costs), 1e-9);
  }
  EXPECT_EQ(paged_pass_s({0, 0}, 1, 1, {.bytes_per_s = 1}), 0);
  EXPECT_DOUBLE_EQ(paged_pass_s({20, 20}, 10, 1, {.bytes_per_s = 1}), 30);  // full pages alone
}

TEST(BestPageSize, IsTheBestOfItsCandidates) {
  std::mt19937 random(7);
  std::set<std::int64_t> chosen;
  for (int instance = 0; instance < 100; ++instance) {
    const CopyCosts costs{.copy_s = std::exp(uniform(random, std::log(1e-6), std::log(1e-2))),
                          .bytes_per_s = uniform(random, 1e9, 2e10),
                          .event_s = uniform(random, 0, 5e-4)};
    const std::vector<ShardBytes> shards = {raw(uniform(random, 1e6, 1e9)), raw(uniform(random, 1e7, 1e10))};
    const double compute_s_per_byte = uniform(random, 1e-11, 3e-10);
    const PageSizeChoice best = best_page_size(shards, compute_s_per_byte, costs, kMiB, 256 * kMiB);
    for (std::int64_t size = kMiB; size <= 256 * kMiB; size *= 2) {
      double sum_s = 0;
      for (const ShardBytes& shard : shards) sum_s += paged_pass_s(shard, double(size), compute_s_per_byte, costs);
      EXPECT_GE(sum_s, best.pass_s);
      chosen.insert(sum_s == best.pass_s ? size : 0);
    }
    EXPECT_TRUE(chosen.contains(best.page_bytes));
  }
  EXPECT_GT(chosen.size(), 6u);
}

TEST(BestPageSize, GrowsWithWhatACopyCosts) {
  const std::vector<ShardBytes> shards = {raw(2e9)};
  const auto size = [&](double copy_s) {
    return best_page_size(shards, 1e-10, {.copy_s = copy_s, .bytes_per_s = 1e10}, kMiB, 256 * kMiB).page_bytes;
  };
  EXPECT_EQ(size(0), kMiB);
  EXPECT_LT(size(1e-5), size(1e-3));
  EXPECT_LE(size(1e-3), size(1));
  EXPECT_EQ(size(100), 256 * kMiB);
}

TEST(BestPageSize, HoldsAtLeastWhatItMust) {
  const std::vector<ShardBytes> shards = {raw(2e9)};
  const CopyCosts costs{.copy_s = 0, .bytes_per_s = 1e10};
  EXPECT_EQ(best_page_size(shards, 1e-10, costs, 3 * kMiB, 256 * kMiB).page_bytes, 4 * kMiB);
  EXPECT_EQ(best_page_size(shards, 1e-10, costs, 300 * kMiB, 256 * kMiB).page_bytes, 512 * kMiB);
  // Pages larger than all shards are no better.
  EXPECT_EQ(best_page_size(std::vector{raw(3e6)}, 0, {.copy_s = 1, .bytes_per_s = 1e10}, kMiB, 256 * kMiB).page_bytes,
            4 * kMiB);
}

// Raw pages come as fast as they are computed with, so that what each copy costs by itself delays all that follows.
// Coded ones come faster, and only the first page is waited for.
TEST(BestPageSize, CountsWhatCodedPagesTakeOverTheLink) {
  const CopyCosts costs{.copy_s = 1e-5, .bytes_per_s = 1e10};
  const auto size = [&](double link_bytes) {
    return best_page_size(std::vector<ShardBytes>{{2e9, link_bytes}}, 1e-10, costs, kMiB, 256 * kMiB).page_bytes;
  };
  EXPECT_EQ(size(2e9), 16 * kMiB);
  EXPECT_EQ(size(1.4e9), kMiB);
}

TEST(BestPageSize, CostsThatCannotBeAreNamed) {
  const std::vector<ShardBytes> shards = {raw(1)};
  for (const CopyCosts& costs : {CopyCosts{0, 0, 0}, CopyCosts{-1, 1, 0}, CopyCosts{0, 1, NAN}}) {
    expect_error(ExitCode::kUsage, "cannot be", [&] { best_page_size(shards, 0, costs, 1, 1); });
    expect_error(ExitCode::kUsage, "cannot be", [&] { best_grouping({}, costs); });
  }
  expect_error(ExitCode::kUsage, "s a byte", [&] { best_page_size(shards, -1, {0, 1, 0}, 1, 1); });
}

}  // namespace
}  // namespace computron
