// Matrices cut out of stored tensors, transposed and converted, against plain loops.
#include "computron/checkpoint/matrix_source.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "src/checkpoint/transpose.h"
#include "tests/checkpoint/sample.h"
#include "tests/support/safetensors_file.h"

namespace computron::test {
namespace {

// Bits of element (r, c), from the tensor's floats.
std::uint32_t bits_of(float value, DType dtype) {
  if (dtype == DType::kF16) return f16_from_f32(value);
  if (dtype == DType::kBF16) return bf16_from_f32(value);
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// A tensor of random floats in a file, and what a MatrixReader must make of it.
class MatrixReaderTest : public testing::Test {
 protected:
  void write(std::size_t elements) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    values_.resize(elements);
    for (float& value : values_) value = normal(random);
    write_text(folder_.file("m"),
               safetensors_file({{"before", "U8", {3}, "xyz"}, {"t", "F32", {elements}, bytes_of_floats(values_)}}));
    file_ = std::make_unique<SafetensorsFile>(folder_.file("m"));
    entry_ = &file_->entries().at("t");
  }

  // Reads bytes [begin, end) in one piece and compares each element.
  void expect_piece(MatrixSource source, DType dtype, std::size_t begin, std::size_t end) {
    source.file = file_.get();
    source.entry = entry_;
    const auto bytes = reader_.read(source, dtype, begin, end);
    ASSERT_EQ(bytes.size(), end - begin);
    std::size_t wrong = 0;
    for (std::size_t i = begin / size_of(dtype); i < end / size_of(dtype); ++i) {
      const std::size_t row = i / source.columns, column = i % source.columns;
      const std::size_t from = source.first + (source.transposed ? column * source.stride + row * source.step
                                                                 : row * source.stride + column);
      std::uint32_t found = 0;
      std::memcpy(&found, bytes.data() + i * size_of(dtype) - begin, size_of(dtype));
      wrong += found != bits_of(values_[from], dtype);
    }
    EXPECT_EQ(wrong, 0u) << "of " << bytes.size() / size_of(dtype);
  }

  void expect_all_pieces(const MatrixSource& source) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const std::size_t size = size_of(dtype), bytes = source.elements() * size;
      expect_piece(source, dtype, 0, bytes);
      expect_piece(source, dtype, bytes / size / 3 * size, bytes / size / 2 * size);
      expect_piece(source, dtype, bytes - size, bytes);
      expect_piece(source, dtype, size, size);
    }
  }

  Folder folder_;
  std::vector<float> values_;
  std::unique_ptr<SafetensorsFile> file_;
  const SafetensorsEntry* entry_ = nullptr;
  MatrixReader reader_;
};

TEST_F(MatrixReaderTest, Plain) {
  write(301 * 257);
  expect_all_pieces({.rows = 301, .columns = 257, .stride = 257});
}

// Every second element of each line, where gates lie beside what they gate in what is stored transposed.
TEST_F(MatrixReaderTest, ColumnsByTurns) {
  write(2 * 311 * 5003);
  for (const std::size_t part : {0, 1}) {
    expect_all_pieces({.rows = 5003, .columns = 311, .first = part, .stride = 2 * 5003, .transposed = true, .step = 2});
  }
}

// Every second line, as gates lie beside what they gate; long ones, and single elements.
TEST_F(MatrixReaderTest, LinesByTurns) {
  write(2 * 311 * 1001);
  for (const std::size_t part : {0u, 1u}) {
    expect_all_pieces({.rows = 311, .columns = 1001, .first = part * 1001, .stride = 2002});
    expect_all_pieces({.rows = 3, .columns = 90000, .first = part * 90000, .stride = 180000});
    expect_all_pieces({.rows = 311 * 1001, .columns = 1, .first = part, .stride = 2});
    expect_all_pieces({.rows = 1001, .columns = 311, .first = part * 1001, .stride = 2002, .transposed = true});
  }
}

TEST_F(MatrixReaderTest, TransposedOverSeveralPanels) {
  write(131 * 4501);  // lines longer than a panel, more of them than one holds, neither a multiple of a tile
  expect_all_pieces({.rows = 4501, .columns = 131, .stride = 4501, .transposed = true});
}

// GPT-2's c_attn [in, q|k|v], as three matrices [out, in].
TEST_F(MatrixReaderTest, PartOfTheColumnsTransposed) {
  write(40 * 3 * 24);
  expect_all_pieces({.rows = 24, .columns = 40, .first = 24, .stride = 72, .transposed = true});
}

TEST_F(MatrixReaderTest, PartOfTheColumnsAsTheyAre) {
  write(40 * 3 * 24);
  expect_all_pieces({.rows = 40, .columns = 24, .first = 48, .stride = 72});
}

TEST_F(MatrixReaderTest, PartOfTheRows) {
  write(3 * 24 * 40);
  expect_all_pieces({.rows = 24, .columns = 40, .first = 2 * 24 * 40, .stride = 40});
  expect_all_pieces({.rows = 40, .columns = 24, .first = 24 * 40, .stride = 40, .transposed = true});
}

TEST(Turn, EveryShapeOfTile) {
  for (const std::size_t size : {2, 4}) {
    for (std::size_t rows = 1; rows <= 17; ++rows) {
      for (std::size_t columns = 1; columns <= 17; ++columns) {
        const auto in = pattern(rows * (columns + 2) * size, 1);
        std::vector<std::byte> out(columns * (rows + 1) * size, std::byte{0xee}), expected = out;
        for (std::size_t i = 0; i < rows * columns; ++i) {
          const std::size_t r = i / columns, c = i % columns;
          std::memcpy(&expected[(c * (rows + 1) + r) * size], &in[(r * (columns + 2) + c) * size], size);
        }
        transpose(in.data(), columns + 2, rows, columns, out.data(), rows + 1, size);
        ASSERT_EQ(out, expected) << rows << " x " << columns << ", elements of " << size;
      }
    }
  }
}

}  // namespace
}  // namespace computron::test
