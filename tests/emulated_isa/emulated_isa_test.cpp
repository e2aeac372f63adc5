// Emulated instructions beside plain loops, and beside the processor's own where it has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cpu/isa.h"
#include "tests/emulated_isa/calls.h"
#include "tests/emulated_isa/instructions.h"

namespace computron::emulated_isa {
namespace {

class EmulatedIsa : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernels::processor_isa() < kernels::Isa::kAvx512) GTEST_SKIP() << "a processor without AVX-512";
  }

  // Every bit by itself: all kinds of numbers, a 256th of them subnormal and as many not finite.
  template <class Array>
  Array any_bits() {
    Array result;
    for (auto& element : result) {
      const auto bits = static_cast<std::uint32_t>(random_());
      std::memcpy(&element, &bits, sizeof element);
    }
    return result;
  }
  // bfloat16 near 1.
  std::uint16_t ordinary() { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal_(random_)) >> 16); }
  // Sums of a tile, or bfloat16 in pairs.
  Tile ordinary_sums() {
    Tile tile;
    for (std::size_t i = 0; i < tile.size(); i += 4) {
      const float x = normal_(random_);
      std::memcpy(&tile[i], &x, sizeof x);
    }
    return tile;
  }
  Tile ordinary_pairs() {
    Tile tile;
    for (std::size_t i = 0; i < tile.size(); i += 2) {
      const std::uint16_t x = ordinary();
      std::memcpy(&tile[i], &x, sizeof x);
    }
    return tile;
  }

  std::mt19937 random_{1};
  std::normal_distribution<float> normal_;
};

float from_bf16(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

// Byte of a tile, in rows of kTileRowBytes.
std::size_t place(int row, int byte) {
  return static_cast<std::size_t>(row) * kTileRowBytes + static_cast<std::size_t>(byte);
}
float float_at(const Tile& tile, int row, int column) {
  float x;
  std::memcpy(&x, &tile[place(row, 4 * column)], sizeof x);
  return x;
}
float bf16_at(const Tile& tile, int row, int column) {
  std::uint16_t x;
  std::memcpy(&x, &tile[place(row, 2 * column)], sizeof x);
  return from_bf16(x);
}

// The bits of floats, those that are no numbers being equal.
template <class Array>
void expect_same(const Array& actual, const Array& expected, const char* what) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i])) << what << ' ' << i;
  }
}

TEST_F(EmulatedIsa, DotProductsAddTheUpperProductFirst) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    Floats16 sums, expected;
    Words a, b;
    for (float& sum : sums) sum = normal_(random_);
    for (auto* words : {&a, &b}) {
      for (std::uint16_t& word : *words) word = ordinary();
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      expected[i] = std::fma(from_bf16(a[2 * i + 1]), from_bf16(b[2 * i + 1]), sums[i]);
      expected[i] = std::fma(from_bf16(a[2 * i]), from_bf16(b[2 * i]), expected[i]);
    }
    expect_same(emulated_calls().dot_products(sums, a, b), expected, "lane");
  }
}

TEST_F(EmulatedIsa, SubnormalNumbersAreZeros) {
  constexpr std::uint16_t kSubnormal = 0x0040, kSmallest = 0x0080, kOne = 0x3f80, kHalf = 0x3f00, kMinusHalf = 0xbf00;
  const Floats16 zeros{}, subnormal{0x1p-127f, -0x1p-127f};
  const auto dot = [](const Floats16& sums, std::uint16_t a, std::uint16_t b) {
    return emulated_calls().dot_products(sums, Words{a, 0, a}, Words{b, 0, b});
  };
  expect_same(dot(zeros, kSubnormal, kOne), zeros, "of a subnormal element");
  expect_same(dot(subnormal, 0, kOne), Floats16{0.0f, 0.0f}, "a subnormal sum");
  expect_same(dot(Floats16{0x1p-126f}, kSmallest, kMinusHalf), Floats16{0.0f, -0.0f}, "that becomes subnormal");
  expect_same(dot(Floats16{0x1p-126f}, kSmallest, kHalf), Floats16{0x1.8p-126f}, "that stays normal");

  Tile x{}, w{};
  std::memcpy(x.data(), &kSmallest, 2);
  std::memcpy(w.data(), &kMinusHalf, 2);
  const Tile product = emulated_calls().multiply_tiles(Tile{}, x, w, 1, 1, 1);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(float_at(product, 0, 0)), 0u);  // 0 + -0
  Tile sums{};
  const float small = -0x1p-127f;
  std::memcpy(sums.data(), &small, sizeof small);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(float_at(emulated_calls().multiply_tiles(sums, x, Tile{}, 1, 1, 1), 0, 0)),
            0u);
}

TEST_F(EmulatedIsa, ConversionsRoundToNearestEven) {
  const Floats16 x = {1.0f,        0x1.01p0f,     0x1.03p0f,  0x1.010002p0f,   -0x1.01p0f, 0x1.ffp127f,
                      0x1.fep127f, 0.0f,          -0x1p-127f, 0x1p-126f,       INFINITY,   -INFINITY,
                      -0.0f,       0x1.fffp-100f, 3e38f,      0x1.fffffcp-127f};
  const std::array<std::uint16_t, 16> expected = {0x3f80, 0x3f80, 0x3f82, 0x3f81, 0xbf80, 0x7f80, 0x7f7f, 0x0000,
                                                  0x8000, 0x0080, 0x7f80, 0xff80, 0x8000, 0x0e00, 0x7f62, 0x0000};
  EXPECT_EQ(emulated_calls().to_bf16(x), expected);
  const Words two = emulated_calls().two_to_bf16(Floats16{2.0f}, x);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), two.begin()));
  EXPECT_EQ(two[16], 0x4000);
  const auto nan = emulated_calls().to_bf16({std::bit_cast<float>(0x7f800001u)});
  EXPECT_EQ(nan[0], 0x7fc0);
}

TEST_F(EmulatedIsa, PermutationsTakeTheByteOfTheIndex) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto index = any_bits<Bytes>(), x = any_bits<Bytes>(), upper = any_bits<Bytes>();
    const std::uint64_t mask = std::uint64_t{random_()} << 32 | random_();
    Bytes one, masked, two;
    for (std::size_t i = 0; i < index.size(); ++i) {
      one[i] = x[index[i] % 64];
      masked[i] = mask >> i & 1 ? one[i] : upper[i];
      two[i] = index[i] % 128 < 64 ? x[index[i] % 64] : upper[index[i] % 64];
    }
    EXPECT_EQ(emulated_calls().permuted(index, x), one);
    EXPECT_EQ(emulated_calls().permuted_under_mask(upper, mask, index, x), masked);
    EXPECT_EQ(emulated_calls().permuted_of_two(x, index, upper), two);
  }
}

TEST_F(EmulatedIsa, TilesAddEvenAndOddProductsByThemselves) {
  for (const auto& [rows, pairs, columns] : {std::array{16, 16, 16}, {3, 16, 16}, {16, 5, 2}, {1, 1, 1}}) {
    const Tile sums = ordinary_sums(), x = ordinary_pairs(), w = ordinary_pairs();
    Tile expected = sums;
    for (int m = 0; m < rows; ++m) {
      for (int n = 0; n < columns; ++n) {
        float even = 0, odd = 0;
        for (int pair = 0; pair < pairs; ++pair) {
          even = std::fma(bf16_at(x, m, 2 * pair), bf16_at(w, pair, 2 * n), even);
          odd = std::fma(bf16_at(x, m, 2 * pair + 1), bf16_at(w, pair, 2 * n + 1), odd);
        }
        const float sum = float_at(sums, m, n) + (even + odd);
        std::memcpy(&expected[place(m, 4 * n)], &sum, sizeof sum);
      }
    }
    EXPECT_EQ(emulated_calls().multiply_tiles(sums, x, w, rows, pairs, columns), expected) << rows << ' ' << columns;
  }
}

TEST_F(EmulatedIsa, EndsTheProcessWhereAProcessorRaisesAnException) {
  EXPECT_DEATH(zero_tile(0), "while none is configured");
  EXPECT_DEATH(emulated_calls().multiply_tiles(Tile{}, Tile{}, Tile{}, 17, 1, 1), "tile 0 17 rows");
  EXPECT_DEATH(emulated_calls().multiply_tiles(Tile{}, Tile{}, Tile{}, 0, 1, 1), "tile 0 0 rows");

  // Palette, bytes a row (16 bits a tile from byte 16 on) and rows (from byte 48 on): x has 16 rows, w five pairs of k.
  Bytes configuration{1};
  for (const std::size_t tile : {0, 1, 2}) {
    configuration[16 + 2 * tile] = 64;
    configuration[48 + tile] = tile == 2 ? 5 : 16;
  }
  load_tile_configuration(&configuration);
  EXPECT_DEATH(multiply_tiles(0, 1, 2), "TDPBF16PS of 16 x 64 and 5 x 64 bytes into 16 x 64");
  EXPECT_DEATH(multiply_tiles(0, 1, 1), "of the same tile twice");
  EXPECT_DEATH(zero_tile(3), "which the configuration leaves out");
  release_tiles();
  configuration[2] = 1;
  EXPECT_DEATH(load_tile_configuration(&configuration), "reserved bytes");
}

// The emulation is as good as what it was compared with. Of dot products those with one product, to zero or to an
// ordinary sum, and zeros without their sign: beyond that manuals do not say the same of all processors, and no kernel
// depends on it.
TEST_F(EmulatedIsa, HasTheProcessorsBits) {
  if (kernels::processor_isa() < kernels::Isa::kAvx512Bf16) GTEST_SKIP() << "a processor without bfloat16";
  const auto without_signs_of_zeros = [](Floats16 x) {
    for (float& element : x) element += 0.0f;
    return x;
  };
  for (int repeat = 0; repeat < 1000; ++repeat) {
    Words a = any_bits<Words>(), b = any_bits<Words>();
    Floats16 sums{};
    if (repeat % 2 == 1) {
      for (auto* words : {&a, &b}) std::ranges::generate(*words, [&] { return ordinary(); });
      std::ranges::generate(sums, [&] { return normal_(random_); });
    }
    for (std::size_t i = 0; i < a.size(); ++i) {
      if ((i / 2 + i) % 2 == 0) a[i] = b[i] = 0;
    }
    expect_same(without_signs_of_zeros(emulated_calls().dot_products(sums, a, b)),
                without_signs_of_zeros(real_calls().dot_products(sums, a, b)), "lane");
    const auto other = any_bits<Floats16>();
    sums = any_bits<Floats16>();
    EXPECT_EQ(emulated_calls().two_to_bf16(sums, other), real_calls().two_to_bf16(sums, other));
    EXPECT_EQ(emulated_calls().to_bf16(other), real_calls().to_bf16(other));
    if (!kernels::has_byte_permutes()) continue;
    const auto index = any_bits<Bytes>(), x = any_bits<Bytes>(), upper = any_bits<Bytes>();
    EXPECT_EQ(emulated_calls().permuted(index, x), real_calls().permuted(index, x));
    EXPECT_EQ(emulated_calls().permuted_under_mask(upper, repeat, index, x),
              real_calls().permuted_under_mask(upper, repeat, index, x));
    EXPECT_EQ(emulated_calls().permuted_of_two(x, index, upper), real_calls().permuted_of_two(x, index, upper));
  }
}

TEST_F(EmulatedIsa, HasTheBitsOfTheProcessorsTiles) {
  if (kernels::processor_isa() < kernels::Isa::kAmx) GTEST_SKIP() << "a processor without AMX";
  for (const auto& [rows, pairs, columns] : {std::array{16, 16, 16}, {3, 16, 16}, {16, 5, 2}, {1, 1, 1}}) {
    const Tile sums = ordinary_sums(), x = ordinary_pairs(), w = ordinary_pairs();
    EXPECT_EQ(emulated_calls().multiply_tiles(sums, x, w, rows, pairs, columns),
              real_calls().multiply_tiles(sums, x, w, rows, pairs, columns))
        << rows << ' ' << columns;
  }
}

}  // namespace
}  // namespace computron::emulated_isa
