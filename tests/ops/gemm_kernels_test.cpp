// Every CPU GEMM kernel that this processor can run, chosen or not. Runs with narrower vectors, too
// (CMakeLists.txt).
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_measure.h"
#include "kernels/cpu/pack.h"
#include "tests/ops/ops_fixture.h"
#include "tests/ops/quantised.h"

namespace computron::testing {
namespace {

using kernels::Gemm;
using kernels::GemmChoice;
using kernels::GemmKernel;
using kernels::PanelBlocking;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> pack(const Floats& w, int out, int in, DType dtype) {
  std::vector<std::byte> packed(kernels::packed_bytes(out, in, dtype));
  kernels::pack(packed.data(), in, dtype, 0, out, 0, in, bytes_of(w, dtype).data(), static_cast<std::size_t>(in), 1);
  return packed;
}

std::vector<std::byte> pack(const QuantisedWeight& w) {
  std::vector<std::byte> packed(kernels::packed_bytes(w.out, w.in, w.type));
  kernels::pack(packed.data(), w.in, w.type, 0, w.out, 0, w.in, w.codes.data(), static_cast<std::size_t>(w.in), 1);
  kernels::pack_scales(packed.data(), w.in, w.type, 0, w.out, 0, w.groups(), w.scale_bytes().data(),
                       static_cast<std::size_t>(w.groups()), 1);
  for (int row = 0; row < static_cast<int>(w.factors.size()); ++row) {
    kernels::pack_factor(packed.data(), w.in, w.type, row, 1, w.factors[static_cast<std::size_t>(row)]);
  }
  return packed;
}

// Sums go, with a bias or without, where a caller wants them, and nowhere else.
void expect_results(Gemm& gemm, const GemmChoice& choice, const std::vector<std::byte>& weight, const Floats& sums,
                    int rows, int out) {
  constexpr float kUntouched = -7;
  const std::size_t stride = static_cast<std::size_t>(out) + 24;
  Floats tile(sums.size(), kNaN), bias = random_floats(static_cast<std::size_t>(out), 3);
  for (const float* some : {static_cast<const float*>(bias.data()), static_cast<const float*>(nullptr)}) {
    Floats found(rows * stride, kUntouched), expected = found;
    for (int m = 0; m < rows; ++m) {
      for (int n = 0; n < out; ++n) {
        const float sum = sums[static_cast<std::size_t>(m) * out + n];
        expected[m * stride + n + 8] = some == nullptr ? sum : sum + some[n];
      }
    }
    const kernels::PanelResult result{.to = reinterpret_cast<std::byte*>(found.data() + 8),
                                      .stride = stride * sizeof(float),
                                      .dtype = DType::kF32,
                                      .of_sums = true,
                                      .bias = some};
    gemm.run(choice, weight.data(), out, tile.data(), &result);
    expect_same(found, expected, fmt::format("results of {} rows", rows));
  }
}

// [rows, out] of the first `rows` rows of x.
Floats multiply(const GemmChoice& choice, const WeightType& type, const std::vector<std::byte>& x, int rows, int in,
                const std::vector<std::byte>& weight, int out) {
  static Gemm gemm;  // as a thread has it: nothing of what it took before may be left
  Floats tile(static_cast<std::size_t>(rows) * out, kNaN);
  gemm.take_rows(type, x.data(), rows, in);
  gemm.run(choice, weight.data(), out, tile.data());
  expect_results(gemm, choice, weight, tile, rows, out);
  return tile;
}

Floats column(const Floats& matrix, int k, int columns) {
  Floats result;
  for (std::size_t i = static_cast<std::size_t>(k); i < matrix.size(); i += columns) result.push_back(matrix[i]);
  return result;
}

// x [rows, in] · wᵀ of w [out, in], summed in double precision.
std::vector<double> double_loop(const Floats& x, const Floats& w, int rows, int out, int in) {
  std::vector<double> result;
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < out; ++n) {
      double sum = 0;
      for (int k = 0; k < in; ++k) sum += static_cast<double>(x[m * in + k]) * w[n * in + k];
      result.push_back(sum);
    }
  }
  return result;
}

// Whatever rows are beside it, whichever kernel of its type, and however this cuts the weight.
TEST(GemmKernels, MatchDoubleLoopWithTheSameBitsForAnyRowsKernelAndBlocking) {
  constexpr int kOut = 128, kMaxRows = 64;
  const PanelBlocking short_slices{.ahead_bytes = 0, .slice_bytes = 8192, .again_bytes = 0};
  const PanelBlocking asked_again{.ahead_bytes = 0, .slice_bytes = 8192, .again_bytes = 12288};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int in : {20, 64, 1000, 2304}) {
      const auto x = random_floats(static_cast<std::size_t>(kMaxRows) * in, 1, kernels::gemm_input_dtype(dtype));
      const auto w = random_floats(static_cast<std::size_t>(kOut) * in, 2, dtype);
      const auto x_bytes = bytes_of(x, kernels::gemm_input_dtype(dtype)), packed = pack(w, kOut, in, dtype);
      Floats all;
      for (const GemmKernel kernel : kernels::gemm_kernels(dtype)) {
        const auto what = fmt::format("{} kernel {} depth {}", name_of(dtype), static_cast<int>(kernel), in);
        if (all.empty()) {
          all = multiply({kernel, {}}, dtype, x_bytes, kMaxRows, in, packed, kOut);
          expect_close(all, double_loop(x, w, kMaxRows, kOut, in), 2e-6, what);
        }
        for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 25, 33, 48, 64}) {
          const Floats expected(all.begin(), all.begin() + rows * kOut);
          expect_same(multiply({kernel, {}}, dtype, x_bytes, rows, in, packed, kOut), expected,
                      fmt::format("{}, {} rows", what, rows));
          for (const PanelBlocking& blocking : {short_slices, asked_again}) {
            expect_same(multiply({kernel, blocking}, dtype, x_bytes, rows, in, packed, kOut), expected,
                        fmt::format("{}, {} rows, short slices", what, rows));
          }
        }
      }
    }
  }
}

// Seven blocks: some at once and a rest, whichever way a call cuts them.
TEST(GemmKernels, BlocksAtOnceHaveTheBitsOfOneByItself) {
  constexpr int kOut = 7 * 64, kMaxRows = 5;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const DType input = kernels::gemm_input_dtype(dtype);
    for (const int in : {20, 1000}) {
      const auto x = bytes_of(random_floats(static_cast<std::size_t>(kMaxRows) * in, 1, input), input);
      const auto packed = pack(random_floats(static_cast<std::size_t>(kOut) * in, 2, dtype), kOut, in, dtype);
      for (const GemmKernel kernel : kernels::gemm_kernels(dtype)) {
        for (int rows = 1; rows <= kMaxRows; ++rows) {
          const auto expected = multiply({kernel, {.blocks_at_once = 1}}, dtype, x, rows, in, packed, kOut);
          for (const int blocks : {2, 4}) {
            expect_same(multiply({kernel, {.blocks_at_once = blocks}}, dtype, x, rows, in, packed, kOut), expected,
                        fmt::format("{} by {}, {} rows, {} blocks", name_of(dtype), name_of(kernel), rows, blocks));
          }
        }
      }
    }
  }
}

// Weights of 16 bits that are multiplied as float32 are what they are when they are stored so.
TEST(GemmKernels, WidenedWeightsHaveTheBitsOfFloat32) {
  constexpr int kOut = 128;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    if (kernels::gemm_input_dtype(dtype) != DType::kF32) continue;
    for (const int in : {20, 64, 1000, 2304}) {
      const auto x = bytes_of(random_floats(static_cast<std::size_t>(kernels::kMaxGemmRows) * in, 1), DType::kF32);
      const auto w = random_floats(static_cast<std::size_t>(kOut) * in, 2, dtype);
      const auto narrow = pack(w, kOut, in, dtype), wide = pack(w, kOut, in, DType::kF32);
      for (const GemmKernel kernel : kernels::gemm_kernels(dtype)) {
        for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 32, 64, 65, kernels::kMaxGemmRows}) {
          expect_same(multiply({kernel, {}}, dtype, x, rows, in, narrow, kOut),
                      multiply({kernel, {}}, DType::kF32, x, rows, in, wide, kOut),
                      fmt::format("{} kernel {} depth {}, {} rows", name_of(dtype), name_of(kernel), in, rows));
        }
      }
    }
  }
}

// All that a measurement may choose.
TEST(GemmKernels, CandidatesOfATypeHaveTheSameBits) {
  constexpr int kOut = 256, kIn = 1500, kMaxRows = 17;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto x = random_floats(static_cast<std::size_t>(kMaxRows) * kIn, 1, kernels::gemm_input_dtype(dtype));
    const auto x_bytes = bytes_of(x, kernels::gemm_input_dtype(dtype));
    const auto packed = pack(random_floats(static_cast<std::size_t>(kOut) * kIn, 2, dtype), kOut, kIn, dtype);
    const auto candidates = kernels::gemm_candidates(dtype);
    EXPECT_EQ(candidates.front(), kernels::default_gemm(dtype));
    for (const int rows : {1, 4, 8, kMaxRows}) {
      const auto expected = multiply(candidates.front(), dtype, x_bytes, rows, kIn, packed, kOut);
      for (std::size_t i = 1; i < candidates.size(); ++i) {
        expect_same(multiply(candidates[i], dtype, x_bytes, rows, kIn, packed, kOut), expected,
                    fmt::format("{} candidate {}, {} rows", name_of(dtype), i, rows));
      }
    }
  }
}

std::vector<DType> multiplied_values() {
  std::vector<DType> types = {DType::kF32};
  if (kernels::multiplies_bf16()) types.push_back(DType::kBF16);
  return types;
}

// The bits of x · wᵀ of `w` are those of the plain weight that holds its values, or where codes are multiplied as
// integers those of a loop that does so, for the numbers of rows and blockings.
void expect_product_of_values(const QuantisedWeight& w, const Floats& x, std::initializer_list<int> row_counts) {
  const PanelBlocking short_slices{.ahead_bytes = 0, .slice_bytes = 8192, .again_bytes = 0};
  const auto x_bytes = bytes_of(x, w.type.values), packed = pack(w),
             plain = pack(w.values(), w.out, w.in, w.type.values);
  const bool integers = kernels::multiplies_integers(w.type);
  const Floats of_integers = integers ? integer_products(w, x, std::max(row_counts)) : Floats();
  for (const GemmKernel kernel : kernels::gemm_kernels(w.type)) {
    for (const int rows : row_counts) {
      const auto expected = integers ? Floats(of_integers.begin(), of_integers.begin() + std::ptrdiff_t{rows} * w.out)
                                     : multiply({kernel, {}}, w.type.values, x_bytes, rows, w.in, plain, w.out);
      const auto what =
          fmt::format("{} [{}, {}] kernel {}, {} rows", describe(w.type), w.out, w.in, static_cast<int>(kernel), rows);
      expect_same(multiply({kernel, {}}, w.type, x_bytes, rows, w.in, packed, w.out), expected, what);
      expect_same(multiply({kernel, short_slices}, w.type, x_bytes, rows, w.in, packed, w.out), expected,
                  what + ", short slices");
    }
  }
}

// Where the caller is to activate or convert sums they stay in the tile, and what was asked for is not written.
void expect_in_tile(const WeightType& type, const std::vector<std::byte>& weight, int out, int in) {
  constexpr int kMostRows = 13;
  const DType input = kernels::gemm_input_dtype(type);
  const auto x = bytes_of(random_floats(static_cast<std::size_t>(kMostRows) * in, 1, input), input);
  for (const GemmKernel kernel : kernels::gemm_kernels(type)) {
    const GemmChoice choice{kernel, {.blocks_at_once = PanelBlocking::kMostAtOnce}};
    for (const int rows : {1, 2, kMostRows}) {
      const Floats expected = multiply({kernel, {}}, type, x, rows, in, weight, out);
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const std::vector<std::byte> untouched(expected.size() * sizeof(float), std::byte{5});
        std::vector<std::byte> found = untouched;
        Floats tile(expected.size(), kNaN);
        Gemm gemm;
        gemm.take_rows(type, x.data(), rows, in);
        const kernels::PanelResult result{.to = found.data(),
                                          .stride = static_cast<std::size_t>(out) * size_of(dtype),
                                          .dtype = dtype,
                                          .of_sums = false,
                                          .bias = nullptr};
        gemm.run(choice, weight.data(), out, tile.data(), &result);
        expect_same(tile, expected, fmt::format("a tile by {}", name_of(kernel)));
        EXPECT_EQ(found, untouched);
      }
    }
  }
}

TEST(GemmKernels, SumsThatAreToBeActivatedStayInTheTile) {
  constexpr int kOut = 256, kIn = 320;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    expect_in_tile(dtype, pack(random_floats(kOut * kIn, 2, dtype), kOut, kIn, dtype), kOut, kIn);
  }
  for (const DType values : multiplied_values()) {
    for (const WeightType& type : quantised_types(values)) {
      expect_in_tile(type, pack(random_quantised(type, kOut, kIn, 2, ordinary_scales())), kOut, kIn);
    }
  }
}

TEST(GemmKernels, CandidatesOfAQuantisedTypeHaveTheSameBits) {
  constexpr int kOut = 128, kIn = 1500, kMaxRows = 17;
  for (const DType values : multiplied_values()) {
    const auto x = random_floats(static_cast<std::size_t>(kMaxRows) * kIn, 1, values);
    for (const WeightType& type : quantised_types(values)) {
      const auto packed = pack(random_quantised(type, kOut, kIn, 2, ordinary_scales()));
      const auto candidates = kernels::gemm_candidates(type);
      for (const int rows : {1, 8, kMaxRows}) {
        const auto expected = multiply(candidates.front(), type, bytes_of(x, values), rows, kIn, packed, kOut);
        for (std::size_t i = 1; i < candidates.size(); ++i) {
          expect_same(multiply(candidates[i], type, bytes_of(x, values), rows, kIn, packed, kOut), expected,
                      fmt::format("{} candidate {}, {} rows", describe(type), i, rows));
        }
      }
    }
  }
}

TEST(GemmKernels, QuantisedWeightsHaveTheBitsOfTheirValuesOrIntegers) {
  constexpr int kOut = 128, kMaxRows = 50;
  for (const DType values : multiplied_values()) {
    for (const int in : {20, 64, 100, 604}) {
      const auto x = random_floats(static_cast<std::size_t>(kMaxRows) * in, 1, values);
      for (const WeightType& type : quantised_types(values)) {
        expect_product_of_values(random_quantised(type, kOut, in, 2, ordinary_scales()), x,
                                 {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 32, 33, 50});
        expect_product_of_values(random_quantised(type, kOut, in, 2, positive_scales()), x, {1, 2, 3, 4, 5, 6, 16, 17});
      }
    }
  }
}

// Half a step of a chunk is at most 2^-15 of its largest element, whatever lies beside that; float32's sums add little.
TEST(GemmKernels, IntegersAreNearWhatTheyStandFor) {
  constexpr int kOut = 64, kIn = 304, kRows = 19;
  const WeightType one(DType::kF32, DType::kInt8, DType::kBF16, 32);
  if (!kernels::multiplies_integers(one)) GTEST_SKIP() << "a processor that multiplies values of codes";
  auto x = random_floats(static_cast<std::size_t>(kRows) * kIn, 1);
  for (std::size_t i = 0; i < x.size(); i += 37) x[i] *= i % 2 == 0 ? 1000.0f : 0x1p-20f;
  for (const WeightType& type : quantised_types(DType::kF32)) {
    if (!kernels::multiplies_integers(type)) continue;
    const auto w = random_quantised(type, kOut, kIn, 2, ordinary_scales());
    const auto values = w.values();
    const auto actual =
        multiply(kernels::default_gemm(type), type, bytes_of(x, DType::kF32), kRows, kIn, pack(w), kOut);
    const auto exact = double_loop(x, values, kRows, kOut, kIn);
    for (int m = 0; m < kRows; ++m) {
      for (int n = 0; n < kOut; ++n) {
        double bound = 0;
        for (int first = 0; first < kIn; first += 16) {  // by the largest of 32, also where chunks are of 16
          const int begin = first / 32 * 32, end = std::min(begin + 32, kIn);
          double largest = 0, weights = 0;
          for (int k = begin; k < end; ++k) largest = std::max(largest, std::abs(static_cast<double>(x[m * kIn + k])));
          for (int k = first; k < std::min(first + 16, kIn); ++k) weights += std::abs(values[n * kIn + k]);
          bound += largest * weights;
        }
        const auto i = static_cast<std::size_t>(m) * kOut + n;
        EXPECT_LE(std::abs(actual[i] - exact[i]), bound * (0x1p-15 + 0x1p-20))
            << describe(type) << ' ' << m << ' ' << n;
      }
    }
  }
}

// Rows that are zero but for one element give each value by itself: all codes at scales that are zero, negative,
// subnormal, and so small or large that products are.
TEST(GemmKernels, QuantisedValuesAreRightAtTheEndsOfTheirRange) {
  constexpr int kOut = 64, kIn = 272;
  const Floats scales = {0.0f, -0.0f, 1.0f, -0.75f, 1e-45f, -1e-39f, 5.877e-39f, 0x1p-126f, 0x1.fep-118f, 0x1p-117f,
                         -3e-36f, 0x1.fcp118f, -0x1p119f, 0x1.fffffep118f, 0x1p122f, 3e38f, 6e4f, 6e-8f,
                         // 0.5 × and 7 × it are rounded to 2^-126, which is no longer subnormal.
                         0x1.fep-126f, 0x1.24p-129f};
  Floats ones(static_cast<std::size_t>(kIn) * kIn);
  for (int k = 0; k < kIn; ++k) ones[static_cast<std::size_t>(k) * kIn + k] = 1;
  for (const DType values : multiplied_values()) {
    for (const WeightType& type : quantised_types(values)) {
      auto w = random_quantised(type, kOut, kIn, 3, scales);
      for (int row = 0; row < kOut; ++row) {
        for (int k = 0; k < 256; ++k) {
          const bool same_scale = row % 2 == 0;  // every code by every group's
          const auto code =
              static_cast<unsigned>(same_scale ? k : k * 7 + row) % (two_in_a_byte(type.codes) ? 16 : 256);
          if (type.codes == DType::kFp8 && is_nan_fp8(code)) continue;
          const std::byte before = w.code(row, k);
          w.code(row, k) = static_cast<std::byte>(code);
          if (!std::isfinite(w.value(row, k))) w.code(row, k) = before;
        }
      }
      expect_product_of_values(w, ones, {1, 256});
    }
  }
}

// Scales with which kernels multiply a shorter way, the next that they do not, and groups of both kinds in one block.
TEST(GemmKernels, QuantisedValuesAreRightBesideTheLimitsOfShortWays) {
  constexpr int kOut = 64, kIn = 256;
  const Floats taken = {0x1p-117f, 1.0f, 0x1.fep110f, 0x1.fep111f}, too_large = {0x1p112f, 0x1p114f};
  Floats ones(static_cast<std::size_t>(kIn) * kIn);
  for (int k = 0; k < kIn; ++k) ones[static_cast<std::size_t>(k) * kIn + k] = 1;
  const auto x = random_floats(static_cast<std::size_t>(6) * kIn, 9);
  for (const DType scales : {DType::kF16, DType::kBF16, DType::kE8M0, DType::kF32}) {
    const WeightType type(DType::kF32, DType::kInt8, scales, 64);
    for (const bool both : {false, true}) {
      auto w = random_quantised(type, kOut, kIn, 4, scales == DType::kF16 ? Floats{0x1p-24f, 1, 65504} : taken);
      for (int row = 0; row < kOut; ++row) {
        for (int k = 0; k < kIn; ++k) w.code(row, k) = static_cast<std::byte>(k + row);
        // In every other group the scale of one row, the others being taken.
        const int group = row / 16 * 2 % w.groups();
        if (both && row % 16 == 5) {
          const float large = rounded_scale(too_large[static_cast<std::size_t>(row) / 16 % 2], scales);
          w.scales[QuantisedWeight::place(row, w.groups(), group)] = scales == DType::kF16 ? -1 : large;
        }
      }
      expect_product_of_values(w, ones, {1, 256});
      expect_product_of_values(w, x, {1, 2, 3, 4, 5, 6});
    }
  }
}

// Sums of bfloat16 products that are subnormal count as zeros of their sign, and then weights of -0 are not as good as
// weights of 0. Of rows so small and of ordinary ones, by scales near the least for which kernels take the two for the
// same.
TEST(GemmKernels, QuantisedZerosKeepTheirSigns) {
  constexpr int kOut = 64, kIn = 96, kRows = 12;
  const Floats large = {-1.0f, 0.5f, -0x1p-30f, -0x1.8p-31f, 0.0f}, small = {-0x1p-50f, -0x1.8p-45f, 0x1p-50f, -0.0f},
               medium = {-1.0f, -0x1p-22f, -0x1.8p-23f, 0x1p-20f};
  for (const DType values : multiplied_values()) {
    for (const float size : {0x1p-124f, 0x1p-100f, 0x1p-81f, 0x1p-80f, 1.0f}) {
      auto x = random_floats(static_cast<std::size_t>(kRows) * kIn, 5, values);
      for (float& element : x) element = rounded_to({(1 + std::abs(element)) * size}, values)[0];
      for (const WeightType& type : quantised_types(values)) {
        for (const Floats& scales : {large, medium, small}) {
          auto w = random_quantised(type, kOut, kIn, 6, scales);
          for (int row = 0; row < kOut; ++row) {
            for (int k = 8; k < kIn; ++k) w.code(row, k) = std::byte{0};
          }
          expect_product_of_values(w, x, {1, 4, 12});
        }
      }
    }
  }
}

// An element of x that is not finite meets every code, 0 too, as the plain weight of the values does, or makes its row
// NaN; rows beside it stay what they are.
TEST(GemmKernels, QuantisedWeightsPassOnWhatIsNotFinite) {
  constexpr int kOut = 64;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& [in, rows] : {std::pair(96, 9), {604, 34}}) {
    for (const DType values : multiplied_values()) {
      auto x = random_floats(static_cast<std::size_t>(rows) * in, 7, values);
      for (int m = 0; m < rows; m += 2) {
        const float bad = m % 3 == 0 ? kInfinity : m % 3 == 1 ? -kInfinity : std::nanf("1");
        x[static_cast<std::size_t>(m) * in + (m % 4 == 0 ? 11 * m % in : in - 1)] = bad;
      }
      for (const WeightType& type : quantised_types(values)) {
        expect_product_of_values(random_quantised(type, kOut, in, 8, ordinary_scales()), x, {1, 3, rows});
      }
    }
  }
}

// Every float16, subnormal or not, is multiplied with as it is.
TEST(GemmKernels, Float16WeightsAreExact) {
  constexpr int kIn = 32, kFinite = 0x7c00;
  for (const GemmKernel kernel : kernels::gemm_kernels(DType::kF16)) {
    Floats ones(kIn), halves(64 * kIn);
    for (int first = 0; first < kFinite; first += 64) {
      for (const int k : {6, 9}) {
        ones.assign(kIn, 0);
        ones[k] = 1;
        for (int n = 0; n < 64; ++n) halves[n * kIn + k] = f32_from_f16(static_cast<std::uint16_t>(first + n));
        const auto weight = pack(halves, 64, kIn, DType::kF16);
        expect_same(multiply({kernel, {}}, DType::kF16, bytes_of(ones, DType::kF32), 1, kIn, weight, 64),
                    column(halves, k, kIn), fmt::format("float16 from {}", first));
      }
    }
  }
}

}  // namespace
}  // namespace computron::testing
