// What a low-rank adapter adds to a product, against sums in double precision, and what its sums depend on.
#include <fmt/format.h>

#include <cmath>

#include "tests/ops/ops_fixture.h"

namespace computron::testing {
namespace {

class LowRankTest : public OpsTest {
 protected:
  Ops& ops() { return bench_.ops(); }
  Stream& stream() { return bench_.stream(); }

  void SetUp() override {
    if (!ops().computes_adapters()) GTEST_SKIP() << "this device computes no adapters";
  }

  // A [rows, rank] in panels of these numbers of rows.
  Table a_of(const Floats& values, int rank, const std::vector<int>& panel_rows, DType dtype = DType::kF32) {
    return table(values, rank, panel_rows, dtype);
  }

  // B [rows, rank], each panel in blocks of rows; what fills the last one is NaN, which nothing may come from.
  Table b_of(const Floats& values, int rank, const std::vector<int>& panel_rows, DType dtype = DType::kF32) {
    Floats blocks;
    int first = 0;
    for (const int rows : panel_rows) {
      for (int begin = 0; begin < rows; begin += kLowRankBlock) {
        for (int k = 0; k < rank; ++k) {
          for (int row = begin; row < begin + kLowRankBlock; ++row) {
            const auto at = static_cast<std::size_t>(first + row) * static_cast<std::size_t>(rank) + k;
            blocks.push_back(row < rows ? values[at] : std::nanf(""));
          }
        }
      }
      first += rows;
    }
    return table(blocks, rank, panel_rows, dtype);
  }

  // x [rows, in] × A, scaled: [rows, rank].
  Floats sums(const Floats& x, int rows, int in, const Table& a, int rank, DType dtype = DType::kF32,
              float factor = 1) {
    const auto out = room(rows, rank);
    ops().add_low_rank_in(stream(), bench_.put(x, rows, in, dtype), {{.table = a, .rows = rows, .sums = out}});
    return scaled(out, factor);
  }

  Floats scaled(const Activations& sums, float factor = 1) {
    ops().scale_low_rank(stream(), {{bench_.vector({factor}), sums}});
    const Floats all = bench_.get(sums);
    const int rank = sums.columns / kLowRankChains;
    Floats first;
    for (int r = 0; r < sums.rows; ++r) {
      first.insert(first.end(), all.begin() + r * sums.columns, all.begin() + r * sums.columns + rank);
    }
    return first;
  }

  Floats added(const Floats& sums, int rows, int rank, const Table& b, int column, const Floats& to) {
    const auto out = bench_.put(to, rows, static_cast<int>(to.size()) / rows);
    ops().add_low_rank_out(stream(),
                           {{.table = b, .rows = rows, .sums = with_room(sums, rows, rank), .column = column}}, out);
    return bench_.get(out);
  }

  // Sums as scale_low_rank() leaves them.
  Activations with_room(const Floats& sums, int rows, int rank) {
    Floats wide(static_cast<std::size_t>(rows) * kLowRankChains * rank, std::nanf(""));
    for (int r = 0; r < rows; ++r) {
      std::copy_n(sums.begin() + r * rank, rank, wide.begin() + r * kLowRankChains * rank);
    }
    return bench_.put(wide, rows, kLowRankChains * rank);
  }

  // What held others' sums before.
  Activations room(int rows, int rank) {
    return bench_.put(random_floats(static_cast<std::size_t>(rows) * kLowRankChains * rank, 9), rows,
                      kLowRankChains * rank);
  }

 private:
  // Panels lie behind each other, a block's multiple of rows each.
  Table table(const Floats& values, int rank, const std::vector<int>& panel_rows, DType dtype) {
    const std::byte* const data = bench_.put_bytes(bytes_of(values, dtype));
    std::vector<TablePanel> panels;
    int row = 0;
    for (const int rows : panel_rows) {
      panels.push_back({data + static_cast<std::size_t>(row) * rank * size_of(dtype), nullptr, row, rows});
      row += rows;
    }
    return {bench_.keep(std::move(panels)), row, dtype};
  }
};

constexpr int kRanks[] = {1, 3, 8, 9, 16, 21, 32, 53, 64, 256};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

TEST_P(LowRankTest, SumsMatchDoubleLoops) {
  constexpr int kRows = 6, kIn = 77;
  for (const DType dtype : kTypes) {
    for (const int rank : kRanks) {
      const auto x = random_floats(kRows * kIn, 1, dtype);
      const auto a = random_floats(static_cast<std::size_t>(kIn) * rank, 2, dtype);
      std::vector<double> expected;
      for (int r = 0; r < kRows; ++r) {
        for (int k = 0; k < rank; ++k) {
          double sum = 0;
          for (int i = 0; i < kIn; ++i) sum += static_cast<double>(x[r * kIn + i]) * a[i * rank + k];
          expected.push_back(-1.5 * sum);
        }
      }
      expect_close(sums(x, kRows, kIn, a_of(a, rank, {kIn}, dtype), rank, dtype, -1.5f), expected, 1e-5,
                   fmt::format("rank {}", rank));
    }
  }
}

TEST_P(LowRankTest, ProductsAreAddedToTheirColumns) {
  constexpr int kRows = 6, kColumns = 90, kColumn = 7;
  for (const DType dtype : kTypes) {
    for (const int rank : kRanks) {
      for (const int n : {1, 8, 75, 83}) {
        const auto sums = random_floats(static_cast<std::size_t>(kRows) * rank, 1);
        const auto b = random_floats(static_cast<std::size_t>(n) * rank, 2, dtype);
        const auto to = random_floats(kRows * kColumns, 3);
        std::vector<double> expected(to.begin(), to.end());
        for (int r = 0; r < kRows; ++r) {
          for (int o = 0; o < n; ++o) {
            for (int k = 0; k < rank; ++k) {
              expected[r * kColumns + kColumn + o] += static_cast<double>(sums[r * rank + k]) * b[o * rank + k];
            }
          }
        }
        const Floats actual = added(sums, kRows, rank, b_of(b, rank, {n}, dtype), kColumn, to);
        expect_close(actual, expected, 1e-5, fmt::format("rank {}, {} outputs", rank, n));
        for (int r = 0; r < kRows; ++r) {
          for (int c = 0; c < kColumns; ++c) {
            const bool beside = c < kColumn || c >= kColumn + n;
            EXPECT_TRUE(!beside || actual[r * kColumns + c] == to[r * kColumns + c]);
          }
        }
      }
    }
  }
}

// Alone or with others, and however pages cut the matrices.
TEST_P(LowRankTest, ARowHasTheSameBitsAloneAndInAnyPanels) {
  constexpr int kRows = 71, kIn = 300, kRank = 21, kOut = 1230;
  const auto x = random_floats(kRows * kIn, 1), a = random_floats(kIn * kRank, 2), b = random_floats(kOut * kRank, 3);
  const auto to = random_floats(kRows * kOut, 4);
  const Table whole_a = a_of(a, kRank, {kIn}), whole_b = b_of(b, kRank, {kOut});
  const Floats all = sums(x, kRows, kIn, whole_a, kRank);
  const Floats out = added(all, kRows, kRank, whole_b, 0, to);
  expect_same(sums(x, kRows, kIn, a_of(a, kRank, {16, 160, 124}), kRank), all, "sums in three panels");
  expect_same(added(all, kRows, kRank, b_of(b, kRank, {640, 48, 542}), 0, to), out, "outputs in three panels");
  for (const int row : {0, 1, 33, 70}) {
    const Floats own = sums(row_of(x, row, kIn), 1, kIn, whole_a, kRank);
    expect_same(own, row_of(all, row, kRank), fmt::format("sums of row {}", row));
    expect_same(added(own, 1, kRank, whole_b, 0, row_of(to, row, kOut)), row_of(out, row, kOut),
                fmt::format("outputs of row {}", row));
  }
}

// A's parts one after the other, B's for their own outputs, as where pages are visited group by group.
TEST_P(LowRankTest, PartsOfMatricesAddUp) {
  constexpr int kRows = 5, kIn = 60, kRank = 16, kOut = 70;
  const auto x = random_floats(kRows * kIn, 1), a = random_floats(kIn * kRank, 2), b = random_floats(kOut * kRank, 3);
  const auto to = random_floats(kRows * kOut, 4);
  const Table in = a_of(a, kRank, {32, 28}), of_outputs = b_of(b, kRank, {48, 22});
  const Floats expected = sums(x, kRows, kIn, in, kRank);
  const auto sum = room(kRows, kRank), from = bench_.put(x, kRows, kIn), out = bench_.put(to, kRows, kOut);
  for (const std::size_t i : {0u, 1u}) {
    LowRankPart part{.table = in, .rows = kRows, .sums = sum, .continues = i > 0};
    part.table.panels = part.table.panels.subspan(i, 1);
    ops().add_low_rank_in(stream(), from, {part});
  }
  expect_same(scaled(sum), expected, "sums");
  for (const std::size_t i : {0u, 1u}) {
    LowRankPart part{.table = of_outputs, .rows = kRows, .sums = sum};
    part.table.panels = part.table.panels.subspan(i, 1);
    ops().add_low_rank_out(stream(), {part}, out);
  }
  expect_same(bench_.get(out), added(expected, kRows, kRank, of_outputs, 0, to), "outputs");
}

// Rows of several adapters of other ranks in one operation, each with what it has by itself; rows of none stay.
TEST_P(LowRankTest, RowsOfSeveralAdaptersAreApart) {
  constexpr int kRows = 30, kIn = 64, kOut = 40;
  const std::vector<std::pair<int, int>> adapters = {{3, 8}, {1, 21}, {19, 16}};  // rows, rank
  const auto x = random_floats(kRows * kIn, 1), to = random_floats(kRows * kOut, 2);
  const auto out = bench_.put(to, kRows, kOut);
  std::vector<LowRankPart> in, outs;
  std::vector<LowRankScale> scales;
  Floats expected(to.begin(), to.begin() + 2 * kOut);
  int row = 2;
  for (const auto& [rows, rank] : adapters) {
    const auto a = random_floats(static_cast<std::size_t>(kIn) * rank, 10 + rank);
    const auto b = random_floats(static_cast<std::size_t>(kOut) * rank, 20 + rank);
    const Table of_a = a_of(a, rank, {kIn}), of_b = b_of(b, rank, {kOut});
    in.push_back({.table = of_a, .row = row, .rows = rows, .sums = room(rows, rank)});
    scales.push_back({bench_.vector({0.5f}), in.back().sums});
    outs.push_back(in.back());
    outs.back().table = of_b;
    const Floats own_x(x.begin() + row * kIn, x.begin() + (row + rows) * kIn);
    const Floats own_to(to.begin() + row * kOut, to.begin() + (row + rows) * kOut);
    const Floats own = added(sums(own_x, rows, kIn, of_a, rank, DType::kF32, 0.5f), rows, rank, of_b, 0, own_to);
    expected.insert(expected.end(), own.begin(), own.end());
    row += rows;
  }
  expected.insert(expected.end(), to.begin() + row * kOut, to.end());
  ops().add_low_rank_in(stream(), bench_.put(x, kRows, kIn), in);
  ops().scale_low_rank(stream(), scales);
  ops().add_low_rank_out(stream(), outs, out);
  expect_same(bench_.get(out), expected, "outputs");
}

TEST_P(LowRankTest, WaitsForItsPages) {
  constexpr int kIn = 40, kRank = 4;
  SlowLink link(bench_);
  const auto there = bench_.device().make_event();
  const auto x = random_floats(kIn, 1), a = random_floats(kIn * kRank, 2);
  const Floats expected = sums(x, 1, kIn, a_of(a, kRank, {kIn}), kRank);
  const auto& panels =
      bench_.keep(std::vector<TablePanel>{{link.fetch(bytes_of(a, DType::kF32), *there), there.get(), 0, kIn}});
  expect_same(sums(x, 1, kIn, {panels, kIn}, kRank), expected, "sums");
}

TEST_P(LowRankTest, Activates) {
  const auto x = random_floats(2 * 30, 1);
  const auto out = bench_.empty(2, 30);
  ops().activate(stream(), Activation::kRelu, bench_.put(x, 2, 30), out);
  Floats expected = x;
  for (float& v : expected) v = std::max(v, 0.0f);
  expect_same(bench_.get(out), expected, "activated");
}

TEST_P(LowRankTest, RefusesWhatDoesNotFit) {
  const auto x = bench_.put(random_floats(8, 1), 1, 8), out = bench_.put(random_floats(8, 1), 1, 8);
  const Table a = a_of(random_floats(32, 2), 4, {8});
  const LowRankPart part{.table = a, .rows = 1, .sums = room(1, 4)};
  const auto refuses = [&](auto change) {
    LowRankPart other = part;
    change(other);
    EXPECT_THROW(ops().add_low_rank_in(stream(), x, {other}), Error);
    EXPECT_THROW(ops().add_low_rank_out(stream(), {other}, out), Error);
  };
  ops().add_low_rank_in(stream(), x, {part});
  refuses([](LowRankPart& p) { p.row = 1; });
  refuses([](LowRankPart& p) { p.rows = 2; });
  refuses([](LowRankPart& p) { p.sums.columns = 18; });
  refuses([](LowRankPart& p) { p.table.dtype = DType::kF16; });
  refuses([this](LowRankPart& p) { p.table = a_of(random_floats(32, 2), 4, {3, 5}); });
  LowRankPart long_rows = part, beside = part;
  long_rows.table.rows = 9;
  beside.column = 1;
  EXPECT_THROW(ops().add_low_rank_in(stream(), x, {long_rows}), Error);
  EXPECT_THROW(ops().add_low_rank_out(stream(), {beside}, out), Error);
  EXPECT_THROW(ops().scale_low_rank(stream(), {{bench_.vector({1, 2}), part.sums}}), Error);
}

COMPUTRON_ON_EVERY_DEVICE(LowRankTest);

}  // namespace
}  // namespace computron::testing
