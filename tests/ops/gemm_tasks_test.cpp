// How a GEMM of the CPU is cut: whatever the cut, each row of the weight meets each row of x once. And how attention
// is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <span>

#include "kernels/cpu/gemm.h"
#include "src/ops/cpu/tasks.h"

namespace computron::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::Ge;
using testing::Le;

constexpr int kBlock = kernels::kRowBlock;

// Of panels with as many rows.
class GemmTasks : public testing::Test {
 protected:
  std::vector<GemmTask> cut(const std::vector<int>& rows, const WeightType& type, Activations x, bool there,
                            int threads = 2) {
    panels_.clear();
    for (const int count : rows) panels_.push_back({.rows = count});
    std::vector<GemmTask> tasks = {{7, 7, 7, 7, 7}};
    cut_gemm({.panels = panels_, .in = x.columns, .type = type}, there, x, threads, tasks);
    return tasks;
  }
  static Activations x(int rows, int columns) { return {.rows = rows, .columns = columns, .dtype = DType::kF32}; }

  void expect_each_once(const std::vector<GemmTask>& tasks, int x_rows) const {
    std::size_t cells = 0, in_all = 0;
    for (std::size_t p = 0; p < panels_.size(); ++p) {
      std::vector<int> met(static_cast<std::size_t>(panels_[p].rows * x_rows));
      for (const GemmTask& task : tasks) {
        if (task.panel != static_cast<int>(p)) continue;
        ASSERT_EQ(task.row % kBlock, 0);
        for (int row = task.row; row < task.row + task.rows; ++row) {
          for (int m = task.x_row; m < task.x_row + task.x_rows; ++m) {
            ++met.at(static_cast<std::size_t>(row) * x_rows + m);
            ++cells;
          }
        }
      }
      EXPECT_TRUE(std::ranges::all_of(met, [](int times) { return times == 1; }));
      in_all += met.size();
    }
    EXPECT_EQ(cells, in_all);
  }

  std::vector<WeightPanel> panels_;
};

TEST_F(GemmTasks, MeetEachPairOfRowsOnce) {
  for (const bool there : {false, true}) {
    for (const int threads : {1, 2, 7}) {
      for (const int rows : {1, 17, 256, 257, 300, 1000}) {
        for (const int columns : {16, 384, 1536, 3072, 20000}) {
          SCOPED_TRACE(testing::Message() << there << ' ' << threads << ' ' << rows << ' ' << columns);
          expect_each_once(cut({192, 64, 100}, DType::kF32, x(rows, columns), there, threads), rows);
          expect_each_once(cut({1000, 700, 100}, DType::kF32, x(rows, columns), there, threads), rows);
        }
      }
    }
  }
}

// Reading it from the third cache for each piece of the weight took a fifth of a GEMM's time (rows of 384).
TEST_F(GemmTasks, KeepRowsOfXInTheSecondCache) {
  const std::vector<GemmTask> tasks = cut({1536}, DType::kF32, x(2048, 1536), /*there=*/true);
  EXPECT_GE(tasks.size(), 8u);
  for (const GemmTask& task : tasks) {
    EXPECT_EQ(task.rows, 1536);  // which pass a thread's rows of x as a whole
    EXPECT_LE(task.x_rows * 1536 * 4, 1 << 20);
  }
}

TEST_F(GemmTasks, OfMoreThreadsThanPartsOfXShareThem) {
  const std::vector<GemmTask> tasks = cut({1536}, DType::kF32, x(512, 384), /*there=*/true, /*threads=*/16);
  EXPECT_GE(tasks.size(), 16u);
  EXPECT_THAT(tasks, Each(Field(&GemmTask::x_rows, 256)));
}

TEST_F(GemmTasks, FollowThePanelsWhileTheyCome) {
  const std::vector<GemmTask> tasks = cut({512, 512, 512}, DType::kF32, x(2048, 1536), /*there=*/false);
  EXPECT_THAT(tasks, Each(Field(&GemmTask::x_rows, 2048)));
  EXPECT_TRUE(std::ranges::is_sorted(tasks, {}, &GemmTask::panel));
}

// Weights of a thread's next task have been asked for at the end of its last.
TEST_F(GemmTasks, OfFewRowsAreDealtSoThatTurnsOfAThreadAreNeighbours) {
  for (const int threads : {2, 3, 5}) {
    const std::vector<GemmTask> tasks = cut({4096, 4096, 4096}, DType::kBF16, x(8, 2048), /*there=*/true, threads);
    ASSERT_GE(tasks.size(), 8u);
    const auto place = [](const GemmTask& task) { return task.panel * 4096 + task.row; };
    for (std::size_t i = threads; i < tasks.size(); ++i) {
      const GemmTask& last = tasks[i - threads];
      EXPECT_EQ(place(tasks[i]), place(last) + last.rows) << threads << " threads, task " << i;
    }
  }
}

// A thread that finishes first waits for no more than the rest of a block.
TEST_F(GemmTasks, LastOnesAreHalvedDownToABlock) {
  for (const bool there : {false, true}) {
    const std::vector<GemmTask> tasks = cut({4096, 2048}, DType::kBF16, x(8, 2048), there, /*threads=*/3);
    EXPECT_EQ(tasks.front().rows, 512);
    EXPECT_TRUE(std::ranges::is_sorted(tasks, std::greater(), &GemmTask::rows));
    EXPECT_THAT(std::span(tasks).last(3), Each(Field(&GemmTask::rows, kBlock)));
    expect_each_once(tasks, 8);
  }
  // More rows of x than a call takes would be taken anew for each.
  EXPECT_THAT(cut({4096}, DType::kBF16, x(257, 65536), /*there=*/true), Each(Field(&GemmTask::rows, 512)));
  EXPECT_THAT(cut({4096}, DType::kBF16, x(8, 2048), /*there=*/true, /*threads=*/1), Each(Field(&GemmTask::rows, 512)));
}

// Expanding the weight again would cost more.
TEST_F(GemmTasks, OfQuantisedWeightsTakeWholeCalls) {
  const WeightType fp8(DType::kF32, DType::kFp8, DType::kBF16, 32);
  EXPECT_THAT(cut({1536}, fp8, x(2048, 1536), /*there=*/true), Each(Field(&GemmTask::x_rows, 2048)));
  EXPECT_THAT(cut({1536}, fp8, x(2048, 768), /*there=*/true), Each(Field(&GemmTask::x_rows, kernels::kMaxGemmRows)));
}

// A thread makes the integers of a row of x once, not for each task.
TEST_F(GemmTasks, OfIntegersTakeRowsOfACallOneAfterTheOther) {
  const WeightType int8(DType::kF32, DType::kInt8, DType::kBF16, 32);
  if (!kernels::multiplies_integers(int8)) GTEST_SKIP() << "a processor that multiplies values of codes";
  for (const int columns : {768, 8192}) {
    for (const int rows : {33, 97, 253, 256, 257, 300, 961, 1024}) {
      SCOPED_TRACE(testing::Message() << rows << ' ' << columns);
      const std::vector<GemmTask> tasks = cut({1536, 512}, int8, x(rows, columns), /*there=*/true);
      expect_each_once(tasks, rows);
      EXPECT_TRUE(std::ranges::is_sorted(tasks, {}, &GemmTask::x_row));
      const int least = rows <= kernels::kMaxGemmRows ? rows : 100;  // for whom the weight passes once more
      EXPECT_THAT(tasks, Each(Field(&GemmTask::x_rows, AllOf(Ge(least), Le(kernels::kMaxGemmRows)))));
    }
  }
  EXPECT_THAT(cut({1536}, int8, x(512, 2048), /*there=*/false), Each(Field(&GemmTask::x_rows, 512)));
}

TEST_F(GemmTasks, OfLongRowsTakeAllOfThem) {
  EXPECT_THAT(cut({1536}, DType::kF32, x(2048, 8192), /*there=*/true), Each(Field(&GemmTask::x_rows, 2048)));
}

// The most rows of a task; each row of each sequence is attended to once under each key/value head.
int most_rows(const AttentionShape& shape, const std::vector<int>& rows, int threads) {
  std::vector<SequenceRows> sequences;
  std::vector<std::vector<int>> met;
  for (const int count : rows) {
    sequences.push_back({.row = 0, .rows = count, .start = 0, .blocks = {}});
    met.emplace_back(static_cast<std::size_t>(count * shape.kv_heads));
  }
  std::vector<AttentionTask> tasks = {{7, 7, 7, 7, 7}};
  int most = 0;
  const bool whole = cut_attention(shape, sequences, threads, tasks);
  for (const AttentionTask& task : tasks) {
    most = std::max(most, task.rows);
    for (int head = task.kv_head; head < task.kv_head_end; ++head) {
      for (int row = task.row; row < task.row + task.rows; ++row) {
        ++met.at(static_cast<std::size_t>(task.sequence)).at(static_cast<std::size_t>(row) * shape.kv_heads + head);
      }
    }
  }
  for (const auto& times : met) EXPECT_THAT(times, Each(1));
  EXPECT_EQ(whole, most == *std::ranges::max_element(rows));
  return most;
}

TEST(AttentionTasks, HaveMoreQueriesWhereThereAreManyForEachThread) {
  const AttentionShape encoder{.heads = 12, .kv_heads = 12, .head_dim = 32};
  EXPECT_EQ(most_rows(encoder, {512, 100, 0, 3}, /*threads=*/2), 128);
  EXPECT_EQ(most_rows(encoder, {512, 100, 0, 3}, /*threads=*/16), 64);
  EXPECT_EQ(most_rows(encoder, {100}, /*threads=*/1), 100);
  EXPECT_EQ(most_rows(encoder, {1, 1}, /*threads=*/2), 1);
}

// While a thread attends under one head of an encoder it asks for the next one's rows, so a task has several heads.
TEST(AttentionTasks, OfAnEncoderHaveSeveralHeadsButEnoughAreLeftForAllThreads) {
  const std::vector<SequenceRows> many(8, {.row = 0, .rows = 128, .start = 0, .blocks = {}});
  AttentionShape shape{.heads = 12, .kv_heads = 12, .head_dim = 32};
  std::vector<AttentionTask> tasks;
  const auto most_heads = [&](std::span<const SequenceRows> sequences, int threads) {
    cut_attention(shape, sequences, threads, tasks);
    int most = 0;
    for (const AttentionTask& task : tasks) most = std::max(most, task.kv_head_end - task.kv_head);
    return most;
  };
  shape.causal = false;
  EXPECT_EQ(most_heads(many, /*threads=*/2), 4);
  EXPECT_EQ(most_heads(std::span(many).first(1), /*threads=*/2), 1);
  shape.causal = true;
  EXPECT_EQ(most_heads(many, /*threads=*/2), 1);
}

TEST(AttentionTasks, CountTheHeadsThatShareAKey) {
  const AttentionShape grouped{.heads = 32, .kv_heads = 8, .head_dim = 64};
  EXPECT_EQ(most_rows(grouped, {512}, /*threads=*/2), 32);
  EXPECT_EQ(most_rows(grouped, {40}, /*threads=*/8), 16);
}

}  // namespace
}  // namespace computron::test
