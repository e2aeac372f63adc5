// gemm against a loop in double precision, its bits against itself, and its waiting for pages.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/ops/ops_fixture.h"
#include "tests/ops/quantised.h"
#include "tests/support/test_device.h"

namespace computron::testing {
namespace {

using GemmTest = OpsTest;

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-1.702 * x));
  }
  return NAN;
}

std::vector<double> reference(const Floats& x, const Floats& w, const Floats& bias, int rows, int out, int in,
                              Activation activation) {
  std::vector<double> result;
  const auto depth = static_cast<std::size_t>(in), columns = static_cast<std::size_t>(out);
  for (std::size_t m = 0; m < static_cast<std::size_t>(rows); ++m) {
    for (std::size_t n = 0; n < columns; ++n) {
      double sum = bias.empty() ? 0 : bias[n];
      for (std::size_t k = 0; k < depth; ++k) sum += static_cast<double>(x[m * depth + k]) * w[n * depth + k];
      result.push_back(activated(activation, sum));
    }
  }
  return result;
}

double tolerance(const Bench& bench, DType weight, DType out) {
  return out == DType::kF32 ? accumulated_tolerance(bench.traits(), weight) : narrow_tolerance(out);
}

// Float32 and what is narrower here.
std::vector<DType> output_types(const Bench& bench) {
  auto types = bench.narrow_types();
  types.push_back(DType::kF32);
  return types;
}

constexpr char kRefuses[] = "COMPUTRON_EMULATED_CUBLASLT_REFUSES";

struct Shape {
  int rows, out, in;
};

void expect_double_loop(Bench& bench, const Shape& shape, DType dtype, DType out_dtype) {
  const auto [rows, out, in] = shape;
  const DType x_dtype = bench.ops().weight_format().input_dtype(dtype);
  const auto x = random_floats(static_cast<std::size_t>(rows) * in, 1, x_dtype);
  const auto w = random_floats(static_cast<std::size_t>(out) * in, 2, dtype);
  const auto y = bench.empty(rows, out, out_dtype);
  bench.ops().gemm(bench.stream(), bench.put(x, rows, in, x_dtype), bench.weight(w, out, in, dtype), {},
                   Activation::kNone, y);
  expect_close(bench.get(y), reference(x, w, {}, rows, out, in, Activation::kNone), tolerance(bench, dtype, out_dtype),
               fmt::format("[{}, {}] x [{}, {}] {} -> {}", rows, in, out, in, name_of(dtype), name_of(out_dtype)));
}

TEST_P(GemmTest, MatchesDoubleLoop) {
  for (const auto [rows, out, in] :
       {Shape{1, 64, 64}, Shape{3, 200, 100}, Shape{5, 65, 33}, Shape{17, 130, 20}, Shape{40, 700, 96},
        Shape{300, 72, 48}, Shape{512, 72, 48}, Shape{2, 1, 7}, Shape{3, 200, 1032}, Shape{12, 200, 3080}}) {
    for (const DType dtype : {DType::kF32, DType::kF16, bench_.ops().weight_type(DType::kBF16).values}) {
      for (const DType out_dtype : output_types(bench_)) {
        expect_double_loop(bench_, {rows, out, in}, dtype, out_dtype);
      }
    }
  }
}

// Of a GPU's kernel for few rows, whose blocks go on to other tiles of 16: more than an H200 has blocks at a time
// (264).
TEST_P(GemmTest, MoreTilesThanBlocksMatchDoubleLoop) {
  expect_double_loop(bench_, {2, 4500, 1104}, bench_.ops().weight_type(DType::kBF16).values, DType::kF32);
}

// The memory that held the rows of one call holds those of the next: nothing that was made of them may be left.
TEST_P(GemmTest, RowsThatChangeInPlaceAreTakenAnew) {
  constexpr int kRows = 9, kOut = 200, kIn = 160;
  const WeightType int8(bench_.ops().weight_type(DType::kBF16).values, DType::kInt8, DType::kF32, 32);
  const QuantisedWeight coded = random_quantised(int8, kOut, kIn, 2, ordinary_scales());
  const auto plain = [&](DType dtype) { return bench_.weight(random_floats(kOut * kIn, 2, dtype), kOut, kIn, dtype); };
  for (const Weight& weight : {plain(DType::kF32), plain(DType::kF16), plain(int8.values),
                               bench_.weight(int8, kOut, kIn, coded.codes, coded.scale_bytes(), {512})}) {
    const DType x_dtype = bench_.ops().weight_format().input_dtype(weight.type);
    const auto product = [&](Activations x) {
      const auto y = bench_.empty(kRows, kOut);
      bench_.ops().gemm(bench_.stream(), x, weight, {}, Activation::kNone, y);
      return bench_.get(y);
    };
    const auto before = random_floats(kRows * kIn, 1, x_dtype), now = random_floats(kRows * kIn, 3, x_dtype);
    const Activations x = bench_.put(before, kRows, kIn, x_dtype);
    const Floats first = product(x);
    const auto& bytes = bench_.keep(bytes_of(now, x_dtype));
    bench_.ops().copy_from_host(bench_.stream(), bytes.data(), x);
    const Floats second = product(x);
    expect_same(second, product(bench_.put(now, kRows, kIn, x_dtype)),
                fmt::format("{} codes", name_of(weight.type.codes)));
    EXPECT_NE(first, second);
  }
}

TEST_P(GemmTest, AddsBiasAndActivates) {
  constexpr int kRows = 9, kOut = 75, kIn = 40;
  const auto x = random_floats(kRows * kIn, 1), w = random_floats(kOut * kIn, 2);
  auto bias = random_floats(kOut, 3);
  for (float& b : bias) b *= 6;  // both tails of the activations
  for (const auto activation : {Activation::kNone, Activation::kRelu, Activation::kGeluTanh, Activation::kGeluErf,
                                Activation::kSilu, Activation::kTanh, Activation::kQuickGelu}) {
    const auto y = bench_.empty(kRows, kOut);
    bench_.ops().gemm(bench_.stream(), bench_.put(x, kRows, kIn), bench_.weight(w, kOut, kIn, DType::kF32),
                      bench_.vector(bias), activation, y);
    expect_close(bench_.get(y), reference(x, w, bias, kRows, kOut, kIn, activation), 2e-6,
                 fmt::format("activation {}", static_cast<int>(activation)));
  }
}

// Many rows of narrow types, which devices have other kernels for; what is behind the sums may be rounded twice. The
// bias lies at a multiple of 256 or of 4 only.
TEST_P(GemmTest, AddsBiasAndActivatesManyNarrowRows) {
  constexpr int kRows = 70, kOut = 192, kIn = 64;
  const DType dtype = bench_.ops().weight_type(DType::kBF16).values;
  const DType x_dtype = bench_.ops().weight_format().input_dtype(dtype);
  const auto x = random_floats(kRows * kIn, 1, x_dtype), w = random_floats(kOut * kIn, 2, dtype);
  const Floats bias = random_floats(kOut, 3);
  Floats behind_another = bias;
  behind_another.insert(behind_another.begin(), 0.5f);
  for (const auto activation : {Activation::kNone, Activation::kRelu, Activation::kGeluTanh, Activation::kGeluErf}) {
    for (const auto& [out_dtype, shift] : {std::pair{DType::kF32, 0}, {DType::kBF16, 0}, {DType::kF32, 1}}) {
      Vector vector = bench_.vector(shift == 0 ? bias : behind_another);
      vector.data += shift;
      vector.length = kOut;
      const auto y = bench_.empty(kRows, kOut, out_dtype);
      bench_.ops().gemm(bench_.stream(), bench_.put(x, kRows, kIn, x_dtype),
                        bench_.weight(w, kOut, kIn, dtype, {64, 128}), vector, activation, y);
      expect_close(bench_.get(y), reference(x, w, bias, kRows, kOut, kIn, activation),
                   2 * tolerance(bench_, dtype, out_dtype),
                   fmt::format("activation {} to {}", static_cast<int>(activation), name_of(out_dtype)));
    }
  }
}

// Pieces that the library's algorithm refuses are computed by another kernel, every time; the others do not notice.
TEST_P(GemmTest, ARefusedPieceStaysWithItsKernel) {
  if (!test::on_emulated_gpu()) GTEST_SKIP() << "for a library that refuses what it is told to";
  constexpr int kRows = 70, kOut = 448, kIn = 96, kPiece = 64;  // in pieces of 128, 64, 128, 128 rows
  const DType dtype = bench_.ops().weight_type(DType::kBF16).values;
  const DType x_dtype = bench_.ops().weight_format().input_dtype(dtype);
  const auto x = random_floats(kRows * kIn, 1, x_dtype), w = random_floats(kOut * kIn, 2, dtype);
  const auto bias = random_floats(kOut, 3);
  const auto input = bench_.put(x, kRows, kIn, x_dtype);
  const Weight weight = bench_.weight(w, kOut, kIn, dtype, {128, kPiece, 128});
  const Vector bias_vector = bench_.vector(bias);
  const auto product = [&](const char* refused) {
    refused == nullptr ? unsetenv(kRefuses) : setenv(kRefuses, refused, /*overwrite=*/1);
    const auto y = bench_.empty(kRows, kOut);
    bench_.ops().gemm(bench_.stream(), input, weight, bias_vector, Activation::kRelu, y);
    unsetenv(kRefuses);
    auto values = bench_.get(y);
    expect_close(values, reference(x, w, bias, kRows, kOut, kIn, Activation::kRelu),
                 tolerance(bench_, dtype, DType::kF32), refused == nullptr ? "whole" : refused);
    return values;
  };
  const auto whole = product(nullptr), piece = product("64");
  for (int i = 0; i < kRows * kOut; ++i) {
    if (i % kOut >= 128 && i % kOut < 128 + kPiece) continue;
    ASSERT_EQ(piece[static_cast<std::size_t>(i)], whole[static_cast<std::size_t>(i)]) << i;
  }
  EXPECT_NE(piece, whole) << "nothing was refused";
  product("epilogue");
  expect_same(product("64"), piece, "the second time");
  expect_same(product(nullptr), whole, "when nothing is refused any longer");
}

TEST_P(GemmTest, ActivationsKeepTheirTails) {
  Floats x;
  for (double v = -12; v <= 12; v += 0.03125) x.push_back(static_cast<float>(v));
  const int n = static_cast<int>(x.size());
  for (const auto activation : {Activation::kGeluTanh, Activation::kGeluErf, Activation::kSilu}) {
    const auto y = bench_.empty(n, 1);
    bench_.ops().gemm(bench_.stream(), bench_.put(x, n, 1), bench_.weight({1}, 1, 1, DType::kF32), {}, activation, y);
    const auto actual = bench_.get(y);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = activated(activation, x[i]);
      // Below -4 the erf and tanh of the reference themselves lose what 1 + erf cancels.
      const double slack = 3e-6 * std::abs(expected) + 1e-16 * std::abs(x[i]) + 1e-37;
      EXPECT_NEAR(actual[i], expected, slack) << "activation " << static_cast<int>(activation) << " of " << x[i];
    }
  }
}

// Sums that float16 cannot hold become its largest number, whatever kernel narrows them: few rows and many, with a bias
// and an activation on the way and behind.
TEST_P(GemmTest, SumsTooLargeForFloat16AreClamped) {
  const std::vector<DType> narrow = bench_.narrow_types();
  if (std::ranges::find(narrow, DType::kF16) == narrow.end()) GTEST_SKIP() << "no outputs of float16 on this device";
  constexpr int kOut = 128, kIn = 64;
  constexpr float kLargest = 65504;
  const DType x_dtype = bench_.ops().weight_format().input_dtype(DType::kF16);
  Floats w(std::size_t{kOut} * kIn, 64.0f);
  std::fill(w.begin() + kOut / 2 * kIn, w.end(), -64.0f);
  for (const int rows : {1, 16, 70}) {
    const Floats x(static_cast<std::size_t>(rows) * kIn, 64.0f);  // sums of 262,144 and their negatives
    for (const auto activation : {Activation::kNone, Activation::kRelu, Activation::kGeluErf}) {
      for (const bool biased : {false, true}) {
        const auto y = bench_.empty(rows, kOut, DType::kF16);
        bench_.ops().gemm(bench_.stream(), bench_.put(x, rows, kIn, x_dtype), bench_.weight(w, kOut, kIn, DType::kF16),
                          biased ? bench_.vector(Floats(kOut, 1.0f)) : Vector{}, activation, y);
        const Floats values = bench_.get(y);
        const float least = activation == Activation::kNone ? -kLargest : 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], i % kOut < kOut / 2 ? kLargest : least)
              << rows << " rows, activation " << static_cast<int>(activation) << ", bias " << biased << ", " << i;
        }
      }
    }
  }
}

TEST_P(GemmTest, NanAndInfinityReachTheOutput) {
  for (const auto activation : {Activation::kRelu, Activation::kGeluTanh, Activation::kGeluErf, Activation::kSilu}) {
    const auto y = bench_.empty(1, 2);
    bench_.ops().gemm(bench_.stream(), bench_.put({1}, 1, 1), bench_.weight({1, 1}, 2, 1, DType::kF32),
                      bench_.vector({NAN, INFINITY}), activation, y);
    const auto actual = bench_.get(y);
    EXPECT_TRUE(std::isnan(actual[0])) << static_cast<int>(activation);
    EXPECT_EQ(actual[1], INFINITY) << static_cast<int>(activation);
  }
}

// A row alone in one panel on one thread is the measure for every batch, cut and number of threads; on a GPU for the
// few rows of decoding.
TEST_P(GemmTest, BitsDependOnNeitherBatchNorCutNorThreads) {
  Bench alone({device_cases().front()});
  constexpr int kMaxRows = 300;
  const std::vector<std::vector<int>> cuts = {{1024}, {64}, {128, 64, 320}};
  for (const DType dtype : {DType::kF32, DType::kF16, bench_.ops().weight_type(DType::kBF16).values}) {
    for (const auto [_, out, in] : {Shape{0, 200, 80}, Shape{0, 640, 2080}, Shape{0, 64, 6144}}) {
      const DType x_dtype = bench_.ops().weight_format().input_dtype(dtype);
      const auto x = random_floats(static_cast<std::size_t>(kMaxRows) * in, 1, x_dtype);
      const auto w = random_floats(static_cast<std::size_t>(out) * in, 2, dtype);
      const auto compute = [&, out = out](Bench& bench, const Activations& rows, const Weight& weight) {
        const auto y = bench.empty(rows.rows, out);
        bench.ops().gemm(bench.stream(), rows, weight, {}, Activation::kNone, y);
        return bench.get(y);
      };
      const Weight whole = alone.weight(w, out, in, dtype, {1024});
      std::vector<Weight> weights;
      for (const auto& cut : cuts) weights.push_back(bench_.weight(w, out, in, dtype, cut));
      for (const int rows : {1, 2, 3, 7, 8, 33, 64, 256, 300}) {
        if (rows > 8 && !bench_.traits().any_batch_same_bits) break;
        const int last = rows - 1;
        const auto first_alone = compute(alone, alone.put(row_of(x, 0, in), 1, in, x_dtype), whole);
        const auto last_alone = compute(alone, alone.put(row_of(x, last, in), 1, in, x_dtype), whole);
        const Floats batch(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(rows) * in);
        const auto input = bench_.put(batch, rows, in, x_dtype);
        for (std::size_t i = 0; i < cuts.size(); ++i) {
          const auto y = compute(bench_, input, weights[i]);
          const auto what = fmt::format("{} [{}, {}], {} rows, cut {}", name_of(dtype), out, in, rows, i);
          expect_same(row_of(y, 0, out), first_alone, what);
          expect_same(row_of(y, last, out), last_alone, what);
        }
      }
    }
  }
}

// Pages cut a weight while they arrive, and not where they lie side by side: with many rows, too, which libraries
// multiply.
TEST_P(GemmTest, BitsOfManyRowsDoNotDependOnTheCut) {
  const int block = bench_.ops().weight_format().row_block();
  const std::vector<std::vector<int>> cuts = {{4096}, {block, 4096}, {5 * block}, {7 * block, 3 * block}};
  const DType dtype = bench_.ops().weight_type(DType::kBF16).values;
  const DType x_dtype = bench_.ops().weight_format().input_dtype(dtype);
  for (const auto [rows, out, in] : {Shape{17, 640, 320}, Shape{64, 1040, 256}, Shape{300, 1040, 64}}) {
    const auto x = bench_.put(random_floats(static_cast<std::size_t>(rows) * in, 1, x_dtype), rows, in, x_dtype);
    const auto w = random_floats(static_cast<std::size_t>(out) * in, 2, dtype);
    const Vector bias = bench_.vector(random_floats(out, 3));
    for (const DType out_dtype : output_types(bench_)) {
      Floats whole;
      for (std::size_t i = 0; i < cuts.size(); ++i) {
        const auto y = bench_.empty(rows, out, out_dtype);
        bench_.ops().gemm(bench_.stream(), x, bench_.weight(w, out, in, dtype, cuts[i]), bias, Activation::kRelu, y);
        const Floats actual = bench_.get(y);
        if (i == 0) whole = actual;
        expect_same(actual, whole, fmt::format("{} x [{}, {}] to {}, cut {}", rows, out, in, name_of(out_dtype), i));
      }
    }
  }
}

// Whatever the cut into panels; rows of 300 take several calls of the kernel.
TEST_P(GemmTest, QuantisedWeightsGiveWhatTheirValuesGive) {
  std::vector<WeightType> types = {{DType::kBF16, DType::kFp4, DType::kE4M3, 16}};
  for (const DType codes : kCodeDTypes) types.emplace_back(DType::kBF16, codes, DType::kF16, 32);
  for (const WeightType& stored : types) {
    if (!is_taken(bench_, stored)) continue;
    const auto type = bench_.ops().weight_type(stored);
    for (const auto [rows, out, in] :
         {Shape{1, 200, 80}, Shape{5, 64, 33}, Shape{40, 200, 200}, Shape{300, 130, 200}}) {
      const auto w = random_quantised(type, out, in, 2, ordinary_scales());
      const auto x =
          bench_.put(random_floats(static_cast<std::size_t>(rows) * in, 1, type.values), rows, in, type.values);
      const auto y = bench_.empty(rows, out), expected = bench_.empty(rows, out);
      const auto bias = bench_.vector(random_floats(static_cast<std::size_t>(out), 3));
      bench_.ops().gemm(bench_.stream(), x, bench_.weight(w.values(), out, in, type.values), bias, Activation::kSilu,
                        expected);
      Floats whole;
      for (const auto& cut : {std::vector{512}, {64}, {128, 64}}) {
        bench_.ops().gemm(bench_.stream(), x, bench_.weight(type, out, in, w.codes, w.scale_bytes(), cut, w.factors),
                          bias, Activation::kSilu, y);
        const auto actual = bench_.get(y);
        const auto what = fmt::format("{} [{}, {}]", describe(type), out, in);
        const Floats of_values = bench_.get(expected);
        if (has_own_order(bench_, type, rows, in)) {
          expect_close(actual, {of_values.begin(), of_values.end()}, 1e-5, what);
        } else {
          expect_like_values(bench_, type, actual, of_values, what);
        }
        if (whole.empty()) whole = actual;
        expect_same(actual, whole, what);
      }
    }
  }
}

// A weight given part by part: each part computes its own columns, with the bits of the whole, and no others.
TEST_P(GemmTest, PartsComputeTheirOwnColumns) {
  constexpr int kRows = 5, kOut = 300, kIn = 72;
  const auto x = random_floats(kRows * kIn, 1), w = random_floats(kOut * kIn, 2), bias = random_floats(kOut, 3);
  const auto weight = bench_.weight(w, kOut, kIn, DType::kF32, {64});
  const auto before = random_floats(kRows * kOut, 4);
  const auto whole = bench_.empty(kRows, kOut), part = bench_.put(before, kRows, kOut);
  const auto input = bench_.put(x, kRows, kIn);
  const auto gemm = [&](std::span<const WeightPanel> panels, const Activations& y) {
    bench_.ops().gemm(bench_.stream(), input, {panels, kOut, kIn, DType::kF32}, bench_.vector(bias), Activation::kRelu,
                      y);
  };
  gemm(weight.panels, whole);
  gemm(weight.panels.subspan(1, 2), part);
  const auto all = bench_.get(whole), some = bench_.get(part);
  for (int i = 0; i < kRows * kOut; ++i) {
    const bool computed = i % kOut >= 64 && i % kOut < 192;
    ASSERT_EQ(some[static_cast<std::size_t>(i)], (computed ? all : before)[static_cast<std::size_t>(i)]) << i;
  }
  gemm(weight.panels.first(1), part);
  gemm(weight.panels.subspan(3), part);
  expect_same(bench_.get(part), all, "all parts");
}

// What it needs arrives over a slow link while the operation has long been given.
class FetchedGemmTest : public OpsTest {
 protected:
  static constexpr int kRows = 4, kOut = 256, kIn = 64, kPanel = 64;

  const std::byte* fetch(const std::vector<std::byte>& bytes) {
    events_.push_back(bench_.device().make_event());
    return link_.fetch(bytes, *events_.back());
  }
  void expect_product(const Weight& weight, Vector bias, const Floats& bias_values) {
    bench_.ops().gemm(bench_.stream(), input_, weight, bias, Activation::kNone, y_);
    expect_close(bench_.get(y_), reference(x_, w_, bias_values, kRows, kOut, kIn, Activation::kNone), 2e-6, "fetched");
  }

  Floats x_ = random_floats(kRows * kIn, 1), w_ = random_floats(kOut * kIn, 2), bias_ = random_floats(kOut, 3);
  Activations input_ = bench_.put(x_, kRows, kIn), y_ = bench_.empty(kRows, kOut);
  std::vector<std::unique_ptr<Event>> events_;
  SlowLink link_{bench_};
};

TEST_P(FetchedGemmTest, EveryPanelIsWaitedFor) {
  std::vector<WeightPanel> panels;
  for (int row = 0; row < kOut; row += kPanel) {
    const auto* data = fetch(bench_.pack(&w_[static_cast<std::size_t>(row) * kIn], kPanel, kIn, DType::kF32));
    panels.push_back({data, events_.back().get(), row, kPanel});
  }
  expect_product({panels, kOut, kIn, DType::kF32}, {}, {});
}

TEST_P(FetchedGemmTest, BiasIsWaitedFor) {
  const auto weight = bench_.weight(w_, kOut, kIn, DType::kF32);
  const auto* bias = reinterpret_cast<const float*>(fetch(bytes_of(bias_, DType::kF32)));
  expect_product(weight, {bias, events_.back().get(), kOut}, bias_);
}

TEST_P(GemmTest, NoRowsAreNoWork) {
  const auto y = bench_.empty(0, 64);
  bench_.ops().gemm(bench_.stream(), bench_.put({}, 0, 8), bench_.weight(random_floats(512, 1), 64, 8, DType::kF32), {},
                    Activation::kNone, y);
  EXPECT_TRUE(bench_.get(y).empty());
}

TEST_P(GemmTest, RefusesWhatDoesNotFit) {
  const auto x = bench_.put(random_floats(16, 1), 2, 8);
  const auto weight = bench_.weight(random_floats(512, 1), 64, 8, DType::kF32);
  const auto gemm = [&](Activations input, Weight w, Vector bias, Activations y) {
    bench_.ops().gemm(bench_.stream(), input, w, bias, Activation::kNone, y);
  };
  EXPECT_THROW(gemm(x, weight, {}, bench_.empty(2, 63)), Error);
  EXPECT_THROW(gemm(x, weight, {}, bench_.empty(1, 64)), Error);
  EXPECT_THROW(gemm(bench_.put(random_floats(14, 1), 2, 7), weight, {}, bench_.empty(2, 64)), Error);
  EXPECT_THROW(gemm(x, weight, bench_.vector(Floats(63)), bench_.empty(2, 64)), Error);
  EXPECT_THROW(gemm(bench_.put(random_floats(16, 1), 2, 8, DType::kBF16), weight, {}, bench_.empty(2, 64)), Error);
  EXPECT_THROW(gemm(x, {weight.panels.first(0), 64, 8, DType::kF32}, {}, bench_.empty(2, 64)), Error);
}

TEST_P(GemmTest, PaddedRowsHoldTheRowsAndGrow) {
  int before = 0;
  for (int rows = 0; rows < 1000; ++rows) {
    const int padded = bench_.ops().padded_rows(rows);
    EXPECT_GE(padded, rows);
    EXPECT_GE(padded, before);
    before = padded;
  }
  EXPECT_EQ(bench_.ops().padded_rows(0), 0);
}

COMPUTRON_ON_EVERY_DEVICE(GemmTest);
COMPUTRON_ON_EVERY_DEVICE(FetchedGemmTest);

}  // namespace
}  // namespace computron::testing
