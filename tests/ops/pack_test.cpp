// The packer: its layout, both orientations, pieces in any order.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "tests/ops/ops_fixture.h"
#include "tests/ops/quantised.h"

namespace computron::testing {
namespace {

using Bytes = std::vector<std::byte>;

class PackTest : public OpsTest {
 protected:
  const WeightFormat& format() { return bench_.ops().weight_format(); }
  Bytes packed_at_once(const Bytes& source, int rows, int in, DType dtype) {
    Bytes packed(format().panel_bytes(rows, in, dtype));
    format().pack(packed.data(), in, dtype, 0, rows, 0, in, source.data(), static_cast<std::size_t>(in), 1);
    return packed;
  }
};

Bytes transposed(const Bytes& source, int rows, int columns, std::size_t element) {
  Bytes result(source.size());
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      std::copy_n(&source[static_cast<std::size_t>(r * columns + c) * element], element,
                  &result[static_cast<std::size_t>(c * rows + r) * element]);
    }
  }
  return result;
}

struct Shape {
  int rows, in;
};
constexpr Shape kShapes[] = {{64, 64}, {512, 96}, {130, 33}, {7, 5}, {65, 129}, {1, 1}, {200, 47}};

// Nothing is lost, doubled or put behind the panel: packing numbers 1.. gives each once and zeros elsewhere.
TEST_P(PackTest, EveryElementHasOnePlace) {
  constexpr int kRows = 100, kIn = 77;
  Floats numbers(kRows * kIn);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i + 1);
  const auto packed = packed_at_once(bytes_of(numbers, DType::kF32), kRows, kIn, DType::kF32);
  Floats values(packed.size() / 4);
  std::memcpy(values.data(), packed.data(), packed.size());
  std::sort(values.begin(), values.end());
  const auto zeros = static_cast<std::ptrdiff_t>(values.size() - numbers.size());
  EXPECT_EQ(values[static_cast<std::size_t>(zeros - 1)], 0);
  EXPECT_TRUE(std::equal(numbers.begin(), numbers.end(), values.begin() + zeros));
}

TEST_P(PackTest, PanelBytesCountWholeBlocks) {
  const int block = format().row_block();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(format().panel_bytes(1, 64, dtype), format().panel_bytes(block, 64, dtype));
    EXPECT_EQ(format().panel_bytes(block + 1, 64, dtype), 2 * format().panel_bytes(block, 64, dtype));
    EXPECT_GE(format().panel_bytes(block, 100, dtype), static_cast<std::size_t>(block) * 100 * size_of(dtype));
  }
}

TEST_P(PackTest, TransposedSourceGivesTheSameBytes) {
  for (const auto [rows, in] : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const auto source = bytes_of(random_floats(static_cast<std::size_t>(rows) * in, 1), dtype);
      const auto by_columns = transposed(source, rows, in, size_of(dtype));
      Bytes packed(format().panel_bytes(rows, in, dtype));
      format().pack(packed.data(), in, dtype, 0, rows, 0, in, by_columns.data(), 1, static_cast<std::size_t>(rows));
      EXPECT_EQ(packed, packed_at_once(source, rows, in, dtype))
          << fmt::format("[{}, {}] {}", rows, in, name_of(dtype));
    }
  }
}

// A source whose rows and columns both lie apart, as every third column of a wider matrix.
TEST_P(PackTest, TakesAnyStrides) {
  for (const auto [rows, in] : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const auto values = random_floats(static_cast<std::size_t>(rows) * in, 1, dtype);
      Floats wide(values.size() * 3, 99);
      for (std::size_t i = 0; i < values.size(); ++i) wide[3 * i] = values[i];
      Bytes packed(format().panel_bytes(rows, in, dtype));
      format().pack(packed.data(), in, dtype, 0, rows, 0, in, bytes_of(wide, dtype).data(),
                    3 * static_cast<std::size_t>(in), 3);
      EXPECT_EQ(packed, packed_at_once(bytes_of(values, dtype), rows, in, dtype));
    }
  }
}

struct Piece {
  int row, rows, column, columns;
};

// Cuts [rows, in] at random places into a grid of pieces, in random order.
std::vector<Piece> random_pieces(int rows, int in, std::mt19937& generator) {
  const auto cut = [&](int n) {
    std::vector<int> places = {0, n};
    for (int i = 0; i < 3 && n > 1; ++i) places.push_back(static_cast<int>(generator() % static_cast<unsigned>(n)));
    std::sort(places.begin(), places.end());
    return places;
  };
  std::vector<Piece> pieces;
  const auto row_cuts = cut(rows), column_cuts = cut(in);
  for (std::size_t r = 1; r < row_cuts.size(); ++r) {
    for (std::size_t c = 1; c < column_cuts.size(); ++c) {
      pieces.push_back(
          {row_cuts[r - 1], row_cuts[r] - row_cuts[r - 1], column_cuts[c - 1], column_cuts[c] - column_cuts[c - 1]});
    }
  }
  std::shuffle(pieces.begin(), pieces.end(), generator);
  return pieces;
}

TEST_P(PackTest, PiecesInAnyOrderGiveTheSameBytes) {
  std::mt19937 generator(5);
  for (const auto [rows, in] : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const bool transpose : {false, true}) {
        const auto source = bytes_of(random_floats(static_cast<std::size_t>(rows) * in, 1), dtype);
        const auto given = transpose ? transposed(source, rows, in, size_of(dtype)) : source;
        const std::size_t row_stride = transpose ? 1 : static_cast<std::size_t>(in);
        const std::size_t column_stride = transpose ? static_cast<std::size_t>(rows) : 1;
        Bytes packed(format().panel_bytes(rows, in, dtype));
        for (const Piece& p : random_pieces(rows, in, generator)) {
          if (p.rows == 0 || p.columns == 0) continue;
          format().pack(packed.data(), in, dtype, p.row, p.rows, p.column, p.columns,
                        &given[(p.row * row_stride + p.column * column_stride) * size_of(dtype)], row_stride,
                        column_stride);
        }
        EXPECT_EQ(packed, packed_at_once(source, rows, in, dtype))
            << fmt::format("[{}, {}] {} transposed {}", rows, in, name_of(dtype), transpose);
      }
    }
  }
}

// ---- quantised weights

std::vector<WeightType> some_quantised_types(Bench& bench) {
  std::vector<WeightType> types;
  for (const DType values : {DType::kF32, quantised_values(bench.ops())}) {
    for (const DType codes : kCodeDTypes) {
      types.emplace_back(values, codes, DType::kF16, 16);
      types.emplace_back(values, codes, DType::kE8M0, 48);
      types.emplace_back(values, codes, DType::kF32, WeightType::kWholeRow);
      types.emplace_back(values, codes, DType::kE4M3, 16);
    }
  }
  return types;
}

Bytes pack_codes_at_once(const WeightFormat& format, const QuantisedWeight& w) {
  Bytes packed(format.panel_bytes(w.out, w.in, w.type));
  format.pack(packed.data(), w.in, w.type, 0, w.out, 0, w.in, w.codes.data(), static_cast<std::size_t>(w.in), 1);
  return packed;
}

// Packs codes [out, in] that lie as `given` in a grid of pieces, a thread for each of `threads`.
Bytes pack_in_pieces(const WeightFormat& format, const QuantisedWeight& w, const Bytes& given, std::size_t row_stride,
                     std::size_t column_stride, const std::vector<Piece>& pieces, std::size_t threads) {
  Bytes packed(format.panel_bytes(w.out, w.in, w.type));
  std::vector<std::jthread> running;
  for (std::size_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      for (std::size_t i = t; i < pieces.size(); i += threads) {
        const Piece& p = pieces[i];
        if (p.rows == 0 || p.columns == 0) continue;
        format.pack(packed.data(), w.in, w.type, p.row, p.rows, p.column, p.columns,
                    &given[p.row * row_stride + p.column * column_stride], row_stride, column_stride);
      }
    });
  }
  running.clear();
  return packed;
}

TEST_P(PackTest, PiecesOfCodesGiveTheSameBytesInAnyOrderAndOrientationAndAtOnce) {
  std::mt19937 generator(5);
  for (const auto [rows, in] : kShapes) {
    for (const WeightType& type : some_quantised_types(bench_)) {
      const auto w = random_quantised(type, rows, in, 1, ordinary_scales());
      const auto expected = pack_codes_at_once(format(), w);
      const auto height = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(in);
      const auto by_columns = transposed(w.codes, rows, in, 1);
      Bytes wide(w.codes.size() * 3, std::byte{0xff});
      for (std::size_t i = 0; i < w.codes.size(); ++i) wide[3 * i] = w.codes[i];
      for (const std::size_t threads : {1u, 3u}) {
        const auto pieces = random_pieces(rows, in, generator);
        const auto what = fmt::format("[{}, {}] {} {} threads", rows, in, describe(type), threads);
        EXPECT_EQ(pack_in_pieces(format(), w, w.codes, width, 1, pieces, threads), expected) << what;
        EXPECT_EQ(pack_in_pieces(format(), w, by_columns, 1, height, pieces, threads), expected) << what << " turned";
        EXPECT_EQ(pack_in_pieces(format(), w, wide, 3 * width, 3, pieces, threads), expected) << what << " wide";
      }
    }
  }
}

// Every row, and every code of a row, by a thread of its own: neighbours share bytes.
TEST_P(PackTest, NeighboursThatShareAByteArePackedAtOnce) {
  constexpr int kRows = 64, kIn = 64, kRounds = 20;
  for (const DType values : {DType::kF32, quantised_values(bench_.ops())}) {
    const auto w = random_quantised({values, DType::kInt4, DType::kF16, 32}, kRows, kIn, 1, ordinary_scales());
    std::vector<Piece> pieces;
    for (int row = 0; row < kRows; ++row) {
      for (int k = 0; k < kIn; ++k) pieces.push_back({row, 1, k, 1});
    }
    std::mt19937 generator(5);
    for (int i = 0; i < kRounds; ++i) {
      std::shuffle(pieces.begin(), pieces.end(), generator);
      ASSERT_EQ(pack_in_pieces(format(), w, w.codes, kIn, 1, pieces, 2), pack_codes_at_once(format(), w));
    }
  }
}

TEST_P(PackTest, PiecesOfScalesGiveTheSameBytes) {
  constexpr int kRows = 130, kIn = 200;
  for (const WeightType& type : some_quantised_types(bench_)) {
    const auto w = random_quantised(type, kRows, kIn, 1, ordinary_scales());
    const auto groups = static_cast<std::size_t>(w.groups()), size = size_of(type.scales);
    const auto scales = w.scale_bytes(), by_groups = transposed(scales, kRows, w.groups(), size);
    Bytes whole(format().panel_bytes(kRows, kIn, type)), single(whole.size());
    format().pack_scales(whole.data(), kIn, type, 0, kRows, 0, w.groups(), scales.data(), groups, 1);
    for (int row = kRows - 1; row >= 0; --row) {
      for (int g = 0; g < w.groups(); ++g) {
        format().pack_scales(single.data(), kIn, type, row, 1, g, 1, &by_groups[(g * kRows + row) * size], 1, kRows);
      }
    }
    EXPECT_EQ(single, whole) << describe(type);
  }
}

// Factors lie in places of their own, which neither codes nor scales write to.
TEST_P(PackTest, FactorsHaveTheirPlaces) {
  if (!bench_.traits().host_memory) GTEST_SKIP() << "a GPU takes no scales of two levels yet";
  constexpr int kRows = 130, kIn = 64;
  const auto w = random_quantised({DType::kF32, DType::kFp4, DType::kE4M3, 16}, kRows, kIn, 1, ordinary_scales());
  const auto width = static_cast<std::size_t>(kIn), groups = static_cast<std::size_t>(w.groups());
  Bytes first(format().panel_bytes(kRows, kIn, w.type)), last(first.size());
  const auto pack_factors = [&](Bytes& packed) {
    for (int row = 0; row < kRows; ++row) {
      format().pack_factor(packed.data(), kIn, w.type, row, 1, w.factors[static_cast<std::size_t>(row)]);
    }
  };
  const auto pack_rest = [&](Bytes& packed) {
    format().pack(packed.data(), kIn, w.type, 0, kRows, 0, kIn, w.codes.data(), width, 1);
    format().pack_scales(packed.data(), kIn, w.type, 0, kRows, 0, w.groups(), w.scale_bytes().data(), groups, 1);
  };
  pack_factors(first);
  pack_rest(first);
  pack_rest(last);
  pack_factors(last);
  EXPECT_EQ(first, last);
  EXPECT_THROW(format().pack_factor(last.data(), kIn, {DType::kF32, DType::kFp4, DType::kE8M0, 32}, 0, 1, 1), Error);
}

// A weight's type on this device has its codes, and values that it multiplies.
TEST_P(PackTest, QuantisedWeightsKeepTheirCodes) {
  const WeightType stored(DType::kBF16, DType::kInt8, DType::kF16, 32);
  if (!bench_.traits().host_memory) {
    EXPECT_THROW(bench_.ops().weight_type({DType::kBF16, DType::kFp4, DType::kE4M3, 16}), ConfigError);
  }
  const WeightType kept = bench_.ops().weight_type(stored);
  EXPECT_EQ(kept.codes, stored.codes);
  EXPECT_EQ(kept.scales, stored.scales);
  EXPECT_EQ(kept.group, stored.group);
  EXPECT_EQ(kept.values, format().input_dtype(DType::kBF16));
  EXPECT_EQ(format().input_dtype(kept), kept.values);
}

TEST_P(PackTest, WeightsStayInTypesThatTheDeviceMultiplies) {
  EXPECT_EQ(bench_.ops().weight_type(DType::kF32), DType::kF32);
  EXPECT_EQ(bench_.ops().weight_type(DType::kF16), DType::kF16);
  for (const DType checkpoint : {DType::kF16, DType::kBF16}) {
    const DType kept = bench_.ops().weight_type(checkpoint).values;
    EXPECT_GT(format().panel_bytes(64, 64, kept), 0u);
    EXPECT_TRUE(kept == checkpoint || kept == DType::kF32);
  }
}

COMPUTRON_ON_EVERY_DEVICE(PackTest);

}  // namespace
}  // namespace computron::testing
