#include "computron/plan/page_recut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "computron/base/digest.h"
#include "tests/plan/virtual_job.h"

namespace computron::test {
namespace {

using testing::ElementsAre;

// Four pages of 100, 100, 60 and 100 bytes, of which the first comes again at the end.
ShardLayout tied() {
  ShardLayout layout;
  layout.page_bytes = 100;
  layout.used_bytes = {100, 100, 60, 100};
  layout.uses = {0, 1, 2, 3, 0};
  layout.over_before = {-1, 0, 1, 2, 3};
  return layout;
}

void expect_sound(const ShardLayout& layout, std::size_t bytes) {
  EXPECT_EQ(layout.total_used_bytes(), bytes);
  ASSERT_EQ(layout.uses.size(), layout.over_before.size());
  for (std::size_t use = 0; use < layout.uses.size(); ++use) {
    EXPECT_LT(layout.uses[use], layout.used_bytes.size());
    EXPECT_GE(layout.over_before[use], -1);
    EXPECT_LT(layout.over_before[use], static_cast<std::int64_t>(use));
    if (use > 0) {
      EXPECT_GE(layout.over_before[use], layout.over_before[use - 1]);
    }
  }
  for (PageId page = 0; page < layout.used_bytes.size(); ++page) {
    EXPECT_LE(layout.used_bytes[page], layout.page_bytes);
    EXPECT_NE(std::ranges::find(layout.uses, page), layout.uses.end()) << page;
  }
}

TEST(Recut, IntoSmallerPages) {
  const ShardLayout cut = recut(tied(), 50);
  expect_sound(cut, 360);
  EXPECT_THAT(cut.used_bytes, ElementsAre(50, 50, 50, 50, 50, 50, 50, 10));
  EXPECT_THAT(cut.uses, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 0, 1));  // page 5 holds the ends of two old ones
  EXPECT_THAT(cut.over_before, ElementsAre(-1, -1, 1, 1, 3, 3, 4, 4, 7, 7));
}

TEST(Recut, IntoLargerPages) {
  const ShardLayout cut = recut(tied(), 200);
  expect_sound(cut, 360);
  EXPECT_THAT(cut.used_bytes, ElementsAre(200, 160));
  EXPECT_THAT(cut.uses, ElementsAre(0, 1, 0));
  EXPECT_THAT(cut.over_before, ElementsAre(-1, 0, 1));
}

TEST(Recut, LinkBytesGoWithTheBytes) {
  ShardLayout layout = tied();
  EXPECT_TRUE(recut(layout, 50).link_bytes.empty());
  layout.link_bytes = {70, 100, 30, 80};
  EXPECT_THAT(recut(layout, 50).link_bytes, ElementsAre(35, 35, 50, 50, 25, 37, 40, 8));
  EXPECT_THAT(recut(layout, 200).link_bytes, ElementsAre(170, 110));
  layout.link_bytes = {33, 99, 60, 1};
  for (const std::size_t page_bytes : {1, 7, 64, 100, 1000}) {
    const ShardLayout cut = recut(layout, page_bytes);
    EXPECT_EQ(cut.total_link_bytes(), 193u) << page_bytes;
    for (PageId page = 0; page < cut.used_bytes.size(); ++page) EXPECT_LE(cut.link_bytes[page], cut.used_bytes[page]);
  }
}

// Whatever adapter there is in between, and how much of it.
TEST(Recut, ABasesPagesAreTheSameWithAnyAdapter) {
  ShardLayout base = tied();
  for (std::uint64_t page = 0; page < 4; ++page) base.contents.push_back(digest128(std::as_bytes(std::span(&page, 1))));
  ShardLayout both = base;  // page 1 is the adapter's
  both.used_bytes.insert(both.used_bytes.begin() + 1, 70);
  both.contents.insert(both.contents.begin() + 1, digest128({}));
  both.adapter_pages = {1};
  both.uses = {0, 1, 2, 1, 3, 4, 0};
  both.over_before = {-1, 0, 1, 2, 3, 4, 5};
  for (const std::size_t page_bytes : {7, 50, 64, 100, 200, 1000}) {
    const ShardLayout of_base = recut(base, page_bytes), of_both = recut(both, page_bytes);
    const std::size_t pages = of_base.used_bytes.size();
    EXPECT_EQ(of_both.total_used_bytes(), 430u);
    ASSERT_EQ(of_both.used_bytes.size(), pages + (70 + page_bytes - 1) / page_bytes);
    for (std::size_t page = 0; page < pages; ++page) {
      EXPECT_EQ(of_both.used_bytes[page], of_base.used_bytes[page]) << page_bytes;
      EXPECT_EQ(of_both.contents[page], of_base.contents[page]) << page_bytes;
    }
    EXPECT_EQ(of_both.adapter_pages.front(), pages);
    EXPECT_EQ(of_both.adapter_pages.size(), of_both.used_bytes.size() - pages);
    expect_sound(of_both, 430);
  }
}

TEST(Recut, FullPagesOfTheSameSizeStayAsTheyAre) {
  const ShardLayout layout = virtual_layout(12, /*operation_pages=*/2), cut = recut(layout, layout.page_bytes);
  EXPECT_EQ(cut.used_bytes, layout.used_bytes);
  EXPECT_EQ(cut.uses, layout.uses);
  for (std::size_t use = 0; use < cut.uses.size(); ++use) EXPECT_GE(cut.over_before[use], layout.over_before[use]);
}

TEST(Recut, AnyLayoutIntoAnyPagesIsSound) {
  for (const int pages : {1, 3, 17, 64}) {
    for (const int together : {1, 4}) {
      ShardLayout layout = virtual_layout(pages, together);
      for (std::size_t p = 0; p < layout.used_bytes.size(); ++p) layout.used_bytes[p] -= p * 7919 % (kVirtualPage / 2);
      for (const std::size_t bytes : {kVirtualPage / 7, kVirtualPage / 2, kVirtualPage, 3 * kVirtualPage}) {
        expect_sound(recut(layout, bytes), layout.total_used_bytes());
      }
    }
  }
}

}  // namespace
}  // namespace computron::test
