// gemm of quantised weights on every device: against a loop in double precision, to the bits of a plain weight of their
// values or of a loop over integers, and from wherever their panels lie.
#include <fmt/format.h>

#include "tests/ops/ops_fixture.h"
#include "tests/ops/quantised.h"

namespace computron::testing {
namespace {

class QuantisedGemmTest : public OpsTest {
 protected:
  DType values_type() { return quantised_values(bench_.ops()); }
  Weight plain(const QuantisedWeight& w) { return bench_.weight(w.values(), w.out, w.in, w.type.values, {64, 128}); }
  Weight coded(const QuantisedWeight& w, const std::vector<int>& cut) {
    return bench_.weight(w.type, w.out, w.in, w.codes, w.scale_bytes(), cut, w.factors);
  }
  // Host bytes of a panel.
  std::vector<std::byte> packed(const QuantisedWeight& w, int row, int rows) {
    const WeightFormat& format = bench_.ops().weight_format();
    const auto in = static_cast<std::size_t>(w.in), groups = static_cast<std::size_t>(w.groups());
    const auto first = static_cast<std::size_t>(row);
    std::vector<std::byte> bytes(format.panel_bytes(rows, w.in, w.type));
    format.pack(bytes.data(), w.in, w.type, 0, rows, 0, w.in, &w.codes[first * in], in, 1);
    format.pack_scales(bytes.data(), w.in, w.type, 0, rows, 0, w.groups(),
                       &w.scale_bytes()[first * groups * size_of(w.type.scales)], groups, 1);
    return bytes;
  }
  Activations product(const Activations& x, const Weight& weight, DType out = DType::kF32) {
    const auto y = bench_.empty(x.rows, weight.out, out);
    bench_.ops().gemm(bench_.stream(), x, weight, {}, Activation::kNone, y);
    return y;
  }
  // Of all rows of x, as the device defines it: as a plain weight of the values; in integers; or what the rows are
  // beside others.
  Floats expected_product(const QuantisedWeight& w, const Floats& x, int rows, DType out = DType::kF32) {
    if (multiplies_integers(bench_, w.type)) return rounded_to(integer_products(w, x, rows), out);
    if (has_own_order(bench_, w.type, rows, w.in)) return rounded_to(first_of_most(w, x, rows), out);
    return bench_.get(product(bench_.put(x, rows, w.in, w.type.values), plain(w), out));
  }
  // With `rows` rows of `x`: what is expected, and near the exact result.
  void expect_product_of_values(const QuantisedWeight& w, const Floats& x, std::initializer_list<int> row_counts) {
    const Floats values = w.values();
    const Weight of_codes = coded(w, {128, 64});
    for (const int rows : row_counts) {
      const auto what = fmt::format("{} rows, [{}, {}] {}", rows, w.out, w.in, describe(w.type));
      const Floats some(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(rows) * w.in);
      const auto input = bench_.put(some, rows, w.in, w.type.values);
      const auto actual = bench_.get(product(input, of_codes));
      expect_same(actual, expected_product(w, some, rows), what);
      // Of values that are no bfloat16, chains of 2,080 sums.
      const double tolerance = multiplies_integers(bench_, w.type) ? 1e-4
                               : w.type.values == DType::kF32      ? 3e-6
                                                              : accumulated_tolerance(bench_.traits(), w.type.values);
      expect_close(actual, exact(some, values, rows, w), tolerance, what);
    }
  }

  static constexpr int kMostRows = kMostRowsOfOwnOrder;

 private:
  // Of as many rows as have that order; those behind the first ones are these once more, doubled.
  Floats first_of_most(const QuantisedWeight& w, const Floats& x, int rows) {
    Floats most = x;
    for (std::size_t i = 0; most.size() < static_cast<std::size_t>(kMostRows) * w.in; ++i) most.push_back(2 * x[i]);
    Floats all = bench_.get(product(bench_.put(most, kMostRows, w.in, w.type.values), coded(w, {1024})));
    all.resize(static_cast<std::size_t>(rows) * w.out);
    return all;
  }
  static std::vector<double> exact(const Floats& x, const Floats& values, int rows, const QuantisedWeight& w) {
    std::vector<double> out;
    for (int m = 0; m < rows; ++m) {
      for (int n = 0; n < w.out; ++n) {
        double sum = 0;
        for (int k = 0; k < w.in; ++k) {
          sum +=
              static_cast<double>(x[QuantisedWeight::place(m, w.in, k)]) * values[QuantisedWeight::place(n, w.in, k)];
        }
        out.push_back(sum);
      }
    }
    return out;
  }
};

// Rows of decoding and of prefill, and depths that are no whole units, pieces or rounds of a kernel.
TEST_P(QuantisedGemmTest, EveryTypeGivesWhatItsValuesGive) {
  constexpr int kMaxRows = 40, kOut = 72;
  for (const auto& [in, few, many] : {std::tuple(33, 1, kMaxRows), {200, 7, kMaxRows}, {1096, 1, 16}}) {
    const auto x = random_floats(static_cast<std::size_t>(kMaxRows) * in, 1, values_type());
    for (const WeightType& type : quantised_types(values_type())) {
      if (!is_taken(bench_, type)) continue;
      expect_product_of_values(random_quantised(type, kOut, in, 2, ordinary_scales()), x, {few, many});
    }
  }
}

TEST_P(QuantisedGemmTest, EveryBatchGivesWhatItsValuesGive) {
  constexpr int kOut = 200, kIn = 2080;
  const auto x = random_floats(static_cast<std::size_t>(kMostRows + 1) * kIn, 1, values_type());
  for (const DType codes : kCodeDTypes) {
    const WeightType type(values_type(), codes, DType::kBF16, 32);
    expect_product_of_values(random_quantised(type, kOut, kIn, 3, ordinary_scales()), x,
                             {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, kMostRows, kMostRows + 1});
  }
}

// More rows than a call of a CPU's kernel takes.
TEST_P(QuantisedGemmTest, RowsOfAPromptGiveWhatTheirValuesGive) {
  constexpr int kOut = 200, kIn = 64, kRows = 300;
  const auto x = random_floats(static_cast<std::size_t>(kRows) * kIn, 4, values_type());
  for (const DType codes : {DType::kInt8, DType::kInt4}) {
    const WeightType type(values_type(), codes, DType::kBF16, 32);
    expect_product_of_values(random_quantised(type, kOut, kIn, 5, ordinary_scales()), x, {kRows});
  }
}

TEST_P(QuantisedGemmTest, NarrowOutputsToo) {
  constexpr int kOut = 96, kIn = 128;
  for (const int rows : {3, 40}) {
    const auto elements = random_floats(static_cast<std::size_t>(rows) * kIn, 1, values_type());
    const auto x = bench_.put(elements, rows, kIn, values_type());
    const auto w = random_quantised({values_type(), DType::kInt4, DType::kF16, 64}, kOut, kIn, 2, ordinary_scales());
    for (const DType out : bench_.narrow_types()) {
      expect_same(bench_.get(product(x, coded(w, {64}), out)), expected_product(w, elements, rows, out),
                  fmt::format("{} rows to {}", rows, name_of(out)));
    }
  }
}

// Panels one behind the other in a page, the last of them not full; then some of them.
TEST_P(QuantisedGemmTest, PanelsThatTouchAreOneMatrix) {
  constexpr int kOut = 300, kIn = 96;
  const WeightFormat& format = bench_.ops().weight_format();
  for (const DType codes : kCodeDTypes) {
    const auto w = random_quantised({values_type(), codes, DType::kE8M0, 32}, kOut, kIn, 2, ordinary_scales());
    const std::byte* data = bench_.put_bytes(packed(w, 0, kOut));
    std::vector<WeightPanel> panels;
    for (int row = 0; row < kOut; row += 64) {
      panels.push_back({data + format.panel_bytes(row, kIn, w.type), nullptr, row, std::min(64, kOut - row)});
    }
    const auto& kept = bench_.keep(std::move(panels));
    for (const int rows : {5, 20}) {
      const auto elements = random_floats(static_cast<std::size_t>(rows) * kIn, 1, values_type());
      const auto x = bench_.put(elements, rows, kIn, values_type());
      expect_same(bench_.get(product(x, {kept, kOut, kIn, w.type})), expected_product(w, elements, rows),
                  fmt::format("{}, {} rows", name_of(codes), rows));
    }
  }
}

// More values than a device expands at a time: x picks one of each row of the weight.
TEST_P(QuantisedGemmTest, LongRowsAreMultipliedInParts) {
  if (bench_.traits().host_memory) GTEST_SKIP() << "a CPU expands a few rows at a time";
  constexpr int kOut = 144, kIn = 1 << 18, kRows = 17;
  const WeightType type(values_type(), DType::kInt4, DType::kE8M0, 1 << 12);  // are expanded
  QuantisedWeight w{type, kOut, kIn, std::vector<std::byte>(static_cast<std::size_t>(kOut) * kIn), {}};
  w.scales.assign(static_cast<std::size_t>(kOut) * w.groups(), 0.5f);
  for (int row = 0; row < kOut; ++row) w.code(row, 1000 * row + row) = static_cast<std::byte>(row % 15 - 7);
  Floats x(static_cast<std::size_t>(kRows) * kIn);
  Floats expected;
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kOut; ++n) {
      x[static_cast<std::size_t>(m) * kIn + 1001 * n] = static_cast<float>(m + 1);
      expected.push_back(static_cast<float>(m + 1) * static_cast<float>(n % 15 - 7) * 0.5f);
    }
  }
  const auto actual = bench_.get(product(bench_.put(x, kRows, kIn, values_type()), coded(w, {1024})));
  EXPECT_EQ(actual, expected);
}

// What arrives over a slow link while the operation has long been given; the panel that is multiplied first, last.
TEST_P(QuantisedGemmTest, PanelsAreWaitedFor) {
  constexpr int kOut = 128, kIn = 64, kPanel = 64;
  const auto w = random_quantised({values_type(), DType::kInt8, DType::kBF16, 32}, kOut, kIn, 2, ordinary_scales());
  for (const int rows : {4, 40}) {
    const auto elements = random_floats(static_cast<std::size_t>(rows) * kIn, 1, values_type());
    const auto x = bench_.put(elements, rows, kIn, values_type());
    const auto expected = expected_product(w, elements, rows);
    const auto y = bench_.empty(rows, kOut);
    const auto first = bench_.device().make_event(), second = bench_.device().make_event();
    SlowLink link(bench_);
    const std::byte* behind = link.fetch(packed(w, kPanel, kPanel), *second);
    const std::vector<WeightPanel> panels = {{link.fetch(packed(w, 0, kPanel), *first), first.get(), 0, kPanel},
                                             {behind, second.get(), kPanel, kPanel}};
    bench_.ops().gemm(bench_.stream(), x, {panels, kOut, kIn, w.type}, {}, Activation::kNone, y);
    expect_same(bench_.get(y), expected, fmt::format("{} rows", rows));
  }
}

COMPUTRON_ON_EVERY_DEVICE(QuantisedGemmTest);

}  // namespace
}  // namespace computron::testing
