#include "computron/sched/slot_division.h"

#include <gtest/gtest.h>

#include <deque>
#include <limits>

namespace computron::test {
namespace {

class Models {
 public:
  // Pages in frames and in slots, on each stage.
  void add(const std::vector<std::pair<int, int>>& stages, bool pinned = false) {
    ModelShape& shape = shapes_.emplace_back();
    shape.pinned = pinned;
    for (const auto& [whole, slots] : stages) {
      ShardLayout& layout = layouts_.emplace_back();
      layout.slot_bytes = 100;
      layout.used_bytes.resize(static_cast<std::size_t>(whole) + static_cast<std::size_t>(slots), 1);
      for (int slot = 0; slot < slots; ++slot) layout.adapter_pages.push_back(static_cast<PageId>(whole + slot));
      shape.layouts.push_back(&layout);
    }
  }
  SlotDemand demand() const { return slot_demand(shapes_); }

 private:
  std::deque<ShardLayout> layouts_;
  std::vector<ModelShape> shapes_;
};

void expect(const DividedPool& pool, int frames, int slots) {
  EXPECT_EQ(pool.frames, frames);
  EXPECT_EQ(pool.adapter_slots, slots);
}

TEST(SlotDemand, IsOfTheStageThatHasMost) {
  Models models;
  models.add({{10, 0}, {12, 0}});
  models.add({{10, 3}, {12, 4}});
  models.add({{10, 5}, {12, 2}});
  models.add({{10, 2}, {12, 1}}, /*pinned=*/true);
  const SlotDemand demand = models.demand();
  EXPECT_EQ(demand.all, 10);
  EXPECT_EQ(demand.least, 7);
  EXPECT_EQ(demand.frames, 12);
}

TEST(DividedPool, HasSlotsOfAllAdaptersInWholePages) {
  expect(divide_pool(100, {.all = 30, .least = 3, .frames = 20}, 1000, 100), 97, 30);
  expect(divide_pool(100, {.all = 31, .least = 3, .frames = 20}, 1000, 100), 96, 31);
}

TEST(DividedPool, GivesSlotsHalfOfWhatIsToSpare) {
  expect(divide_pool(30, {.all = 1000, .least = 3, .frames = 20}, 1000, 100), 25, 50);
  expect(divide_pool(31, {.all = 1000, .least = 3, .frames = 20}, 1000, 100), 26, 50);
}

// One adapter beside the pinned ones, whatever that leaves.
TEST(DividedPool, HasRoomForOneAdapter) {
  expect(divide_pool(21, {.all = 1000, .least = 25, .frames = 20}, 1000, 100), 18, 25);
  expect(divide_pool(2, {.all = 1000, .least = 25, .frames = 20}, 1000, 100), -1, 25);
  expect(divide_pool(-2, {.all = 1000, .least = 1, .frames = 20}, 1000, 100), -3, 1);
}

// As a profile written by hand may have them: nothing overflows.
TEST(DividedPool, CountsWhatNoPoolHas) {
  constexpr int kMost = std::numeric_limits<int>::max();
  constexpr std::int64_t kPetabyte = std::int64_t{1} << 50;
  expect(divide_pool(2, {.all = 1, .least = 1, .frames = 1}, 1000, kPetabyte), -kMost, 1);
  expect(divide_pool(2, {.all = 1 << 14, .least = 1 << 14, .frames = 1}, 1000, kPetabyte), 2 - kMost, 1 << 14);
  expect(divide_pool(2, {.all = kPetabyte, .least = kPetabyte, .frames = 1}, 1000, 1), -kMost, kMost);
}

TEST(DividedPool, HasNoneWithoutAdapters) {
  expect(divide_pool(21, {.all = 0, .least = 0, .frames = 20}, 1000, 100), 21, 0);
  expect(divide_pool(21, {.all = 0, .least = 0, .frames = 20}, 1000, 0), 21, 0);
}

}  // namespace
}  // namespace computron::test
