// How quantised GEMM weights lie in memory on CUDA.
//
// A weight [rows, depth] is cut into tiles of 16 rows, as the product of few rows takes them (gemm.h), and the codes of
// a tile into units of 512 bytes: 32 k of codes of eight bits, 64 of four. A warp reads a unit at once, lane l its
// bytes [16 l, 16 l + 16), and has then what it multiplies, pieces of eight k of a row: from k = l % 4 * 8 on of row l
// / 4 and of row l / 4 + 8; of four bits then the same of k + 32.
//
//   tile    unit 0 | unit 1 | ... | scales | up to a multiple of 64 bytes
//   piece   eight bits: a byte each; four bits: a word, k = 0, 2, 4, 6 in its lower half and 1, 3, 5, 7 in the upper,
//           so that one shift brings two neighbours to the lowest bits of both halves
//   scales  of a group those of rows 0 and 8, 1 and 9, ... 7 and 15, then the next group
//
// The depth is padded to whole units. Zeroed memory is a weight of zeros.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "computron/base/host_device.h"
#include "computron/base/weight_type.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/runs.h"

namespace computron::kernels::cuda {

struct QuantisedTiles {
  static constexpr int kUnitBytes = 512;
  static constexpr int kLaneBytes = 16;
  static constexpr int kSlice = 32;  // k that the four lanes of a row have side by side
  static constexpr int kPieceK = 8;
  static constexpr int kAlignment = 64;

  DType codes = DType::kF32;  // plain: the weight has no tiles
  DType scales = DType::kF32;
  int depth = 0;
  int group = 0;  // a multiple of kPieceK, unless all is one

  constexpr QuantisedTiles() = default;
  constexpr QuantisedTiles(const WeightType& type, int columns)
      : codes(type.codes), scales(type.scales), depth(columns), group(type.group) {
    if (!quantised()) return;
    ensure(groups() == 1 || (group % kPieceK == 0 && group > kPieceK), "a group of codes that cuts a piece of eight");
    const std::uint64_t pieces = static_cast<std::uint64_t>(ceil_div(depth, kPieceK));
    ensure(groups() == 1 || pieces * group_pieces() < std::uint64_t{1} << 32,
           "groups of codes in rows that are too long");
    inverse_ = groups() == 1 ? 0 : static_cast<std::uint32_t>(ceil_div(std::uint64_t{1} << 32, group_pieces()));
    scales_at_ = static_cast<std::uint32_t>(units()) * kUnitBytes;
    const auto of_group = static_cast<std::uint32_t>(kTileRows * size_of(scales));
    tile_bytes_ = round_up(scales_at_ + static_cast<std::uint32_t>(groups()) * of_group, std::uint32_t{kAlignment});
  }

  constexpr bool quantised() const { return group > 0; }
  constexpr int bits() const { return static_cast<int>(bits_of(codes)); }
  constexpr int unit_depth() const { return kSlice * 8 / bits(); }
  constexpr int units() const { return ceil_div(depth, unit_depth()); }
  constexpr int groups() const { return group >= depth ? 1 : ceil_div(depth, group); }
  // k / group, without a division: ⌈2^32 / n⌉ × n is too large by less than n, which does not show in the quotient of a
  // piece whose number × n is below 2^32.
  constexpr int group_of(int k) const { return static_cast<int>(group_of_piece(static_cast<unsigned>(k) / kPieceK)); }
  COMPUTRON_HOST_DEVICE constexpr unsigned group_of_piece(unsigned piece) const {
#ifdef __CUDA_ARCH__
    return __umulhi(piece, inverse_);
#else
    return static_cast<unsigned>(std::uint64_t{piece} * inverse_ >> 32);
#endif
  }

  constexpr std::size_t scales_at() const { return scales_at_; }
  constexpr std::size_t tile_bytes() const { return tile_bytes_; }
  constexpr std::size_t row_bytes() const { return tile_bytes() / kTileRows; }

  // Where things of row `row` lie, in bytes from the tile with row 0: the piece with k, and the scale of a group.
  constexpr std::size_t piece_at(int row, int k) const {
    const int lane = row % 8 * 4 + k % kSlice / kPieceK;
    const int piece = k % unit_depth() / kSlice * 2 + row % kTileRows / 8;
    return tile_at(row) + static_cast<std::size_t>(k / unit_depth()) * kUnitBytes + lane * kLaneBytes + piece * bits();
  }
  constexpr std::size_t scale_at(int row, int g) const {
    const int place = row % 8 * 2 + row % kTileRows / 8;
    return tile_at(row) + scales_at() + (static_cast<std::size_t>(g) * kTileRows + place) * size_of(scales);
  }
  // Where in a piece of four bits the code of k is, in bits.
  static constexpr int nibble_at(int k) { return (k % 2 * 4 + k % kPieceK / 2) * 4; }

  // code × scale of one element, rounded to bfloat16. The two NaNs of fp8 count as ±480.
  COMPUTRON_HOST_DEVICE float value(const std::byte* tiles, int row, int k) const {
    BFloat16 rounded;
    narrow(code(tiles + piece_at(row, k), k) * scale(tiles + scale_at(row, group_of(k))), rounded);
    return widen(rounded);
  }

 private:
  // What kernels would have to divide for.
  std::uint32_t inverse_ = 0;  // ⌈2^32 / group_pieces()⌉, or 0: there is one group
  std::uint32_t scales_at_ = 0, tile_bytes_ = 0;

  constexpr std::uint64_t group_pieces() const { return static_cast<std::uint64_t>(group / kPieceK); }
  constexpr std::size_t tile_at(int row) const { return static_cast<std::size_t>(row / kTileRows) * tile_bytes(); }

  COMPUTRON_HOST_DEVICE static float float_of_bits(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    return std::bit_cast<float>(bits);
#endif
  }
  COMPUTRON_HOST_DEVICE float code(const std::byte* piece, int k) const {
    if (bits() == 4) {
      const int nibble = nibble_at(k), code = static_cast<int>(piece[nibble / 8]) >> nibble % 8 & 15;
      if (codes == DType::kInt4) return static_cast<float>((code ^ 8) - 8);
      const std::uint32_t magnitude = code & 7, sign = code & 8;
      return 0x1p126f * float_of_bits(sign << 28 | magnitude << 22);
    }
    const auto code = static_cast<std::uint8_t>(piece[k % kPieceK]);
    if (codes == DType::kInt8) return static_cast<float>(static_cast<std::int8_t>(code));
    const std::uint32_t magnitude = code & 0x7fu, sign = code & 0x80u;
    return 0x1p120f * float_of_bits(sign << 24 | magnitude << 20);
  }
  COMPUTRON_HOST_DEVICE float scale(const std::byte* at) const {
    if (scales == DType::kF32) return *reinterpret_cast<const float*>(at);
    if (scales == DType::kF16) return widen(*reinterpret_cast<const Float16*>(at));
    if (scales == DType::kBF16) return widen(*reinterpret_cast<const BFloat16*>(at));
    const auto exponent = static_cast<std::uint32_t>(*at);
    return float_of_bits(exponent == 0 ? 0x00400000u : exponent == 255 ? 0x7fc00000u : exponent << 23);
  }
};

}  // namespace computron::kernels::cuda
