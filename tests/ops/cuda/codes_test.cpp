// What the GPU's kernels make of codes and scales, two at a time and one by one, on the host: every code with scales of
// every type, to the bit.
#include "kernels/cuda/codes.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "src/ops/cuda/tile_packer.h"
#include "src/ops/cuda/weight_format.h"
#include "tests/ops/quantised.h"

namespace computron::testing {
namespace {

using namespace kernels::cuda;

// Ends of ranges, numbers whose products are rounded to even from both sides, and signs.
Floats scales_of(DType type) {
  Floats scales = {0,         -0.0f,       1,           -1,       1.0f / 3,      -0.7f,
                   0x1p-126f, 0x1.8p-130f, 0x1p-133f,   0x1p-24f, 0x1.08p-3f,    0x1.fep-4f,
                   0x1.01p7f, 65504.0f,    0x1.fep119f, 0x1p127f, 0x1.fffffep-2f};
  for (const float scale : random_floats(200, 9)) scales.push_back(scale);
  for (float& scale : scales) scale = rounded_scale(type == DType::kE8M0 ? std::abs(scale) : scale, type);
  return scales;
}

std::uint32_t bits_of_value(float value) { return std::bit_cast<std::uint32_t>(value); }

// All codes of a type in rows 0 and 8, which have different scales; every row of 16 another pair of them.
void expect_values(const WeightType& type) {
  const int count = two_in_a_byte(type.codes) ? 16 : 256;
  const Floats scales = scales_of(type.scales);
  QuantisedWeight w{type, round_up(static_cast<int>(scales.size()), 16), count, {}, {}};
  for (int row = 0; row < w.out; ++row) {
    w.scales.push_back(scales[static_cast<std::size_t>(row) % scales.size()]);
    for (int code = 0; code < count; ++code) w.codes.push_back(static_cast<std::byte>(code));
  }
  const QuantisedTiles tiles(type, count);
  const auto scale_bytes = w.scale_bytes();
  std::vector<std::byte> packed(CudaWeightFormat().panel_bytes(w.out, count, type));
  pack_codes(packed.data(), tiles, 0, w.out, 0, count, w.codes.data(), static_cast<std::size_t>(count), 1);
  pack_scales(packed.data(), tiles, 0, w.out, 0, 1, scale_bytes.data(), 1, 1);
  const auto expect = [&](int row, int k, float actual) {
    const float expected = w.value(row, k);
    if (!std::isfinite(expected)) return;
    ASSERT_EQ(bits_of_value(actual), bits_of_value(expected))
        << fmt::format("{}: code {} × {}", describe(type), k, w.scale(row, k));
  };
  with_codes(type.codes, [&]<class Codes>(Codes) {
    with_scales(type.scales, [&]<class Scales>(Scales) {
      for (int row = 0; row < w.out; ++row) {
        typename Scales::Two two;  // rows 8 apart lie side by side
        std::memcpy(&two, &packed[tiles.scale_at(row - row % 16 / 8 * 8, 0)], sizeof two);
        for (int k = 0; k < count; k += 8) {
          unsigned piece[2], pairs[4];
          std::memcpy(piece, &packed[tiles.piece_at(row, k)], Codes::kBits);
          Codes::pairs(piece, pairs);
          for (int i = 0; i < 8; ++i) {
            if (type.codes == DType::kFp8 && is_nan_fp8(static_cast<unsigned>(k + i))) continue;
            const unsigned pair = Scales::scaled(pairs[i / 2], Scales::factor(two, row % 16 / 8));
            expect(row, k + i, f32_from_bf16(static_cast<std::uint16_t>(pair >> 16 * (i % 2))));
            expect(row, k + i, tiles.value(packed.data(), row, k + i));
          }
        }
      }
    });
  });
}

TEST(Codes, EveryCodeHasItsValueWithEveryScale) {
  for (const DType codes : kCodeDTypes) {
    for (const DType scales : kScaleDTypes) {
      if (!has_values(codes, scales)) continue;
      expect_values({DType::kBF16, codes, scales, WeightType::kWholeRow});
    }
  }
}

TEST(Codes, NansOfFp8AreTheNextNumber) {
  unsigned pairs[4];
  const unsigned piece[2] = {0x7fff7fff, 0};
  Fp8Codes::pairs(piece, pairs);
  EXPECT_EQ(f32_from_bf16(static_cast<std::uint16_t>(pairs[0])), -480);
  EXPECT_EQ(f32_from_bf16(static_cast<std::uint16_t>(pairs[0] >> 16)), 480);
}

// A warp's lanes, from unit to unit, read a tile's codes once each and side by side; scales follow.
TEST(QuantisedTiles, EveryCodeAndScaleHasAPlaceOfItsOwn) {
  for (const WeightType& type : quantised_types(DType::kBF16)) {
    for (const int depth : {8, 33, 200}) {
      const QuantisedTiles tiles(type, depth);
      std::vector<int> used(2 * tiles.tile_bytes() * 2);  // halves of bytes
      const auto use = [&](std::size_t first, std::size_t halves) {
        for (std::size_t i = first; i < first + halves; ++i) ++used.at(i);
      };
      for (int row = 0; row < 2 * kTileRows; ++row) {
        for (int k = 0; k < depth; ++k) {
          const std::size_t piece = tiles.piece_at(row, k), tile = row / kTileRows * tiles.tile_bytes();
          ASSERT_EQ((piece - tile) % QuantisedTiles::kUnitBytes / QuantisedTiles::kLaneBytes,
                    static_cast<std::size_t>(row % 8 * 4 + k % 32 / 8));
          const std::size_t in_piece = tiles.bits() == 4 ? QuantisedTiles::nibble_at(k) / 4 : k % 8 * 2;
          use(piece * 2 + in_piece, bits_of(type.codes) / 4);
          ASSERT_EQ(tiles.group_of(k), type.group >= depth ? 0 : k / type.group);
        }
        for (int g = 0; g < tiles.groups(); ++g) use(tiles.scale_at(row, g) * 2, size_of(type.scales) * 2);
      }
      EXPECT_LE(*std::max_element(used.begin(), used.end()), 1) << describe(type) << " " << depth;
      EXPECT_EQ(tiles.tile_bytes() % 64, 0u);
    }
  }
}

}  // namespace
}  // namespace computron::testing
