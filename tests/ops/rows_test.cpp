// The operations that work on rows one by one: embed, add_rows, norm, rotary positions, gates, gathering, scattering.
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "tests/ops/ops_fixture.h"
#include "tests/ops/quantised.h"

namespace computron::testing {
namespace {

class RowsTest : public OpsTest {
 protected:
  // Float32 and what is narrower here.
  std::vector<DType> output_types() const {
    auto types = bench_.narrow_types();
    types.push_back(DType::kF32);
    return types;
  }
  Ops& ops() { return bench_.ops(); }
  Stream& stream() { return bench_.stream(); }
};

TEST_P(RowsTest, EmbedTakesRowsOfItsSliceOnly) {
  constexpr int kVocab = 200, kFirst = 1000;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int columns : {64, 33}) {
      const auto table = random_floats(static_cast<std::size_t>(kVocab) * columns, 1, dtype);
      const auto weight = bench_.weight(table, kVocab, columns, dtype, {64, 128});
      const auto& tokens = bench_.keep(std::vector<TokenId>{1000, 1199, 999, 1200, 1064, 1063, 1192, 0, 1000});
      const auto out = bench_.empty(static_cast<int>(tokens.size()), columns);
      ops().embed(stream(), tokens, kFirst, weight, out);
      const auto actual = bench_.get(out);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const int row = tokens[i] - kFirst;
        const bool here = row >= 0 && row < kVocab;
        expect_same(row_of(actual, static_cast<int>(i), columns), here ? row_of(table, row, columns) : Floats(columns),
                    fmt::format("token {} of {}", tokens[i], name_of(dtype)));
      }
    }
  }
}

// Subnormal values too: an embedding is not multiplied.
TEST_P(RowsTest, EmbedTakesTheValuesOfQuantisedRows) {
  constexpr int kVocab = 150;
  const auto& tokens = bench_.keep(std::vector<TokenId>{0, 149, 63, 64, 7});
  for (const WeightType& stored : quantised_types(DType::kBF16)) {
    if (!is_taken(bench_, stored)) continue;
    for (const int columns : {64, 33, 200}) {
      const auto w = random_quantised(ops().weight_type(stored), kVocab, columns, 1, {0.01f, -0.02f, 0, 0x1p-128f, 3});
      const auto weight = bench_.weight(w.type, kVocab, columns, w.codes, w.scale_bytes(), {64, 128}, w.factors);
      const auto out = bench_.empty(static_cast<int>(tokens.size()), columns);
      ops().embed(stream(), tokens, 0, weight, out);
      const auto actual = bench_.get(out), values = w.values();
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        expect_same(row_of(actual, static_cast<int>(i), columns), row_of(values, tokens[i], columns),
                    fmt::format("token {} of {}", tokens[i], describe(w.type)));
      }
    }
  }
}

// Each part writes its own tokens' rows and nothing else; the one that begins at row 0 the zeros.
TEST_P(RowsTest, EmbedWorksPartByPart) {
  constexpr int kVocab = 200, kColumns = 40, kFirst = 1000;
  const auto table = random_floats(kVocab * kColumns, 1);
  const auto weight = bench_.weight(table, kVocab, kColumns, DType::kF32, {64});
  const auto& tokens = bench_.keep(std::vector<TokenId>{1000, 999, 1063, 1064, 1199, 1200});
  const auto rows = static_cast<int>(tokens.size());
  const auto before = random_floats(static_cast<std::size_t>(rows) * kColumns, 2);
  const auto first = bench_.put(before, rows, kColumns), rest = bench_.put(before, rows, kColumns);
  const auto part = [&](std::size_t begin, std::size_t count) {
    return Weight{weight.panels.subspan(begin, count), kVocab, kColumns, DType::kF32};
  };
  ops().embed(stream(), tokens, kFirst, part(0, 1), first);
  ops().embed(stream(), tokens, kFirst, part(1, 3), rest);
  const auto of_first = bench_.get(first), of_rest = bench_.get(rest);
  for (int i = 0; i < rows; ++i) {
    const int row = tokens[static_cast<std::size_t>(i)] - kFirst;
    const bool here = row >= 0 && row < kVocab;
    const auto old = row_of(before, i, kColumns), embedded = here ? row_of(table, row, kColumns) : Floats(kColumns);
    const bool by_first = row < 64 || row >= kVocab;
    expect_same(row_of(of_first, i, kColumns), by_first ? embedded : old, fmt::format("first part, row {}", row));
    expect_same(row_of(of_rest, i, kColumns), by_first ? old : embedded, fmt::format("second part, row {}", row));
  }
}

TEST_P(RowsTest, CopyVectorCopies) {
  const auto values = random_floats(77, 1);
  const auto out = bench_.empty(1, 77);
  ops().copy_vector(stream(), bench_.vector(values), out);
  expect_same(bench_.get(out), values, "copy");
}

TEST_P(RowsTest, AddRowsAddsOffsetRowsOfAPanelledTable) {
  constexpr int kRows = 10, kColumns = 37, kOffset = 2;
  const auto table = random_floats(kRows * kColumns, 1), h = random_floats(4 * kColumns, 2);
  const auto* data = bench_.put_bytes(bytes_of(table, DType::kF32));
  const std::vector<TablePanel> panels = {{data, nullptr, 0, 3}, {data + 3 * kColumns * 4, nullptr, 3, 7}};
  const auto& positions = bench_.keep(std::vector<std::int32_t>{0, 7, 1, 0});
  const auto out = bench_.put(h, 4, kColumns), in_parts = bench_.put(h, 4, kColumns);
  ops().add_rows(stream(), positions, kOffset, {panels, kRows}, out);
  for (int part : {1, 0}) {
    ops().add_rows(stream(), positions, kOffset, {std::span(panels).subspan(part, 1), kRows}, in_parts);
  }
  Floats expected = h;
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      expected[r * kColumns + c] += table[(positions[static_cast<std::size_t>(r)] + kOffset) * kColumns + c];
    }
  }
  expect_same(bench_.get(out), expected, "add_rows");
  expect_same(bench_.get(in_parts), expected, "add_rows in parts");
}

TEST_P(RowsTest, AddRowsRefusesARowThatIsNotThere) {
  const auto* data = bench_.put_bytes(std::vector<std::byte>(4 * 8 * 4));
  const std::vector<TablePanel> panels = {{data, nullptr, 0, 4}};
  const auto& positions = bench_.keep(std::vector<std::int32_t>{4});
  const auto out = bench_.put(Floats(8), 1, 8);
  EXPECT_THROW(
      {
        ops().add_rows(stream(), positions, 0, {panels, 4}, out);
        stream().synchronize();
      },
      Error);
}

std::vector<double> norm_reference(NormKind kind, const Floats& x, int columns, const Floats& weight,
                                   const Floats& bias, double epsilon) {
  std::vector<double> result;
  for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(columns)) {
    double mean = 0, variance = 0;
    if (kind == NormKind::kLayerNorm) {
      for (int c = 0; c < columns; ++c) mean += x[row + c] / static_cast<double>(columns);
    }
    for (int c = 0; c < columns; ++c) variance += (x[row + c] - mean) * (x[row + c] - mean) / columns;
    const double one = kind == NormKind::kRmsNormPlusOne ? 1 : 0;
    for (int c = 0; c < columns; ++c) {
      const double factor = weight.empty() ? 1 : one + weight[static_cast<std::size_t>(c)];
      const double scaled = (x[row + c] - mean) / std::sqrt(variance + epsilon) * factor;
      result.push_back(scaled + (bias.empty() ? 0 : bias[c]));
    }
  }
  return result;
}

TEST_P(RowsTest, NormMatchesDoubleLoop) {
  constexpr int kRows = 5;
  for (const int columns : {1, 20, 64, 100, 768, 1023}) {
    for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm, NormKind::kRmsNormPlusOne}) {
      for (const bool with_bias : {false, true}) {
        for (const DType out_dtype : output_types()) {
          auto x = random_floats(static_cast<std::size_t>(kRows) * columns, 1);
          for (float& v : x) v = 3 * v + 5;  // a mean that must not swallow the variance
          const auto weight = random_floats(static_cast<std::size_t>(columns), 2);
          const auto bias = with_bias ? random_floats(static_cast<std::size_t>(columns), 3) : Floats{};
          const auto out = bench_.empty(kRows, columns, out_dtype);
          ops().norm(stream(), kind, bench_.put(x, kRows, columns), bench_.vector(weight),
                     with_bias ? bench_.vector(bias) : Vector{}, 1e-5f, out);
          expect_close(bench_.get(out), norm_reference(kind, x, columns, weight, bias, 1e-5),
                       narrow_tolerance(out_dtype),
                       fmt::format("norm {} of {} columns to {}", static_cast<int>(kind), columns, name_of(out_dtype)));
        }
      }
    }
  }
}

TEST_P(RowsTest, NormMayWorkInPlaceAndLackItsWeight) {
  const auto x = random_floats(3 * 50, 1);
  const auto inout = bench_.put(x, 3, 50);
  ops().norm(stream(), NormKind::kLayerNorm, inout, {}, {}, 1e-5f, inout);
  expect_close(bench_.get(inout), norm_reference(NormKind::kLayerNorm, x, 50, {}, {}, 1e-5), 3e-6, "in place");
}

TEST_P(RowsTest, AddResidualAddsTheBiasFirst) {
  for (const int columns : {8, 61, 4096}) {
    const auto n = static_cast<std::size_t>(columns);
    const auto x = random_floats(7 * n, 1), h = random_floats(7 * n, 2), bias = random_floats(n, 3);
    for (const bool with_bias : {false, true}) {
      const auto inout = bench_.put(h, 7, columns);
      ops().add_residual(stream(), bench_.put(x, 7, columns), with_bias ? bench_.vector(bias) : Vector{}, inout);
      Floats expected(h.size());
      for (std::size_t i = 0; i < h.size(); ++i) {
        const float addend = with_bias ? x[i] + bias[i % n] : x[i];
        expected[i] = h[i] + addend;
      }
      expect_same(bench_.get(inout), expected, fmt::format("{} columns, bias {}", columns, with_bias));
    }
  }
}

TEST_P(RowsTest, AddResidualAndNormIsBothOneAfterTheOther) {
  for (const int columns : {100, 4096, 8200}) {  // rows in 4 and 8 registers of a thread, and longer
    const auto n = static_cast<std::size_t>(columns);
    const auto x = random_floats(3 * n, 1), h = random_floats(3 * n, 2), weight = random_floats(n, 3);
    const auto bias = random_floats(n, 4), norm_bias = random_floats(n, 5);
    for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
      for (const bool in_place : {false, true}) {
        const Vector added = in_place ? Vector{} : bench_.vector(bias);
        const auto both = bench_.put(h, 3, columns), one = bench_.put(h, 3, columns);
        const auto addend = bench_.put(x, 3, columns);
        const auto out_both = in_place ? both : bench_.empty(3, columns, DType::kF32);
        const auto out_one = in_place ? one : bench_.empty(3, columns, DType::kF32);
        const Vector scale = bench_.vector(weight), shift = bench_.vector(norm_bias);
        ops().add_residual_and_norm(stream(), addend, added, one, kind, scale, shift, 1e-5f, out_one);
        ops().add_residual(stream(), addend, added, both);
        ops().norm(stream(), kind, both, scale, shift, 1e-5f, out_both);
        const std::string what = fmt::format("{} columns, in place {}", columns, in_place);
        expect_same(bench_.get(one), bench_.get(both), what + ", the sum");
        expect_same(bench_.get(out_one), bench_.get(out_both), what + ", its norm");
      }
    }
  }
}

// Both roundings, the largest numbers, what is not a number.
TEST_P(RowsTest, ConvertRoundsToNearestEven) {
  Floats x = random_floats(1000, 1);
  for (const float v : {0.0f, -0.0f, 1.00390625f, 1.01171875f, 3.4e38f, -3.4e38f, 1e-40f, INFINITY, -INFINITY}) {
    x.push_back(v);
  }
  const int n = static_cast<int>(x.size());
  for (const DType dtype : output_types()) {
    const auto out = bench_.empty(1, n, dtype);
    ops().convert(stream(), bench_.put(x, 1, n), out);
    expect_same(bench_.get(out), rounded_to(x, dtype), std::string(name_of(dtype)));
  }
  const auto out = bench_.empty(1, 1, DType::kBF16);
  ops().convert(stream(), bench_.put({NAN}, 1, 1), out);
  EXPECT_TRUE(std::isnan(bench_.get(out)[0]));
}

TEST_P(RowsTest, GatherRowsMayRepeatAndConvert) {
  constexpr int kColumns = 45;
  const auto x = random_floats(6 * kColumns, 1);
  const auto& rows = bench_.keep(std::vector<std::int32_t>{5, 0, 5, 3});
  for (const DType dtype : output_types()) {
    const auto out = bench_.empty(4, kColumns, dtype);
    ops().gather_rows(stream(), bench_.put(x, 6, kColumns), rows, out);
    Floats expected;
    for (const int row : rows) {
      const auto one = row_of(x, row, kColumns);
      expected.insert(expected.end(), one.begin(), one.end());
    }
    expect_same(bench_.get(out), rounded_to(expected, dtype), "gathered");
  }
}

TEST_P(RowsTest, RowsHaveTheSameBitsAloneAndTogether) {
  constexpr int kRows = 70, kColumns = 777;
  const auto x = random_floats(kRows * kColumns, 1), weight = random_floats(kColumns, 2);
  const auto normed = [&](const Floats& rows, int count) {
    const auto out = bench_.empty(count, kColumns);
    ops().norm(stream(), NormKind::kLayerNorm, bench_.put(rows, count, kColumns), bench_.vector(weight), {}, 1e-5f,
               out);
    return bench_.get(out);
  };
  const auto all = normed(x, kRows);
  for (const int row : {0, 1, 33, 69}) {
    expect_same(normed(row_of(x, row, kColumns), 1), row_of(all, row, kColumns), fmt::format("row {}", row));
  }
}

class FetchedRowsTest : public RowsTest {
 protected:
  static constexpr int kRows = 64, kColumns = 64;
  const std::byte* fetch(const std::vector<std::byte>& bytes) { return link_.fetch(bytes, *there_); }

  Floats table_ = random_floats(kRows * kColumns, 1), h_ = random_floats(kColumns, 2);
  const std::vector<std::int32_t> rows_ = {3};
  Activations inout_ = bench_.put(h_, 1, kColumns);
  std::unique_ptr<Event> there_ = bench_.device().make_event();
  SlowLink link_{bench_};
};

// Also when no token needs it: the end of the operation is the end of the pages' use.
TEST_P(FetchedRowsTest, EmbedWaits) {
  const auto* data = fetch(bench_.pack(table_.data(), kRows, kColumns, DType::kF32));
  const std::vector<WeightPanel> panels = {{data, there_.get(), 0, kRows}};
  const std::vector<TokenId> elsewhere = {kRows};
  ops().embed(stream(), elsewhere, 0, {panels, kRows, kColumns, DType::kF32}, inout_);
  expect_same(bench_.get(inout_), Floats(kColumns), "token of another rank");
  EXPECT_TRUE(there_->query());
  ops().embed(stream(), rows_, 0, {panels, kRows, kColumns, DType::kF32}, inout_);
  expect_same(bench_.get(inout_), row_of(table_, 3, kColumns), "embedding");
}

TEST_P(FetchedRowsTest, AddRowsWaits) {
  const std::vector<TablePanel> panels = {{fetch(bytes_of(table_, DType::kF32)), there_.get(), 0, kRows}};
  ops().add_rows(stream(), rows_, 0, {panels, kRows}, inout_);
  Floats expected = h_;
  for (int c = 0; c < kColumns; ++c) expected[c] += table_[3 * kColumns + c];
  expect_same(bench_.get(inout_), expected, "positions");
}

TEST_P(FetchedRowsTest, NormWaits) {
  const auto* data = reinterpret_cast<const float*>(fetch(bytes_of(row_of(table_, 0, kColumns), DType::kF32)));
  ops().norm(stream(), NormKind::kRmsNorm, inout_, {data, there_.get(), kColumns}, {}, 1e-6f, inout_);
  expect_close(bench_.get(inout_),
               norm_reference(NormKind::kRmsNorm, h_, kColumns, row_of(table_, 0, kColumns), {}, 1e-6), 3e-6, "norm");
}

TEST_P(FetchedRowsTest, AddResidualWaits) {
  const auto* data = reinterpret_cast<const float*>(fetch(bytes_of(row_of(table_, 0, kColumns), DType::kF32)));
  ops().add_residual(stream(), bench_.put(Floats(kColumns), 1, kColumns), {data, there_.get(), kColumns}, inout_);
  Floats expected = h_;
  for (int c = 0; c < kColumns; ++c) expected[c] += table_[c];
  expect_same(bench_.get(inout_), expected, "residual");
}

TEST_P(FetchedRowsTest, CopyVectorWaits) {
  const auto* data = reinterpret_cast<const float*>(fetch(bytes_of(row_of(table_, 0, kColumns), DType::kF32)));
  ops().copy_vector(stream(), {data, there_.get(), kColumns}, inout_);
  expect_same(bench_.get(inout_), row_of(table_, 0, kColumns), "copy");
}

TEST_P(RowsTest, RefusesWhatDoesNotFit) {
  const auto a = bench_.put(Floats(16), 2, 8), narrow = bench_.put(Floats(16), 2, 8, DType::kBF16),
             shorter = bench_.put(Floats(8), 1, 8);
  EXPECT_THROW(ops().norm(stream(), NormKind::kLayerNorm, a, {}, {}, 1e-5f, shorter), Error);
  EXPECT_THROW(ops().norm(stream(), NormKind::kLayerNorm, narrow, {}, {}, 1e-5f, a), Error);
  EXPECT_THROW(ops().norm(stream(), NormKind::kLayerNorm, a, bench_.vector(Floats(7)), {}, 1e-5f, a), Error);
  EXPECT_THROW(ops().add_residual(stream(), shorter, {}, a), Error);
  EXPECT_THROW(ops().add_residual(stream(), narrow, {}, a), Error);
  EXPECT_THROW(ops().convert(stream(), a, shorter), Error);
  EXPECT_THROW(ops().copy_vector(stream(), bench_.vector(Floats(7)), shorter), Error);
  EXPECT_THROW(ops().gather_rows(stream(), a, bench_.keep(std::vector<std::int32_t>{0}), a), Error);
}

TEST_P(RowsTest, ZeroClearsRealRowsOnly) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto x = bench_.put(random_floats(5 * 9, 1, dtype), 5, 9, dtype);
    ops().zero(stream(), x.row_range(1, 3));
    const auto actual = bench_.get(x);
    expect_same(row_of(actual, 0, 9), row_of(random_floats(5 * 9, 1, dtype), 0, 9), "row before");
    for (int r = 1; r < 4; ++r) expect_same(row_of(actual, r, 9), Floats(9), "cleared row");
    expect_same(row_of(actual, 4, 9), row_of(random_floats(5 * 9, 1, dtype), 4, 9), "row behind");
  }
}

TEST_P(RowsTest, GatesMultiplyWhatTheyStandBeside) {
  constexpr int kRows = 3, kColumns = 21;
  const auto both = random_floats(kRows * 2 * kColumns, 1);
  const auto in = bench_.put(both, kRows, 2 * kColumns);
  const auto out = bench_.empty(kRows, kColumns), narrow = bench_.empty(kRows, kColumns, DType::kBF16);
  ops().activate_gate(stream(), Activation::kSilu, in, out);
  ops().activate_gate(stream(), Activation::kSilu, in, narrow);
  std::vector<double> expected;
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      const double gate = both[r * 2 * kColumns + c], up = both[r * 2 * kColumns + kColumns + c];
      expected.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  }
  const auto actual = bench_.get(out);
  expect_close(actual, expected, 1e-6, "gated");
  expect_same(bench_.get(narrow), rounded_to(actual, DType::kBF16), "gated, rounded");
}

// min(g, limit) σ(1.702 min(g, limit)) (u + 1), u between -limit and limit: what gpt-oss computes.
TEST_P(RowsTest, GatesAreLimitedAndWhatTheyMultiplyIsMoved) {
  constexpr int kRows = 3, kColumns = 21;
  auto both = random_floats(kRows * 2 * kColumns, 1);
  for (float& v : both) v *= 4;
  const auto out = bench_.empty(kRows, kColumns);
  constexpr float kLimit = 1.5f;
  ops().activate_gate(stream(), {Activation::kQuickGelu, kLimit, 1}, bench_.put(both, kRows, 2 * kColumns), out);
  std::vector<double> expected;
  int limited = 0;
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      const double gate = both[r * 2 * kColumns + c], up = both[r * 2 * kColumns + kColumns + c];
      const double g = std::min<double>(gate, kLimit), u = std::clamp<double>(up, -kLimit, kLimit);
      limited += g != gate ? 1 : 0;
      expected.push_back(g / (1 + std::exp(-1.702 * g)) * (u + 1));
    }
  }
  EXPECT_GT(limited, 5);
  expect_close(bench_.get(out), expected, 1e-6, "limited");
}

TEST_P(RowsTest, RowsAreAddedAsTheirGateSays) {
  constexpr int kRows = 5, kColumns = 37;
  const auto x = random_floats(kRows * kColumns, 1), before = random_floats(kRows * kColumns, 2);
  const Floats gates = {-30, -1, 0, 2, 40};
  const auto inout = bench_.put(before, kRows, kColumns);
  ops().add_gated_rows(stream(), bench_.put(x, kRows, kColumns), bench_.put(gates, kRows, 1), inout);
  std::vector<double> expected;
  for (int i = 0; i < kRows * kColumns; ++i) {
    expected.push_back(before[i] + x[i] / (1 + std::exp(-static_cast<double>(gates[i / kColumns]))));
  }
  expect_close(bench_.get(inout), expected, 1e-6, "gated rows");
}

TEST_P(RowsTest, RotaryAnglesAreOfTheRoundedProduct) {
  const auto& positions = bench_.keep(std::vector<std::int32_t>{0, 1, 130999, 7});
  const auto& frequencies = bench_.keep(Floats{1.0f, 0.31f, 0.0017f});
  const auto out = bench_.empty(4, 6);
  ops().rotary_angles(stream(), positions, frequencies, out);
  const auto actual = bench_.get(out);
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t i = 0; i < 3; ++i) {
      const double angle = static_cast<float>(positions[r]) * frequencies[i];
      EXPECT_NEAR(actual[r * 6 + i], std::cos(angle), 6e-8) << "position " << positions[r];
      EXPECT_NEAR(actual[r * 6 + 3 + i], std::sin(angle), 6e-8) << "position " << positions[r];
    }
  }
}

// RoPE rotates queries and keys, values stay; a half of a head that is no multiple of eight, and one that is.
TEST_P(RowsTest, AppliesRopeToPairsOfQueriesAndKeys) {
  for (const int head_dim : {6, 32}) {
    const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = head_dim};
    constexpr int kRows = 3;
    const int columns = 8 * head_dim, half = head_dim / 2;
    const auto before = random_floats(static_cast<std::size_t>(kRows) * columns, 1);
    const auto& positions = bench_.keep(std::vector<std::int32_t>{5, 0, 311});
    const auto& frequencies = bench_.keep(random_floats(static_cast<std::size_t>(half), 2));
    const auto angles = bench_.empty(kRows, head_dim), qkv = bench_.put(before, kRows, columns);
    ops().rotary_angles(stream(), positions, frequencies, angles);
    ops().apply_rope(stream(), shape, angles, qkv);
    std::vector<double> expected(before.begin(), before.end());
    for (int r = 0; r < kRows; ++r) {
      for (int head = 0; head < 6; ++head) {
        for (int i = 0; i < half; ++i) {
          const double angle =
              static_cast<float>(positions[static_cast<std::size_t>(r)]) * frequencies[static_cast<std::size_t>(i)];
          double& x = expected[static_cast<std::size_t>(r * columns + head * head_dim + i)];
          double& y = (&x)[half];
          const double u = x * std::cos(angle) - y * std::sin(angle), v = y * std::cos(angle) + x * std::sin(angle);
          x = u, y = v;
        }
      }
    }
    expect_close(bench_.get(qkv), expected, 3e-7, fmt::format("head_dim {}", head_dim));
  }
}

// A head's first elements turn, the rest stays as it is.
TEST_P(RowsTest, RopeLeavesWhatIsBehindItsAngles) {
  constexpr int kHeadDim = 20, kRotated = 12, kRows = 3;
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = kHeadDim};
  const int columns = 4 * kHeadDim;
  const auto before = random_floats(static_cast<std::size_t>(kRows) * columns, 1);
  const auto angle_values = random_floats(static_cast<std::size_t>(kRows) * kRotated, 2);
  const auto qkv = bench_.put(before, kRows, columns);
  ops().apply_rope(stream(), shape, bench_.put(angle_values, kRows, kRotated), qkv);
  std::vector<double> expected(before.begin(), before.end());
  for (int r = 0; r < kRows; ++r) {
    for (int head = 0; head < 3; ++head) {
      for (int i = 0; i < kRotated / 2; ++i) {
        const double cosine = angle_values[static_cast<std::size_t>(r * kRotated + i)];
        const double sine = angle_values[static_cast<std::size_t>(r * kRotated + kRotated / 2 + i)];
        double& x = expected[static_cast<std::size_t>(r * columns + head * kHeadDim + i)];
        double& y = (&x)[kRotated / 2];
        const double u = x * cosine - y * sine, v = y * cosine + x * sine;
        x = u, y = v;
      }
    }
  }
  expect_close(bench_.get(qkv), expected, 3e-7, "partly rotated");
}

// Heads of `qkv` [rows, (heads + 2 kv_heads) × head_dim] that are normalised, in double precision: each by the root of
// the mean of `squares_of(row, is_query)` over as many elements as that says.
template <class SquaresOf>
std::vector<double> heads_reference(NormKind kind, const AttentionShape& shape, const Floats& qkv, double epsilon,
                                    SquaresOf&& squares_of, const std::function<double(int, int)>& weight) {
  const int columns = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  std::vector<double> result(qkv.begin(), qkv.end());
  for (std::size_t row = 0; row * columns < qkv.size(); ++row) {
    for (int head = 0; head < shape.heads + shape.kv_heads; ++head) {
      const double mean = squares_of(static_cast<int>(row), head);
      for (int d = 0; d < shape.head_dim; ++d) {
        const double one = kind == NormKind::kRmsNormPlusOne ? 1 : 0;
        result[row * columns + head * shape.head_dim + d] *= (one + weight(head, d)) / std::sqrt(mean + epsilon);
      }
    }
  }
  return result;
}

TEST_P(RowsTest, NormHeadsNormalisesEachQueryAndKeyByItself) {
  constexpr int kRows = 3;
  for (const int head_dim : {6, 64, 100}) {
    for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kRmsNormPlusOne}) {
      const AttentionShape shape{.heads = 6, .kv_heads = 3, .head_dim = head_dim};
      const int columns = 12 * head_dim;
      const auto x = random_floats(static_cast<std::size_t>(kRows) * columns, 1);
      const auto weight = random_floats(static_cast<std::size_t>(2 * head_dim), 2);
      const auto qkv = bench_.put(x, kRows, columns);
      ops().norm_heads(stream(), kind, shape, bench_.vector(weight), 1e-3f, qkv);
      const auto mean_square = [&](int row, int head) {
        double sum = 0;
        for (int d = 0; d < head_dim; ++d) sum += std::pow(x[row * columns + head * head_dim + d], 2.0);
        return sum / head_dim;
      };
      const auto expected = heads_reference(kind, shape, x, 1e-3, mean_square, [&](int head, int d) {
        return weight[static_cast<std::size_t>((head < 6 ? 0 : head_dim) + d)];
      });
      expect_close(bench_.get(qkv), expected, 1e-6, fmt::format("heads of {}", head_dim));
    }
  }
}

// Two ranks, of which the second has a query head of padding and a copy of the key head: what they sum is what a loop
// over all heads gives.
TEST_P(RowsTest, NormWidthNormalisesTheHeadsOfAllRanksTogether) {
  constexpr int kRows = 2, kHeadDim = 24, kHeads = 3, kColumns = 4 * kHeadDim;  // of a rank: 2 heads, a key, a value
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = kHeadDim};
  const auto& heads_of_first = bench_.keep(std::vector<std::int32_t>{0, 1, -1, 2});
  const auto& heads_of_second = bench_.keep(std::vector<std::int32_t>{-1, -1, 0, -1});
  for (const NormKind kind : {NormKind::kRmsNorm, NormKind::kRmsNormPlusOne}) {
    const auto first = random_floats(kRows * kColumns, 1);
    const auto weight = random_floats(3 * kHeadDim, 3);
    const auto qkv = bench_.put(first, kRows, kColumns);
    const auto other = bench_.put(random_floats(kRows * kColumns, 2), kRows, kColumns);
    const auto squares = bench_.empty(kRows, kHeads + 1), more = bench_.empty(kRows, kHeads + 1);
    ops().square_heads(stream(), shape, qkv, heads_of_first, squares);
    ops().square_heads(stream(), shape, other, heads_of_second, more);
    ops().add_residual(stream(), more, {}, squares);
    const auto second = bench_.get(other);
    const auto square = [&](const Floats& of, int row, int head) {
      double sum = 0;
      for (int d = 0; d < kHeadDim; ++d) sum += std::pow(of[row * kColumns + head * kHeadDim + d], 2.0);
      return sum;
    };
    std::vector<double> expected_squares;
    for (int row = 0; row < kRows; ++row) {
      for (const int head : {0, 1}) expected_squares.push_back(square(first, row, head));
      expected_squares.push_back(square(second, row, 0));
      expected_squares.push_back(square(first, row, 2));
    }
    expect_close(bench_.get(squares), expected_squares, 1e-6, "squares");
    ops().norm_width(stream(), kind, shape, squares, kHeads, bench_.vector(weight), 1e-3f, qkv);
    const auto mean_square = [&](int row, int head) {
      const double* of_row = &expected_squares[static_cast<std::size_t>(row) * 4];
      return head < 2 ? (of_row[0] + of_row[1] + of_row[2]) / (3 * kHeadDim) : of_row[3] / kHeadDim;
    };
    const auto expected = heads_reference(kind, shape, first, 1e-3, mean_square, [&](int head, int d) {
      return weight[static_cast<std::size_t>(head * kHeadDim + d)];
    });
    expect_close(bench_.get(qkv), expected, 1e-6, "whole width");
  }
}

TEST_P(RowsTest, NormsOfHeadsRefuseWhatDoesNotFit) {
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 4};
  const auto qkv = bench_.put(random_floats(16, 1), 1, 16), squares = bench_.empty(1, 3);
  const auto weight = bench_.vector(random_floats(8, 2));
  const auto& heads = bench_.keep(std::vector<std::int32_t>{0, 1, 3});
  EXPECT_THROW(ops().norm_heads(stream(), NormKind::kLayerNorm, shape, weight, 1e-5f, qkv), Error);
  EXPECT_THROW(ops().norm_heads(stream(), NormKind::kRmsNorm, shape, {}, 1e-5f, qkv), Error);
  EXPECT_THROW(ops().square_heads(stream(), shape, qkv, heads, squares), Error);
  EXPECT_THROW(ops().norm_width(stream(), NormKind::kRmsNorm, shape, squares, 3, weight, 1e-5f, qkv), Error);
  EXPECT_THROW(ops().soft_cap(stream(), 0, qkv), Error);
}

TEST_P(RowsTest, ScaleMultiplies) {
  for (const int columns : {7, 64, 5000}) {
    const auto x = random_floats(static_cast<std::size_t>(3) * columns, 1);
    const auto inout = bench_.put(x, 3, columns);
    ops().scale(stream(), -0.3f, inout);
    Floats expected(x);
    for (float& v : expected) v *= -0.3f;
    expect_same(bench_.get(inout), expected, fmt::format("{} columns", columns));
  }
}

TEST_P(RowsTest, SoftCapBendsWhatIsLarge) {
  for (const float cap : {0.5f, 30.0f}) {
    auto x = random_floats(4 * 50, 1);
    for (float& v : x) v *= 40;
    x[0] = 1e30f, x[1] = -1e30f, x[2] = 0, x[3] = 1e-6f;
    const auto inout = bench_.put(x, 4, 50);
    ops().soft_cap(stream(), cap, inout);
    std::vector<double> expected;
    for (const float v : x) expected.push_back(cap * std::tanh(static_cast<double>(v) / cap));
    expect_close(bench_.get(inout), expected, 3e-7, fmt::format("cap {}", cap));
  }
}

TEST_P(RowsTest, GatherKeepsNarrowRowsAsTheyAre) {
  const auto values = random_floats(6 * 11, 1, DType::kBF16);
  const auto in = bench_.put(values, 6, 11, DType::kBF16), out = bench_.empty(3, 11, DType::kBF16);
  const auto& rows = bench_.keep(std::vector<std::int32_t>{4, 0, 4});
  ops().gather_rows(stream(), in, rows, out);
  const auto actual = bench_.get(out);
  for (int i = 0; i < 3; ++i) expect_same(row_of(actual, i, 11), row_of(values, rows[i], 11), "gathered row");
}

TEST_P(RowsTest, ScatterAddsWeightedRowsOneAfterTheOther) {
  constexpr int kColumns = 1030;  // more than one thread takes
  const auto x = random_floats(3 * kColumns, 1), h = random_floats(4 * kColumns, 2);
  for (const auto& to : {std::vector<std::int32_t>{2, 0, 2}, {1, 1, 3}, {2, 2, 2}, {0, 1, 3}}) {
    const auto in = bench_.put(x, 3, kColumns), inout = bench_.put(h, 4, kColumns);
    const auto& rows = bench_.keep(to);
    const auto& weights = bench_.keep(Floats{0.25f, -3.0f, 0.7f});
    ops().scatter_add(stream(), in, rows, weights, inout);
    std::vector<double> expected(h.begin(), h.end());
    for (int i = 0; i < 3; ++i) {
      for (int c = 0; c < kColumns; ++c) {
        expected[static_cast<std::size_t>(rows[i] * kColumns + c)] +=
            static_cast<double>(weights[i]) * x[static_cast<std::size_t>(i * kColumns + c)];
      }
    }
    expect_close(bench_.get(inout), expected, 2e-7, "scattered");
  }
}

TEST_P(RowsTest, NothingToGatherOrScatterIsNoError) {
  const auto in = bench_.put(random_floats(8, 1), 2, 4), none = bench_.empty(0, 4);
  ops().gather_rows(stream(), in, {}, none);
  ops().scatter_add(stream(), none, {}, {}, in);
  expect_same(bench_.get(in), random_floats(8, 1), "untouched");
}

TEST_P(RowsTest, CopiesFromHostAndBack) {
  const auto& values = bench_.keep(random_floats(15, 1));
  const auto out = bench_.empty(3, 5);
  ops().copy_from_host(stream(), values.data(), out);
  expect_same(bench_.get(out), values, "copied");
}

COMPUTRON_ON_EVERY_DEVICE(RowsTest);
COMPUTRON_ON_EVERY_DEVICE(FetchedRowsTest);

}  // namespace
}  // namespace computron::testing
