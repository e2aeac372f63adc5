// Where the GPU's kernels find things: runs of rows, fragments of products, splits of keys, candidates of a row.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/sample.h"
#include "src/ops/cuda/attention_plan.h"
#include "src/ops/cuda/panel_runs.h"
#include "src/ops/cuda/weight_format.h"
#include "tests/ops/ops_fixture.h"

namespace computron::testing {
namespace {

using namespace kernels::cuda;

class NeverReached : public Event {
 public:
  bool query() const override { return false; }
};

// ---- runs of panels

TEST(PanelRuns, PanelsOfAPageMergeAndPagesDoNot) {
  const std::vector<std::byte> memory(1000);
  const std::byte* at = memory.data();
  const NeverReached first, second;
  const std::vector<WeightPanel> panels = {{at, &first, 0, 64},
                                           {at + 128, &first, 64, 64},    // behind it
                                           {at + 300, &first, 128, 64},   // a gap
                                           {at + 428, &second, 192, 64},  // behind it, but of another page
                                           {at + 556, &second, 256, 10}};
  const auto runs = merge_panels(std::span<const WeightPanel>(panels), 2);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].rows, 128);
  EXPECT_EQ(runs[1].rows, 64);
  EXPECT_EQ(runs[2].rows, 74);
  EXPECT_EQ(runs[2].row_begin, 192);
  EXPECT_EQ(runs[2].ready, &second);
}

TEST(PanelRuns, PanelsThatAreThereMergeAcrossPages) {
  const std::vector<std::byte> memory(1000);
  const std::byte* at = memory.data();
  const std::vector<WeightPanel> panels = {
      {at, nullptr, 0, 64}, {at + 128, nullptr, 64, 16}, {at + 160, nullptr, 80, 32}, {at + 300, nullptr, 112, 16}};
  const auto runs = merge_panels(std::span<const WeightPanel>(panels), 2);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].rows, 112);
  EXPECT_EQ(runs[1].row_begin, 112);
}

TEST(PanelRuns, EveryRowAndEveryTileIsFound) {
  const std::vector<std::byte> memory(1);
  std::vector<PanelRun> runs;
  int row = 64;
  for (const int rows : {64, 128, 7, 512, 1}) {
    runs.push_back({memory.data(), nullptr, row, rows});
    row += rows;
  }
  const RowRuns found = kernel_runs(runs);
  EXPECT_EQ(found.with_row(63), nullptr);
  EXPECT_EQ(found.with_row(row), nullptr);
  std::vector<int> covered(static_cast<std::size_t>(row));
  for (int tile = 0; tile < found.tiles; ++tile) {
    const RowRun& run = found.with_tile(tile);
    const int first = (tile - run.first_tile) * kTileRows;
    ASSERT_GE(first, 0);
    ASSERT_LT(first, run.rows);
    for (int r = first; r < std::min(run.rows, first + kTileRows); ++r) {
      ++covered[static_cast<std::size_t>(run.row_begin + r)];
      EXPECT_EQ(found.with_row(run.row_begin + r), &run);
    }
  }
  for (int r = 64; r < row; ++r) EXPECT_EQ(covered[static_cast<std::size_t>(r)], 1) << r;
  EXPECT_THROW(kernel_runs(std::vector<PanelRun>(RowRuns::kMax + 1)), Error);
}

TEST(CudaWeights, LieRowByRowWhateverTheSource) {
  const CudaWeightFormat format;
  constexpr int kRows = 70, kIn = 130;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto values = random_floats(kRows * kIn, 1, dtype);
    Floats transposed(values.size()), padded = values;
    for (int i = 0; i < kRows * kIn; ++i) transposed[i % kIn * kRows + i / kIn] = values[i];
    padded.resize(80 * kIn);  // whole blocks of 16 rows
    std::vector<std::byte> straight(format.panel_bytes(kRows, kIn, dtype)), from_transposed(straight);
    format.pack(straight.data(), kIn, dtype, 0, kRows, 0, kIn, bytes_of(values, dtype).data(), kIn, 1);
    format.pack(from_transposed.data(), kIn, dtype, 0, kRows, 0, kIn, bytes_of(transposed, dtype).data(), 1, kRows);
    EXPECT_EQ(straight, bytes_of(padded, dtype));
    EXPECT_EQ(from_transposed, straight);
  }
}

// ---- products of few rows

// acc [16, 8] += a · b as mma.cuh describes the fragments: registers of the 32 lanes, two elements each.
using Fragments = std::array<std::array<std::array<float, 2>, 4>, 32>;
void multiply(const Fragments& a, const Fragments& b, float (&acc)[16][8]) {
  float left[16][16], right[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 2; ++j) left[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + j] = a[lane][i][j];
    }
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) right[2 * t + 8 * i + j][g] = b[lane][i][j];
    }
  }
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      for (int k = 0; k < 16; ++k) acc[m][n] += left[m][k] * right[k][n];
    }
  }
}

// What skinny_kernel does with one tile, lane by lane. Small integers, so that no sum rounds.
TEST(SkinnyGemm, FragmentsCoverTheDepthOnce) {
  for (const int depth : {8, 40, 1024, 1032, 2080}) {
    const auto value = [](int r, int k) { return static_cast<float>((r * 7 + k * 3) % 11 - 5); };
    float acc[16][8] = {};
    for (int warp = 0; warp < kSkinnyWarps; ++warp) {
      for (int round = 0; round < skinny_rounds(depth); ++round) {
        for (int u = 0; u < kUnroll; ++u) {
          for (int half = 0; half < 2; ++half) {  // the two products of a K slice
            Fragments a{}, b{};
            for (int lane = 0; lane < 32; ++lane) {
              const int k = depth_of(warp, round, u, lane);
              if (k >= depth) continue;
              for (int j = 0; j < 2; ++j) {
                for (int i = 0; i < 2; ++i) {
                  const int place = k + 4 * half + 2 * i + j;
                  a[lane][2 * i][j] = value(lane / 4, place);
                  a[lane][2 * i + 1][j] = value(lane / 4 + 8, place);
                  b[lane][i][j] = value(lane / 4 + 50, place);
                }
              }
            }
            multiply(a, b, acc);
          }
        }
      }
    }
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 8; ++n) {
        float expected = 0;
        for (int k = 0; k < depth; ++k) expected += value(m, k) * value(n + 50, k);
        ASSERT_EQ(acc[m][n], expected) << "depth " << depth << ": " << m << ", " << n;
      }
    }
  }
}

// ---- attention

TEST(AttentionRows, SpansCoverWhatARowSees) {
  for (const int window : {0, 1, 37, 256, 300}) {
    for (const int position : {0, 1, 127, 128, 700, 1023, kManyKeys - 1, kManyKeys, 3 * kManyKeys + 7}) {
      const AttentionRow row{position, position + 1, 0};
      const int length = kv_split(row.keys);
      const Range seen = visible(row, window);
      int covered = 0, next = seen.begin;
      for (int split = 0; split < split_count(row.keys); ++split) {
        const Range part = in_split(seen, split, length);
        if (part.empty()) continue;
        EXPECT_EQ(part.begin, next);
        EXPECT_EQ(part.begin / length, split);
        EXPECT_EQ((part.end - 1) / length, split);
        EXPECT_GE(split, seen.begin / length) << "combine_kernel begins there";
        next = part.end;
        covered += part.size();
      }
      EXPECT_EQ(covered, window == 0 ? position + 1 : std::min(position + 1, window));
    }
  }
}

TEST(AttentionRows, AWindowReachesAheadWhereThereAreKeys) {
  for (const int window : {1, 9, 64, 700}) {
    for (const int position : {0, 5, 255, 599}) {
      const Range seen = visible(AttentionRow{position, 600, 0}, window);
      EXPECT_EQ(seen.begin, std::max(position - window + 1, 0));
      EXPECT_EQ(seen.end, std::min(position + window, 600));
    }
  }
}

TEST(AttentionRows, EveryElementOfAKeyHasOneLane) {
  for (const std::size_t bytes : {2, 4}) {
    for (const int head_dim : {1, 9, 20, 64, 80, 96, 112, 128, 160, 192, 256}) {
      for (const bool aligned : {false, true}) {
        const KeyPartition partition = key_partition(bytes, head_dim, aligned);
        std::vector<int> holders(static_cast<std::size_t>(head_dim));
        for (int lane = 0; lane < partition.lanes; ++lane) {
          for (int v = 0; v < partition.vectors; ++v) {
            const int first = element_of(partition.piece, partition.lanes, v, lane);
            for (int e = first; e < std::min(head_dim, first + partition.piece); ++e) ++holders[e];
          }
        }
        EXPECT_EQ(std::count(holders.begin(), holders.end(), 1), head_dim) << head_dim << " of " << bytes;
      }
    }
  }
}

TEST(AttentionRows, PartialResultsDoNotOverlap) {
  constexpr int kHeads = 3, kSpans = 5, kHeadDim = 20;
  std::vector<std::size_t> places;
  for (int i = 0; i < 4; ++i) {
    for (int h = 0; h < kHeads; ++h) {
      for (int s = 0; s < kSpans; ++s) places.push_back(partial_place(i, kHeads, h, kSpans, s, kHeadDim));
    }
  }
  for (std::size_t i = 1; i < places.size(); ++i) {
    EXPECT_EQ(places[i] - places[i - 1], static_cast<std::size_t>(partial_floats(kHeadDim)));
    EXPECT_EQ(places[i] % 4, 0u) << "16 bytes are read at once";
  }
}

// By head_dim, on GPUs of architecture 8.6, 8.9 and 12.0, of 8.0, and of 9.0.
TEST(AttentionPlan, TilesFitTheSharedMemoryOfABlock) {
  const auto keys_of = [](int shared_kib) {
    std::vector<int> keys;
    for (const int head_dim : {40, 64, 80, 128, 192, 256}) keys.push_back(prefill_keys(head_dim, shared_kib << 10));
    return keys;
  };
  EXPECT_EQ(keys_of(99), (std::vector{64, 64, 32, 32, 0, 0}));
  EXPECT_EQ(keys_of(163), (std::vector{64, 64, 64, 64, 32, 32}));
  EXPECT_EQ(keys_of(227), (std::vector{64, 64, 64, 64, 64, 64}));
}

TEST(AttentionPlan, EveryRowGoesOneWay) {
  const std::vector<std::uint32_t> blocks = {9, 4, 7, 1, 0, 3, 2, 8};
  const std::vector<SequenceRows> sequences = {{0, 1, 100, std::span(blocks).first(7)},  // decodes
                                               {1, 130, 0, std::span(blocks).first(8)},
                                               {131, 8, 20, std::span(blocks).first(2)}};
  for (const int tile_keys : {0, kFewTileKeys, kTileKeys}) {
    for (const bool causal : {false, true}) {
      const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 64, .causal = causal};
      const auto plan = AttentionPlan::make(shape.causal, sequences, 140, /*block_tokens=*/17, tile_keys);
      std::vector<int> visits(140);
      for (const int row : plan.row_ids) ++visits[static_cast<std::size_t>(row)];
      for (const QueryTile& tile : plan.tiles) {
        EXPECT_LE(tile.rows, kTileQueries);
        for (int r = 0; r < tile.rows; ++r) ++visits[static_cast<std::size_t>(tile.row + r)];
      }
      for (int r = 0; r < 140; ++r) EXPECT_EQ(visits[static_cast<std::size_t>(r)], 1) << r;
      EXPECT_EQ(plan.tiles.size(), tile_keys > 0 ? 2u : 0u) << "130 rows";
      EXPECT_EQ(plan.tile_keys, tile_keys);
      if (causal && tile_keys > 0) {
        EXPECT_EQ(plan.tiles.front().row, 1 + kTileQueries) << "the longest first";
      }
      EXPECT_EQ(plan.largest_block, 9u);
      EXPECT_EQ(plan.rows[0].position, 100);
      EXPECT_EQ(plan.rows[0].keys, 101);
      EXPECT_EQ(plan.rows[5].keys, causal ? 5 : 130);
      EXPECT_EQ(plan.rows[139].keys, 0) << "of no sequence";
      const AttentionRow last = plan.rows[138];
      EXPECT_EQ(plan.blocks[static_cast<std::size_t>(last.first_block + last.position / 17)], blocks[1]);
    }
  }
}

TEST(AttentionPlan, KnowsWhetherRowsSeeEachOther) {
  const std::vector<std::uint32_t> blocks(8);
  const auto one_row_each = [&](std::vector<SequenceRows> sequences) {
    return AttentionPlan::make(/*causal=*/true, sequences, 8, 16, kTileKeys).one_row_each;
  };
  EXPECT_TRUE(one_row_each({{0, 1, 20, blocks}, {1, 1, 3, blocks}}));
  EXPECT_FALSE(one_row_each({{0, 1, 20, blocks}, {1, 2, 3, blocks}}));
}

TEST(AttentionPlan, CountsTheSpansOfTheLongestRow) {
  const std::vector<std::uint32_t> blocks(kManyKeys / 16 + 1);
  const auto splits = [&](int start) {
    const std::vector<SequenceRows> one = {{0, 1, start, blocks}};
    return AttentionPlan::make(/*causal=*/true, one, 1, 16, kTileKeys).splits;
  };
  EXPECT_EQ(splits(0), 1);
  EXPECT_EQ(splits(kKvSplit - 1), 1);
  EXPECT_EQ(splits(kKvSplit), 2);
  EXPECT_EQ(splits(kManyKeys - 1), kManyKeys / kKvSplit);
  EXPECT_EQ(splits(kManyKeys), kManyKeys / kLongKvSplit + 1);
}

TEST(AttentionPlan, ClassesOfSplitsHoldThem) {
  AttentionPlan plan;
  std::vector<int> classes;
  for (plan.splits = 1; plan.splits <= 1000; ++plan.splits) {
    EXPECT_GE(plan.split_class(), plan.splits);
    EXPECT_LE(2 * plan.split_class(), 3 * plan.splits);
    if (classes.empty() || classes.back() != plan.split_class()) classes.push_back(plan.split_class());
  }
  EXPECT_EQ(classes, (std::vector{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}));
}

// ---- logits

TEST(Logits, SlicesHoldTheRealColumnsOnce) {
  for (const int slices : {1, 2, 8}) {
    for (const int real : {0, 1, 500, 4096, 4800}) {
      int next = 0;
      for (int s = 0; s < slices; ++s) {
        const Slice slice = slice_of(4800, {.first_token = 0, .real = real, .slices = slices}, s);
        EXPECT_EQ(slice.first, s * 4800 / slices);
        EXPECT_EQ(slice.real, std::clamp(real - slice.first, 0, 4800 / slices));
        next += slice.real;
      }
      EXPECT_EQ(next, real);
    }
  }
}

TEST(Logits, KeysSortAsNumbersDo) {
  const std::vector<float> ascending = {-INFINITY, -3e38f, -1.5f, -1e-40f, 0.0f, 1e-40f, 1.0f, 1.5f, 3e38f, INFINITY};
  for (std::size_t i = 1; i < ascending.size(); ++i) {
    EXPECT_LT(sort_key(ascending[i - 1]), sort_key(ascending[i])) << ascending[i];
    EXPECT_GT(candidate_key(ascending[i - 1], 0), candidate_key(ascending[i], 5)) << "larger first";
  }
  EXPECT_EQ(sort_key(-0.0f), sort_key(0.0f));
  EXPECT_EQ(sort_key(NAN), 0u);
  EXPECT_GT(sort_key(-INFINITY), 0u);
  EXPECT_LT(candidate_key(1.0f, 3), candidate_key(1.0f, 4)) << "of equals the smaller column";
  EXPECT_EQ(column_of(candidate_key(-2.5f, 151935)), 151935);
  EXPECT_LT(candidate_key(-INFINITY, std::numeric_limits<int>::max()), ~std::uint64_t{0}) << "an empty place is last";
}

TEST(Logits, PenaltiesAreTheHosts) {
  const SampleRow row{.repetition_penalty = 1.3f, .frequency_penalty = 0.7f, .presence_penalty = -0.2f};
  for (const float x : {-2.0f, 0.0f, 3.7f}) {
    for (const std::uint32_t generated : {0u, 1u, 5u}) {
      const float after = x > 0 ? x / 1.3f : x * 1.3f;
      const float n = static_cast<float>(generated) * 0.7f;
      EXPECT_EQ(penalised(x, generated, row), after - n - (generated > 0 ? -0.2f : 0.0f));
    }
  }
}

TEST(Logits, CandidatesSufficeWhereTheCpuSaysSo) {
  const auto row = [](int top_k, float top_p, float min_p, int whole) {
    return SampleRow{.top_k = top_k, .top_p = top_p, .min_p = min_p, .whole = whole};
  };
  EXPECT_TRUE(candidates_suffice(row(0, 0.9f, 0, 0), 500, 500, 0, 0, 1, 1)) << "all of the slice";
  EXPECT_TRUE(candidates_suffice(row(0, 0.9f, 0, 0), 0, 500, 0, 0, 1, 1)) << "no number among them";
  EXPECT_TRUE(candidates_suffice(row(1024, 0.9f, 0, 1), 1024, 5000, 0, 0, 1, 1));
  EXPECT_FALSE(candidates_suffice(row(1025, 0.9f, 0, 1), 1024, 5000, 0, 0, 1, 0));
  EXPECT_TRUE(candidates_suffice(row(0, 1, 0.1f, 1), 1024, 5000, -2.4f, 0, 1, 0)) << "log 0.1 is -2.3";
  EXPECT_FALSE(candidates_suffice(row(0, 1, 0.1f, 1), 1024, 5000, -2.2f, 0, 1, 0));
  EXPECT_TRUE(candidates_suffice(row(0, 0.9f, 0, 1), 1024, 5000, 0, 0, 2, 0.19)) << "a tenth may be left";
  EXPECT_FALSE(candidates_suffice(row(0, 0.9f, 0, 1), 1024, 5000, 0, 0, 2, 0.21));
  EXPECT_FALSE(candidates_suffice(row(0, 0.9f, 0, 0), 1024, 5000, 0, 0, 2, 0.19)) << "of a slice all but nothing";
}

}  // namespace
}  // namespace computron::testing
