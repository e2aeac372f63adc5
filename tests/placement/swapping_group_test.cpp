#include "computron/placement/swapping_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>

namespace computron {
namespace {

constexpr std::int64_t kPage = 10;
const SwapCosts kCosts{.device_bytes = 8 * kPage, .page_bytes = kPage, .link_bytes_per_s = 20};  // half a second a page

// The same page by page: a stage has frames, pages are copied and computed with one after another.
class PageByPage {
 public:
  PageByPage(const std::vector<SwappingGroup::StageBytes>& models, const SwapCosts& costs)
      : costs_(costs), stages_(models[0].size()), link_(stages_) {
    for (std::uint32_t m = 0; m < models.size(); ++m) {
      pages_.emplace_back();
      resident_.emplace_back(stages_);
      ends_.emplace_back(stages_);
      for (std::size_t k = 0; k < stages_; ++k) {
        pages_[m].push_back(models[m][k] / costs.page_bytes);
        resident_[m][k] = std::min(pages_[m][k], free(k));
      }
      used_.push_front(m);
    }
  }

  std::vector<double> pass(std::uint32_t model, double now, const std::vector<double>& times,
                           std::vector<double>& clocks) {
    double time = now;
    for (std::size_t k = 0; k < stages_; ++k)
      time = clocks[k] = stage(model, k, now, std::max(time, clocks[k]), times[k]);
    used_.remove(model);
    used_.push_back(model);
    return clocks;
  }

 private:
  std::int64_t free(std::size_t k) const {
    std::int64_t sum = costs_.device_bytes / costs_.page_bytes;
    for (const auto& resident : resident_) sum -= resident[k];
    return sum;
  }

  double stage(std::uint32_t m, std::size_t k, double now, double start, double time_s) {
    double begin = std::max(now, link_[k]);
    const std::int64_t all = pages_[m][k], there = resident_[m][k];
    const std::int64_t frames = std::min(all, costs_.device_bytes / costs_.page_bytes);
    while (free(k) + resident_[m][k] < frames) begin = std::max(begin, evict_page(m, k));
    const double page_s = static_cast<double>(costs_.page_bytes) / costs_.link_bytes_per_s;
    double copied = begin, computed = start;
    for (std::int64_t page = 0; page < all; ++page) {
      if (page >= there) computed = std::max(computed, copied += page_s);
      computed += time_s / static_cast<double>(all);
    }
    if (there < all) link_[k] = copied;
    resident_[m][k] = frames;
    return ends_[m][k] = computed;
  }

  double evict_page(std::uint32_t for_model, std::size_t k) {
    for (const std::uint32_t m : used_) {
      if (m == for_model || resident_[m][k] == 0) continue;
      --resident_[m][k];
      return ends_[m][k];
    }
    ADD_FAILURE() << "nothing to evict";
    return 0;
  }

  SwapCosts costs_;
  std::size_t stages_;
  std::vector<double> link_;
  std::vector<std::vector<std::int64_t>> pages_, resident_;
  std::vector<std::vector<double>> ends_;
  std::list<std::uint32_t> used_;
};

TEST(SwappingGroup, EqualsASimulationPageByPage) {
  std::mt19937 random(17);
  const auto below = [&random](std::uint32_t n) { return static_cast<std::int64_t>(random() % n); };
  for (int job = 0; job < 200; ++job) {
    const auto stages = static_cast<std::size_t>(1 + below(3));
    std::vector<SwappingGroup::StageBytes> models(static_cast<std::size_t>(2 + below(5)));
    for (auto& model : models) {
      for (std::size_t k = 0; k < stages; ++k) model.push_back(kPage * (1 + below(10)));  // some exceed the memory
    }
    SwappingGroup group(models, kCosts);
    PageByPage pages(models, kCosts);
    std::vector<double> clocks(stages), ends(stages), expected(stages);
    double now = 0;
    for (int pass = 0; pass < 50; ++pass) {
      now += static_cast<double>(below(20)) / 4;
      const auto model = static_cast<std::uint32_t>(below(static_cast<std::uint32_t>(models.size())));
      std::vector<double> times(stages);
      for (double& time : times) time = static_cast<double>(1 + below(30)) / 8;
      group.predict(model, now, times, clocks, ends);
      group.commit(model, ends);
      expected = pages.pass(model, now, times, clocks);
      for (std::size_t k = 0; k < stages; ++k) {
        ASSERT_NEAR(ends[k], expected[k], 1e-9) << "job " << job << " pass " << pass << " stage " << k;
      }
    }
  }
}

// Two models of six pages where eight fit: two pages of the second are there.
TEST(SwappingGroup, TheLeastRecentlyUsedLosesItsLastPagesAndThePassTrailsTheCopy) {
  SwappingGroup group({{60}, {60}}, kCosts);
  EXPECT_EQ(group.resident_bytes(0, 0), 60);
  EXPECT_EQ(group.resident_bytes(1, 0), 20);
  EXPECT_EQ(group.missing_s(0), 0);
  EXPECT_EQ(group.missing_s(1), 2);
  const std::vector<double> slow = {6}, fast = {.6}, idle = {0};
  std::vector<double> ends(1);
  group.predict(1, 10, slow, idle, ends);
  EXPECT_DOUBLE_EQ(ends[0], 16);  // the copies of 2 s are hidden
  group.predict(1, 10, fast, idle, ends);
  EXPECT_DOUBLE_EQ(ends[0], 12.1);   // the last page comes at 12
  EXPECT_EQ(group.missing_s(1), 2);  // nothing has happened yet
  group.commit(1, ends);
  EXPECT_EQ(group.swaps(), 1u);
  EXPECT_EQ(group.swapped_bytes(), 40);
  EXPECT_EQ(group.resident_bytes(0, 0), 20);
  EXPECT_EQ(group.missing_s(1), 0);
  // The frames of model 1 are free at 12.1, and its link at 12.
  group.predict(0, 11, fast, ends, ends);
  EXPECT_DOUBLE_EQ(ends[0], 12.1 + 2 + .1);
}

// The same six pages of which eight fit, where 70 % of each crosses the link.
TEST(SwappingGroup, CodedPagesTakeLessOfTheLinkAndAsMuchMemory) {
  SwappingGroup group({{60}, {60}}, kCosts, {{42}, {42}});
  EXPECT_EQ(group.resident_bytes(1, 0), 20);
  EXPECT_DOUBLE_EQ(group.missing_s(1), 0.7 * 2);
  const std::vector<double> fast = {.6}, idle = {0};
  std::vector<double> ends(1);
  group.predict(1, 10, fast, idle, ends);
  EXPECT_DOUBLE_EQ(ends[0], 10 + 0.7 * 2 + .1);
  group.commit(1, ends);
  EXPECT_DOUBLE_EQ(group.swapped_bytes(), 0.7 * 40);
  EXPECT_EQ(group.resident_bytes(0, 0), 20);
}

TEST(SwappingGroup, IsNeededWhereAStageDoesNotHoldAll) {
  EXPECT_FALSE(SwappingGroup::is_needed({{40, 10}, {40, 70}}, kCosts));
  EXPECT_TRUE(SwappingGroup::is_needed({{40, 10}, {41, 10}}, kCosts));
  EXPECT_TRUE(SwappingGroup::is_needed({{10, 40}, {10, 41}}, kCosts));
  EXPECT_FALSE(SwappingGroup::is_needed({}, kCosts));
}

// Of twelve pages eight stay, so that four are copied in each pass.
TEST(SwappingGroup, WhatExceedsTheMemoryIsCopiedInEachPass) {
  SwappingGroup group({{120}, {10}}, kCosts);
  std::vector<double> ends(1), clocks = {0};
  const std::vector<double> times = {1.2};
  for (int pass = 0; pass < 3; ++pass) {
    group.predict(0, 0, times, clocks, ends);
    EXPECT_DOUBLE_EQ(ends[0], 2 * (pass + 1) + .1);
    group.commit(0, ends);
    clocks = ends;
  }
  EXPECT_EQ(group.swaps(), 3u);
  EXPECT_EQ(group.swapped_bytes(), 120);
}

}  // namespace
}  // namespace computron
