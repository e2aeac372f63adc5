#include "computron/model/shard_layout.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "tests/support/plain_format.h"

namespace computron {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRowBlock = 64;
constexpr int kLargestPanel = 512;

const PlainFormat kFormat;

struct Sizes {
  int layers = 2, hidden = 24, heads = 3, ffn = 150, vocab = 700, positions = 30;
};

ModelConfig make_config(const Sizes& s) {
  ModelConfig c;
  c.architecture = "test";
  c.layers = s.layers;
  c.hidden = s.hidden;
  c.heads = c.kv_heads = s.heads;
  c.head_dim = 8;
  c.ffn = s.ffn;
  c.vocab = s.vocab;
  c.max_positions = s.positions;
  return c;
}

struct Case {
  ModelConfig config = make_config({});
  MeshShape mesh;
  int stage = 0;
  WeightTypes types = DType::kF32;
  std::size_t spare_bytes = 0;  // of a page, beyond the largest block

  ShardPlan plan() const { return ShardPlan::make(config, mesh, stage); }
  ShardLayout layout() const {
    const ShardPlan p = plan();
    return ShardLayout::make(p, kFormat, types, ShardLayout::largest_block_bytes(p, kFormat, types) + spare_bytes);
  }
};

std::size_t bytes_of(const ShardTensor& t, int rows) {
  if (t.role == TensorRole::kGemmWeight) return kFormat.panel_bytes(rows, t.columns, t.type);
  return static_cast<std::size_t>(rows) * t.columns * sizeof(float);
}

int block_of(const ShardTensor& t) {
  return t.role == TensorRole::kGemmWeight ? kRowBlock : t.role == TensorRole::kTable ? 1 : t.rows;
}

// --- What holds for every layout ---------------------------------------------------------------------------------

void expect_rows_placed_once(const ShardLayout& layout) {
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    int row = 0;
    for (const PanelPlace& panel : layout.tensors[i].panels) {
      EXPECT_EQ(panel.row_begin, row) << layout.plan.tensors[i].name;
      EXPECT_GT(panel.rows, 0) << layout.plan.tensors[i].name;
      row += panel.rows;
    }
    EXPECT_EQ(row, layout.plan.tensors[i].rows) << layout.plan.tensors[i].name;
  }
}

void expect_panels_well_cut(const ShardLayout& layout) {
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const ShardTensor& t = layout.plan.tensors[i];
    for (const PanelPlace& panel : layout.tensors[i].panels) {
      EXPECT_TRUE(panel.rows % block_of(t) == 0 || panel.row_begin + panel.rows == t.rows) << t.name;
      EXPECT_TRUE(t.role != TensorRole::kGemmWeight || panel.rows <= kLargestPanel) << t.name;
      EXPECT_EQ(panel.offset % 64, 0u) << t.name;
      ASSERT_LT(panel.page, layout.used_bytes.size()) << t.name;
      EXPECT_LE(panel.offset + bytes_of(t, panel.rows), layout.used_bytes[panel.page]) << t.name;
    }
    EXPECT_TRUE(t.role != TensorRole::kVector || layout.tensors[i].panels.size() == 1) << t.name;
  }
}

// Within a page panels follow each other with less than a cache line between; what is used ends with the last.
void expect_pages_packed(const ShardLayout& layout) {
  std::map<PageId, std::map<std::size_t, std::size_t>> pages;  // page → offset → bytes
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    if (layout.plan.tensors[i].same_as >= 0) continue;
    for (const PanelPlace& panel : layout.tensors[i].panels) {
      const auto bytes = bytes_of(layout.plan.tensors[i], panel.rows);
      EXPECT_TRUE(pages[panel.page].emplace(panel.offset, bytes).second) << "two panels at one place";
    }
  }
  ASSERT_EQ(pages.size(), layout.used_bytes.size());
  for (const auto& [page, panels] : pages) {
    std::size_t end = 0;
    for (const auto& [offset, bytes] : panels) {
      EXPECT_EQ(offset, round_up(end, std::size_t{64})) << "page " << page;
      end = offset + bytes;
    }
    EXPECT_EQ(layout.used_bytes[page], end) << "page " << page;
    EXPECT_LE(end, layout.page_bytes) << "page " << page;
  }
}

// Behind the embedding, a page begins with tensor i.
bool ends_embedding(const std::vector<ShardTensor>& tensors, std::size_t i) {
  const auto embeds = [](const ShardTensor& t) { return t.name.starts_with("embedding."); };
  return i > 0 && embeds(tensors[i - 1]) && !embeds(tensors[i]);
}

// A panel ends at its tensor's end, at 512 rows, or where not even one more block fits the page.
void expect_no_room_given_away(const ShardLayout& layout) {
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const ShardTensor& t = layout.plan.tensors[i];
    if (t.same_as >= 0) continue;
    for (const PanelPlace& panel : layout.tensors[i].panels) {
      const int rows_left = t.rows - panel.row_begin - panel.rows;
      if (rows_left == 0 || (t.role == TensorRole::kGemmWeight && panel.rows == kLargestPanel)) continue;
      const std::size_t next = round_up(panel.offset + bytes_of(t, panel.rows), std::size_t{64});
      EXPECT_GT(next + bytes_of(t, block_of(t)), layout.page_bytes) << t.name << " row " << panel.row_begin;
    }
    const PanelPlace& first = layout.tensors[i].panels.front();
    if (first.offset > 0 || first.page == 0) continue;  // a fresh page: the first block fitted the one before no more
    if (ends_embedding(layout.plan.tensors, i)) continue;
    const std::size_t open = round_up(layout.used_bytes[first.page - 1], std::size_t{64});
    EXPECT_GT(open + bytes_of(t, block_of(t)), layout.page_bytes) << t.name;
  }
}

// Pages are first visited in their order, uses never go back, and every use is somebody's.
void expect_uses_in_execution_order(const ShardLayout& layout) {
  PageUse last = 0;
  std::vector<bool> used(layout.uses.size(), false);
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    for (const PanelPlace& panel : layout.tensors[i].panels) {
      ASSERT_LT(panel.use, layout.uses.size());
      EXPECT_EQ(layout.uses[panel.use], panel.page) << layout.plan.tensors[i].name;
      EXPECT_GE(panel.use, last) << layout.plan.tensors[i].name;
      last = panel.use;
      used[panel.use] = true;
    }
  }
  EXPECT_THAT(used, ::testing::Each(true));
  for (PageId page = 0; page < static_cast<PageId>(layout.pages()); ++page) EXPECT_EQ(layout.uses[page], page);
  for (std::size_t use = 1; use < layout.uses.size(); ++use) EXPECT_NE(layout.uses[use], layout.uses[use - 1]);
}

// Groups follow each other over all panels; each lies in few pages, and its next panel lies in one too many.
void expect_groups_well_cut(const ShardLayout& layout) {
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const std::vector<PanelPlace>& panels = layout.tensors[i].panels;
    int next = 0;
    for (const PanelGroup& group : layout.tensors[i].groups) {
      EXPECT_EQ(group.first, next) << layout.plan.tensors[i].name;
      EXPECT_GT(group.count, 0) << layout.plan.tensors[i].name;
      next += group.count;
      std::set<PageId> pages;
      for (int panel = group.first; panel < next; ++panel) pages.insert(panels[panel].page);
      EXPECT_LE(pages.size(), std::size_t{ShardLayout::kGroupPages}) << layout.plan.tensors[i].name;
      if (next < static_cast<int>(panels.size())) pages.insert(panels[next].page);
      EXPECT_TRUE(next == static_cast<int>(panels.size()) || pages.size() > ShardLayout::kGroupPages)
          << layout.plan.tensors[i].name << " could have fewer groups";
    }
    EXPECT_EQ(next, static_cast<int>(panels.size())) << layout.plan.tensors[i].name;
  }
}

// What one operation of a pass binds: the uses of a group, and those of a norm's weight and bias together.
struct Operation {
  std::set<PageUse> uses;
  std::int64_t release_through = -1;
};

std::vector<Operation> operations_of(const ShardLayout& layout) {
  std::vector<Operation> operations;
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const std::string& name = layout.plan.tensors[i].name;
    const bool joins = name.ends_with("norm.bias");
    for (const PanelGroup& group : layout.tensors[i].groups) {
      if (!joins) operations.emplace_back();
      for (int panel = group.first; panel < group.first + group.count; ++panel) {
        operations.back().uses.insert(layout.tensors[i].panels[panel].use);
      }
      operations.back().release_through = group.release_through;
    }
  }
  return operations;
}

// A use is over after an operation exactly when no later one wants it or an earlier use.
void expect_uses_end_in_time(const ShardLayout& layout) {
  const std::vector<Operation> operations = operations_of(layout);
  std::set<PageUse> wanted;
  for (auto operation = operations.rbegin(); operation != operations.rend(); ++operation) {
    const auto first = wanted.empty() ? static_cast<std::int64_t>(layout.uses.size()) : *wanted.begin();
    EXPECT_EQ(operation->release_through, first - 1);
    wanted.insert(operation->uses.begin(), operation->uses.end());
  }
}

void expect_releases_are_those_of_a_pass(const ShardLayout& layout) {
  ASSERT_EQ(layout.over_before.size(), layout.uses.size());
  std::int64_t over = -1;
  std::set<PageUse> seen;
  for (const Operation& operation : operations_of(layout)) {
    for (const PageUse use : operation.uses) {
      const bool first = seen.insert(use).second;
      EXPECT_TRUE(!first || layout.over_before[use] == over) << "use " << use << " after " << over;
    }
    over = operation.release_through;
  }
  EXPECT_EQ(seen.size(), layout.uses.size());
}

void expect_bytes_add_up(const ShardLayout& layout) {
  std::size_t used = 0;
  for (const std::size_t bytes : layout.used_bytes) used += bytes;
  EXPECT_EQ(layout.total_used_bytes(), used);
  EXPECT_EQ(layout.total_used_bytes() + layout.waste_bytes(), layout.pages() * layout.page_bytes);
}

void expect_sound(const ShardLayout& layout) {
  ASSERT_EQ(layout.tensors.size(), layout.plan.tensors.size());
  expect_rows_placed_once(layout);
  expect_panels_well_cut(layout);
  expect_pages_packed(layout);
  expect_no_room_given_away(layout);
  expect_uses_in_execution_order(layout);
  expect_groups_well_cut(layout);
  expect_uses_end_in_time(layout);
  expect_releases_are_those_of_a_pass(layout);
  expect_bytes_add_up(layout);
}

Case random_case(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto from = [&random](int least, int most) { return least + static_cast<int>(random() % (most - least + 1)); };
  Case c;
  c.config = make_config({.layers = from(1, 4),
                          .hidden = from(1, 40),
                          .heads = from(1, 5),
                          .ffn = from(1, 1500),
                          .vocab = from(1, 6000),
                          .positions = from(1, 200)});
  c.config.kv_heads = c.config.heads;
  c.config.heads *= from(1, 2);
  c.config.positions = random() % 2 == 0 ? PositionKind::kLearned : PositionKind::kRotary;
  c.config.norm_position = random() % 2 == 0 ? NormPosition::kPre : NormPosition::kPost;
  c.config.norm_bias = random() % 2 == 0;
  c.config.mlp_bias = random() % 2 == 0;
  c.config.gated_mlp = random() % 2 == 0;
  c.config.tied_head = random() % 2 == 0;
  c.config.final_norm = random() % 2 == 0;
  c.mesh = {.tp = from(1, c.config.heads), .pp = from(1, c.config.layers)};
  c.stage = from(0, c.mesh.pp - 1);
  c.types = random() % 2 == 0 ? DType::kF32 : DType::kBF16;
  const int sizes[] = {0, from(0, 200), from(0, 20000), 1 << 22};
  c.spare_bytes = static_cast<std::size_t>(sizes[random() % 4]);
  return c;
}

TEST(ShardLayout, RandomModelsAreLaidOutSoundly) {
  int tied = 0, single_page = 0, grouped = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const ShardLayout layout = random_case(seed).layout();
    expect_sound(layout);
    if (HasFailure()) return;
    tied += layout.uses.size() > layout.used_bytes.size();
    single_page += layout.pages() == 1;
    grouped += std::any_of(layout.tensors.begin(), layout.tensors.end(),
                           [](const TensorLayout& tensor) { return tensor.groups.size() > 1; });
  }
  EXPECT_GT(tied, 30) << "the seeds miss layouts whose pages are visited twice";
  EXPECT_GT(grouped, 30) << "the seeds miss tensors of several groups";
  EXPECT_GT(single_page, 30) << "the seeds miss layouts of one page";
}

// --- Single cases -----------------------------------------------------------------------------------------------

TEST(ShardLayout, PagesFillFromTheEmbeddingOn) {
  const ModelConfig config = make_config({.ffn = 24, .vocab = 130});  // blocks of 64, 64 and 2 rows of 24 floats
  const ShardLayout layout =
      ShardLayout::make(ShardPlan::make(config, {}, 0), kFormat, DType::kF32, 2 * 64 * 24 * 4 + 100);
  const std::vector<PanelPlace>& panels = layout.tensors[0].panels;
  ASSERT_EQ(panels.size(), 2u);
  EXPECT_EQ(panels[0].rows, 128);
  EXPECT_EQ(panels[1].rows, 2);
  EXPECT_EQ(panels[1].page, 1u);
  EXPECT_EQ(layout.used_bytes[0], 128u * 24 * 4);
}

TEST(ShardLayout, APanelHasAtMost512Rows) {
  Case c;
  c.config.vocab = 1300;
  c.spare_bytes = 1 << 20;
  const ShardLayout layout = c.layout();
  std::vector<int> rows;
  for (const PanelPlace& panel : layout.tensors[0].panels) rows.push_back(panel.rows);
  EXPECT_THAT(rows, ElementsAre(512, 512, 276));
}

class JoiningFormat : public PlainFormat {
 public:
  bool joins_pages() const override { return true; }
};

// Where a weight goes on on the next page, its panels in neighbouring frames are one behind the other, to the byte.
TEST(ShardLayout, AWeightThatGoesOnFillsItsPageWhereTheDeviceJoinsPages) {
  Case c;
  c.config = make_config({.layers = 40, .hidden = 80, .heads = 10, .ffn = 600, .vocab = 3000});
  const ShardPlan plan = c.plan();
  const JoiningFormat joining;
  const std::size_t page = std::size_t{1200} * kRowBlock * sizeof(float) * 2;  // of every block a multiple
  const ShardLayout layout = ShardLayout::make(plan, joining, c.types, page);
  const ShardLayout apart = ShardLayout::make(plan, kFormat, c.types, page);
  expect_rows_placed_once(layout);
  expect_panels_well_cut(layout);
  int cuts = 0, gaps_apart = 0;
  const auto gaps = [&](const ShardLayout& of, auto&& each) {
    for (std::size_t i = 0; i < of.tensors.size(); ++i) {
      const ShardTensor& t = of.plan.tensors[i];
      if (t.role != TensorRole::kGemmWeight) continue;
      const std::vector<PanelPlace>& panels = of.tensors[i].panels;
      for (std::size_t p = 1; p < panels.size(); ++p) {
        if (panels[p].page == panels[p - 1].page) continue;
        EXPECT_EQ(panels[p].offset, 0u) << t.name;
        each(panels[p - 1].offset + bytes_of(t, panels[p - 1].rows) != page);
      }
    }
  };
  gaps(layout, [&](bool gap) {
    ++cuts;
    EXPECT_FALSE(gap);
  });
  gaps(apart, [&](bool gap) { gaps_apart += gap ? 1 : 0; });
  EXPECT_GT(cuts, 5);
  EXPECT_GT(gaps_apart, 0) << "the case has nothing to close";
  EXPECT_LE(layout.pages(), apart.pages() + 1);
}

TEST(ShardLayout, ATiedHeadVisitsTheEmbeddingsPagesAgain) {
  Case c;
  c.config.vocab = 1500;
  const ShardLayout layout = c.layout();
  const TensorLayout& embedding = layout.tensors.front();
  const TensorLayout& head = layout.tensors.back();
  ASSERT_GT(embedding.panels.size(), 3u);
  ASSERT_EQ(head.panels.size(), embedding.panels.size());
  for (std::size_t i = 0; i < head.panels.size(); ++i) {
    EXPECT_EQ(head.panels[i].page, embedding.panels[i].page);
    EXPECT_EQ(head.panels[i].offset, embedding.panels[i].offset);
    EXPECT_GE(head.panels[i].use, static_cast<PageUse>(layout.pages()));
  }
  EXPECT_EQ(layout.uses.size(), layout.used_bytes.size() + embedding.panels.back().use + 1);
}

// So added words move no layer.
TEST(ShardLayout, APageBeginsBehindTheEmbedding) {
  Case c;
  c.spare_bytes = 1 << 15;
  c.config.tied_head = false;
  const ShardLayout layout = c.layout();
  c.config.vocab += 3;
  const ShardLayout other = c.layout();
  std::size_t layers = 0;
  while (!layout.plan.tensors[layers].name.starts_with("layers.")) ++layers;
  EXPECT_EQ(layout.tensors[layers].panels.front().offset, 0u);
  const PageId by = other.tensors[layers].panels.front().page - layout.tensors[layers].panels.front().page;
  for (std::size_t i = layers; layout.plan.tensors[i].name.starts_with("layers."); ++i) {
    ASSERT_EQ(layout.tensors[i].panels.size(), other.tensors[i].panels.size());
    for (std::size_t p = 0; p < layout.tensors[i].panels.size(); ++p) {
      EXPECT_EQ(layout.tensors[i].panels[p].page + by, other.tensors[i].panels[p].page);
      EXPECT_EQ(layout.tensors[i].panels[p].offset, other.tensors[i].panels[p].offset);
    }
  }
}

TEST(ShardLayout, AStageOfOnePageIsUsedOnce) {
  Case c;
  c.mesh.pp = 2;
  c.stage = 1;
  c.config.tied_head = false;
  c.spare_bytes = 1 << 22;
  const ShardLayout layout = c.layout();
  EXPECT_THAT(layout.uses, ElementsAre(0u));
  EXPECT_THAT(layout.over_before, ElementsAre(-1));
  for (std::size_t i = 0; i + 1 < layout.tensors.size(); ++i)
    EXPECT_EQ(layout.tensors[i].groups.front().release_through, -1);
  EXPECT_EQ(layout.tensors.back().groups.front().release_through, 0);
}

TEST(ShardLayout, AGroupLiesInFourPages) {
  Case c;
  c.config.vocab = 11 * kRowBlock;
  c.config.hidden = c.config.ffn = 24;  // a page holds one block of any weight
  const ShardLayout layout = c.layout();
  const TensorLayout& embedding = layout.tensors[0];
  ASSERT_EQ(embedding.panels.size(), 11u);
  std::vector<int> counts;
  std::vector<std::int64_t> over;
  for (const PanelGroup& group : embedding.groups) {
    counts.push_back(group.count);
    over.push_back(group.release_through);
  }
  EXPECT_THAT(counts, ElementsAre(4, 4, 3));
  EXPECT_EQ(over[0], 3);
  EXPECT_EQ(over[1], 7);
  EXPECT_THAT(std::vector(layout.over_before.begin(), layout.over_before.begin() + 9),
              ElementsAre(-1, -1, -1, -1, 3, 3, 3, 3, 7));
}

// A norm needs both at once: the page of its weight stays until the page of its bias has come.
TEST(ShardLayout, ANormBindsItsWeightAndBiasTogether) {
  Case c;
  c.config = make_config({.layers = 1, .hidden = 1000, .heads = 1, .ffn = 1, .vocab = 1, .positions = 1});
  c.config.norm_bias = true;
  ShardLayout layout;
  for (c.spare_bytes = 0; c.spare_bytes < 64 * 4000; c.spare_bytes += 2000) {  // until the two lie on two pages
    layout = c.layout();
    for (std::size_t i = 0; i + 1 < layout.tensors.size(); ++i) {
      const std::string& name = layout.plan.tensors[i].name;
      const PageUse use = layout.tensors[i].panels[0].use, next = layout.tensors[i + 1].panels[0].use;
      if (!name.ends_with("norm.weight") || use == next) continue;
      EXPECT_EQ(layout.over_before[next], static_cast<std::int64_t>(use) - 1) << name;
      return;
    }
  }
  FAIL() << "no norm lies on two pages";
}

// All ranks of a stage share one page table: whatever slice a rank holds fits the rows that were placed.
TEST(ShardLayout, TheLayoutHasRoomForEveryRanksSlice) {
  Case c;
  c.mesh = {.tp = 2, .pp = 1};
  const ShardLayout layout = c.layout();
  for (const ShardTensor& t : layout.plan.tensors) {
    for (const TensorPart& part : t.parts) {
      for (int rank = 0; rank < 2; ++rank) {
        const std::vector<PartSlice> slices = part.slices(rank);
        const std::size_t slice = slices.empty() ? 0 : slices.back().row + slices.back().end - slices.back().begin;
        EXPECT_LE(slice, static_cast<std::size_t>(part.transposed ? t.columns : t.rows - part.row)) << t.name;
      }
    }
  }
}

std::string refusal(const ShardPlan& plan, std::size_t page_bytes) {
  try {
    ShardLayout::make(plan, kFormat, DType::kF32, page_bytes);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ShardLayout, APageTooSmallIsRefusedByNameAndSize) {
  ModelConfig config = make_config({});
  const ShardPlan plan = ShardPlan::make(config, {}, 0);
  const std::size_t needed = ShardLayout::largest_block_bytes(plan, kFormat, DType::kF32);
  ASSERT_EQ(needed, 64u * 150 * 4) << "the rows of mlp.down";
  EXPECT_THAT(refusal(plan, needed - 1),
              AllOf(HasSubstr("layers.0.mlp.down.weight"), HasSubstr(fmt::format("{} bytes", needed)),
                    HasSubstr(fmt::format("page of {} bytes", needed - 1)), HasSubstr("--page-size")));
  EXPECT_EQ(refusal(plan, needed), "");
}

TEST(ShardLayout, PagesOfNoGivenSizeHoldWholeBlocksOfAllWeights) {
  constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;
  EXPECT_EQ(default_page_bytes(8 * kMiB, 100, 1), 8 * kMiB);
  EXPECT_EQ(default_page_bytes(8 * kMiB, kMiB + 64, 1), 16 * kMiB + 4 * kKiB) << "16 of the largest block, in 4 KiB";
  EXPECT_EQ(default_page_bytes(64 * kMiB, 512 * kKiB, 512 * kKiB), 64 * kMiB);
  EXPECT_EQ(common_block(128 * kKiB, 448 * kKiB), 896 * kKiB) << "depths of 4096 and 14336";
  EXPECT_EQ(default_page_bytes(64 * kMiB, 448 * kKiB, 896 * kKiB), 73 * 896 * kKiB);
  EXPECT_EQ(common_block(4096 * 3, 4096 * 1031 * 2), 0u) << "no page is a multiple of 24 MiB";
  EXPECT_EQ(common_block(0, 64), 0u) << "whatever comes behind it";
  EXPECT_EQ(default_page_bytes(8 * kMiB, 100, 0), 8 * kMiB);
  const PlainFormat apart;
  const JoiningFormat joining;
  Case c;
  EXPECT_EQ(ShardLayout::common_block_bytes(c.plan(), apart, c.types), 1u);
  EXPECT_EQ(ShardLayout::common_block_bytes(c.plan(), joining, c.types), std::size_t{64} * 24 * 4 * 25)
      << "depths of 24 and 150";
}

TEST(ShardLayout, AVectorMustFitAPageWhole) {
  ModelConfig config = make_config({.layers = 1, .hidden = 4, .heads = 1, .ffn = 3000, .vocab = 10, .positions = 4});
  config.head_dim = 2;
  const ShardPlan plan = ShardPlan::make(config, {.tp = 1, .pp = 1}, 0);
  EXPECT_EQ(ShardLayout::largest_block_bytes(plan, kFormat, DType::kF32), 64u * 3000 * 4) << "mlp.down is larger still";
  EXPECT_EQ(ShardLayout::largest_block_bytes(plan, kFormat, DType::kBF16), 64u * 3000 * 2);
  EXPECT_THAT(refusal(plan, 3000 * 4 - 1), HasSubstr("layers.0.mlp.up.bias (12000 bytes)"));
}

TEST(ShardLayout, NarrowWeightsTakeHalfTheRoomAndVectorsTheSame) {
  Case c;
  c.spare_bytes = 1 << 22;
  const ShardLayout wide = c.layout();
  c.types = DType::kBF16;
  const ShardLayout narrow = c.layout();
  std::size_t wide_bytes = 0, narrow_bytes = 0;
  for (std::size_t i = 0; i < wide.plan.tensors.size(); ++i) {
    const ShardTensor& t = wide.plan.tensors[i];
    if (t.same_as >= 0) continue;
    wide_bytes += bytes_of(t, t.rows);
    narrow_bytes += bytes_of(narrow.plan.tensors[i], t.rows);
  }
  EXPECT_LT(narrow_bytes, wide_bytes);
  EXPECT_GE(narrow.total_used_bytes(), narrow_bytes);
  EXPECT_LT(narrow.total_used_bytes(), narrow_bytes + 64 * narrow.tensors.size());
  EXPECT_LT(wide.total_used_bytes(), wide_bytes + 64 * wide.tensors.size());
}

const ShardTensor& tensor_called(const ShardPlan& plan, const std::string& name) {
  return *std::ranges::find(plan.tensors, name, &ShardTensor::name);
}

// Groups of 32 along the inner units: 150 of them are not cut at all, 192 over 2 ranks are cut between groups, and over
// 4 ranks into 48, which are groups of 16.
TEST(ShardLayout, GroupsAreAsLongAsTheCutOverRanksAllows) {
  const WeightType stored(DType::kBF16, DType::kInt8, DType::kF16, 32);
  for (const auto& [ffn, tp, group] :
       {std::tuple(150, 1, 32), std::tuple(192, 1, 32), std::tuple(192, 2, 32), std::tuple(192, 4, 16)}) {
    ModelConfig config = make_config({.hidden = 128, .heads = 4, .ffn = ffn});
    config.head_dim = 32;
    const ShardPlan plan = ShardPlan::make(config, {.tp = tp, .pp = 1}, 0);
    const ShardLayout layout =
        ShardLayout::make(plan, kFormat, stored, ShardLayout::largest_block_bytes(plan, kFormat, stored));
    EXPECT_EQ(tensor_called(layout.plan, "layers.0.mlp.down.weight").type.group, group) << ffn << " over " << tp;
    EXPECT_EQ(tensor_called(layout.plan, "layers.0.mlp.up.weight").type, stored) << "is cut between rows";
  }
}

TEST(ShardLayout, AScaleForAWholeRowIsOfAllRanks) {
  const WeightType stored(DType::kBF16, DType::kFp8, DType::kF32, WeightType::kWholeRow);
  ModelConfig config = make_config({.hidden = 24, .heads = 3, .ffn = 150});
  const ShardPlan plan = ShardPlan::make(config, {.tp = 3, .pp = 1}, 0);
  const ShardLayout layout =
      ShardLayout::make(plan, kFormat, stored, ShardLayout::largest_block_bytes(plan, kFormat, stored));
  EXPECT_EQ(tensor_called(layout.plan, "layers.0.mlp.down.weight").type, stored);
}

TEST(ShardLayout, ACutThatWouldMakeGroupsTooShortIsRefused) {
  const WeightType stored(DType::kBF16, DType::kInt8, DType::kF16, 32);
  ModelConfig config = make_config({.hidden = 128, .heads = 4, .ffn = 320});
  config.head_dim = 32;
  const ShardPlan plan = ShardPlan::make(config, {.tp = 4, .pp = 1}, 0);  // 80 units a rank
  EXPECT_EQ(WeightTypes(stored).of(tensor_called(plan, "layers.0.mlp.down.weight"), plan).group, 16);
  const auto refusal_of = [&](int ffn, int tp, int group, bool reproducible) {
    config.ffn = ffn;
    const ShardPlan narrow = ShardPlan::make(config, {.tp = tp, .pp = 1}, 0, reproducible);
    WeightType type = stored;
    type.group = group;
    try {
      ShardLayout::largest_block_bytes(narrow, kFormat, type);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal_of(160, 4, 32, false), AllOf(HasSubstr("layers.0.mlp.down.weight: tp 4"), HasSubstr("into 8")));
  EXPECT_THAT(refusal_of(578, 2, 272, false), HasSubstr("into 17 values of one, which is no multiple of 16"));
  EXPECT_THAT(refusal_of(144, 2, 48, false), HasSubstr("into 24"));
  EXPECT_THAT(refusal_of(192, 1, 32, true), AllOf(HasSubstr("--reproducible at tp 1"), HasSubstr("into 8")));
}

}  // namespace
}  // namespace computron
