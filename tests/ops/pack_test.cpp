// The packer: its layout, both orientations, pieces in any order.
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "tests/ops/ops_fixture.h"

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

TEST_P(PackTest, WeightsStayInTypesThatTheDeviceMultiplies) {
  EXPECT_EQ(bench_.ops().weight_dtype(DType::kF32), DType::kF32);
  EXPECT_EQ(bench_.ops().weight_dtype(DType::kF16), DType::kF16);
  for (const DType checkpoint : {DType::kF16, DType::kBF16}) {
    const DType kept = bench_.ops().weight_dtype(checkpoint);
    EXPECT_GT(format().panel_bytes(64, 64, kept), 0u);
    EXPECT_TRUE(kept == checkpoint || kept == DType::kF32);
  }
}

COMPUTRON_ON_EVERY_DEVICE(PackTest);

}  // namespace
}  // namespace computron::testing
