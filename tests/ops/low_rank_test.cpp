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

  // A table [rows, columns] in panels of these numbers of rows.
  const std::vector<TablePanel>& table(const Floats& values, int columns, const std::vector<int>& panel_rows) {
    const auto* data = bench_.put_bytes(bytes_of(values, DType::kF32));
    std::vector<TablePanel> panels;
    int row = 0;
    for (const int rows : panel_rows) {
      panels.push_back({data + static_cast<std::size_t>(row) * columns * sizeof(float), nullptr, row, rows});
      row += rows;
    }
    return bench_.keep(std::move(panels));
  }

  Floats sums(const Floats& x, int rows, int in, const Floats& a, int rank, DType dtype,
              const std::vector<int>& panel_rows) {
    const auto out = bench_.put(Floats(static_cast<std::size_t>(rows) * rank), rows, rank);
    ops().add_low_rank_in(stream(), bench_.put(x, rows, in, dtype), {table(a, rank, panel_rows), in}, out);
    return bench_.get(out);
  }

  Floats added(const Floats& sums, int rows, int rank, const Floats& b, int n, int column, const Floats& to,
               const std::vector<int>& panel_rows) {
    const int columns = static_cast<int>(to.size()) / rows;
    const auto out = bench_.put(to, rows, columns);
    ops().add_low_rank_out(stream(), bench_.put(sums, rows, rank), {table(b, rank, panel_rows), n}, column, out);
    return bench_.get(out);
  }
};

constexpr int kRanks[] = {1, 3, 8, 9, 16, 21, 32, 53, 64, 256};

TEST_P(LowRankTest, SumsMatchDoubleLoops) {
  constexpr int kRows = 3, kIn = 77;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int rank : kRanks) {
      const auto x = random_floats(kRows * kIn, 1, dtype), a = random_floats(static_cast<std::size_t>(kIn) * rank, 2);
      std::vector<double> expected;
      for (int r = 0; r < kRows; ++r) {
        for (int k = 0; k < rank; ++k) {
          double sum = 0;
          for (int i = 0; i < kIn; ++i) sum += static_cast<double>(x[r * kIn + i]) * a[i * rank + k];
          expected.push_back(sum);
        }
      }
      expect_close(sums(x, kRows, kIn, a, rank, dtype, {kIn}), expected, 1e-5, fmt::format("rank {}", rank));
    }
  }
}

TEST_P(LowRankTest, ProductsAreAddedToTheirColumns) {
  constexpr int kRows = 3, kColumns = 90, kColumn = 7;
  for (const int rank : kRanks) {
    for (const int n : {1, 8, 75, 83}) {
      const auto sums = random_floats(static_cast<std::size_t>(kRows) * rank, 1);
      const auto b = random_floats(static_cast<std::size_t>(n) * rank, 2), to = random_floats(kRows * kColumns, 3);
      std::vector<double> expected(to.begin(), to.end());
      for (int r = 0; r < kRows; ++r) {
        for (int o = 0; o < n; ++o) {
          for (int k = 0; k < rank; ++k) {
            expected[r * kColumns + kColumn + o] += static_cast<double>(sums[r * rank + k]) * b[o * rank + k];
          }
        }
      }
      const Floats actual = added(sums, kRows, rank, b, n, kColumn, to, {n});
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

// Alone or with others, and however pages cut the matrices.
TEST_P(LowRankTest, ARowHasTheSameBitsAloneAndInAnyPanels) {
  constexpr int kRows = 70, kIn = 300, kRank = 21, kOut = 150;
  const auto x = random_floats(kRows * kIn, 1), a = random_floats(kIn * kRank, 2), b = random_floats(kOut * kRank, 3);
  const auto to = random_floats(kRows * kOut, 4);
  const Floats all = sums(x, kRows, kIn, a, kRank, DType::kF32, {kIn});
  const Floats out = added(all, kRows, kRank, b, kOut, 0, to, {kOut});
  expect_same(sums(x, kRows, kIn, a, kRank, DType::kF32, {1, 130, 169}), all, "sums in three panels");
  expect_same(added(all, kRows, kRank, b, kOut, 0, to, {61, 3, 86}), out, "outputs in three panels");
  for (const int row : {0, 1, 33, 69}) {
    const Floats own = sums(row_of(x, row, kIn), 1, kIn, a, kRank, DType::kF32, {kIn});
    expect_same(own, row_of(all, row, kRank), fmt::format("sums of row {}", row));
    expect_same(added(own, 1, kRank, b, kOut, 0, row_of(to, row, kOut), {kOut}), row_of(out, row, kOut),
                fmt::format("outputs of row {}", row));
  }
}

TEST_P(LowRankTest, WaitsForItsPages) {
  constexpr int kIn = 40, kRank = 4;
  SlowLink link(bench_);
  const auto there = bench_.device().make_event();
  const auto x = random_floats(kIn, 1), a = random_floats(kIn * kRank, 2);
  const Floats expected = sums(x, 1, kIn, a, kRank, DType::kF32, {kIn});
  const auto out = bench_.put(Floats(kRank), 1, kRank);
  const auto& panels =
      bench_.keep(std::vector<TablePanel>{{link.fetch(bytes_of(a, DType::kF32), *there), there.get(), 0, kIn}});
  ops().add_low_rank_in(stream(), bench_.put(x, 1, kIn), {panels, kIn}, out);
  expect_same(bench_.get(out), expected, "sums");
}

TEST_P(LowRankTest, ScalesAndActivates) {
  const auto x = random_floats(2 * 30, 1);
  const auto inout = bench_.put(x, 2, 30);
  ops().scale_by(stream(), bench_.vector({-1.5f}), inout);
  Floats scaled = x;
  for (float& v : scaled) v *= -1.5f;
  expect_same(bench_.get(inout), scaled, "scaled");
  const auto out = bench_.empty(2, 30);
  ops().activate(stream(), Activation::kRelu, inout, out);
  for (float& v : scaled) v = std::max(v, 0.0f);
  expect_same(bench_.get(out), scaled, "activated");
}

TEST_P(LowRankTest, RefusesWhatDoesNotFit) {
  const auto x = bench_.put(random_floats(8, 1), 1, 8), out = bench_.put(random_floats(8, 1), 1, 8);
  const auto& panels = table(random_floats(32, 2), 4, {8});
  EXPECT_THROW(ops().add_low_rank_in(stream(), x, {panels, 9}, bench_.empty(1, 4)), Error);
  EXPECT_THROW(ops().add_low_rank_in(stream(), x, {panels, 8}, bench_.empty(2, 4)), Error);
  EXPECT_THROW(ops().add_low_rank_out(stream(), bench_.empty(1, 4), {panels, 8}, 1, out), Error);
  EXPECT_THROW(ops().scale_by(stream(), bench_.vector({1, 2}), out), Error);
}

COMPUTRON_ON_EVERY_DEVICE(LowRankTest);

}  // namespace
}  // namespace computron::testing
