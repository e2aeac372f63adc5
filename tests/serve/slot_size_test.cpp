// Slots of adapters of any rank: what they take beside what lies in them.
#include "computron/serve/slot_size.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/plain_format.h"

namespace computron {
namespace {

const PlainFormat kFormat;

ModelConfig three_layers() {
  ModelConfig c;
  c.architecture = "test";
  c.layers = 3;
  c.hidden = 256;
  c.heads = c.kv_heads = 32;
  c.head_dim = 8;
  c.ffn = 1024;
  c.vocab = 700;
  c.max_positions = 30;
  return c;
}

class SlotSize : public testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Types, SlotSize, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

// Adapters of any rank, in a job whose pages are far larger than they are, or about as large.
TEST_P(SlotSize, SlotsOfAdaptersAreLittleLargerThanWhatLiesInThem) {
  std::vector<ShardPlan> plans;
  for (const int rank : {4, 16, 33, 64}) {
    ModelConfig config = three_layers();
    for (int layer = 0; layer < 3; ++layer) {
      for (const char* module : {"attention.query", "attention.value", "mlp.up", "mlp.down"}) {
        config.adapter_ranks[fmt::format("layers.{}.{}", layer, module)] = rank;
      }
    }
    for (int stage = 0; stage < 2; ++stage) plans.push_back(ShardPlan::make(config, {.tp = 1, .pp = 2}, stage));
  }
  const WeightTypes types = GetParam();
  const ShardPlan base = ShardPlan::make(three_layers(), {.tp = 1, .pp = 2}, 0);
  const auto use = [&](std::size_t slot_bytes) {
    SlotUse all;
    for (const ShardPlan& plan : plans) all += slot_use(plan, kFormat, types, 8 << 20, slot_bytes);
    return all;
  };
  int sizes_with_slots = 0;
  for (const std::size_t page_bytes : {std::size_t{256} << 10, std::size_t{1} << 20, std::size_t{8} << 20}) {
    const std::size_t slot_bytes = default_slot_bytes(page_bytes, use);
    std::size_t slots = 0, used = 0, in_pages = 0;
    for (const ShardPlan& plan : plans) {
      const ShardLayout layout = ShardLayout::make(plan, kFormat, types, page_bytes, slot_bytes);
      for (const PageId page : layout.adapter_pages) used += layout.used_bytes[page];
      for (const PageId page : layout.adapter_pages) {
        EXPECT_EQ(layout.kind_of(page), slot_bytes > 0 ? FrameKind::kSlot : FrameKind::kWhole);
        EXPECT_LE(layout.used_bytes[page], slot_bytes > 0 ? slot_bytes : page_bytes);
      }
      slots += static_cast<std::size_t>(layout.pages(FrameKind::kSlot));
      in_pages += ShardLayout::make(plan, kFormat, types, page_bytes).adapter_pages.size() * page_bytes;
      EXPECT_EQ(layout.waste_bytes() + layout.total_used_bytes(), layout.frame_bytes());
    }
    EXPECT_EQ(slot_bytes == 0, 4 * in_pages <= 5 * used) << "where pages do, there are none";
    if (slot_bytes == 0) continue;
    ++sizes_with_slots;
    EXPECT_TRUE(slot_bytes < page_bytes && slot_bytes >= kSmallestSlot && slot_bytes % 64 == 0) << slot_bytes;
    EXPECT_LE(4 * slots * slot_bytes, 5 * used);
    // The base's pages are what they are without an adapter.
    const ShardLayout alone = ShardLayout::make(base, kFormat, types, page_bytes, slot_bytes);
    EXPECT_EQ(alone.pages(FrameKind::kSlot), 0);
    EXPECT_EQ(ShardLayout::make(plans[0], kFormat, types, page_bytes, slot_bytes).pages(FrameKind::kWhole),
              alone.pages());
  }
  EXPECT_GE(sizes_with_slots, 2);
  const auto none = [](std::size_t) { return SlotUse{}; };
  EXPECT_EQ(default_slot_bytes(1 << 20, none), 0u);
  EXPECT_EQ(default_slot_bytes(8192, use), 0u) << "pages so small do";
  const auto too_large = [](std::size_t slot) { return SlotUse{1, 9000, slot >= 10000}; };
  EXPECT_EQ(default_slot_bytes(40000, too_large), 19968u) << "no block fits a smaller one";
}

}  // namespace
}  // namespace computron
