// The blocks of coded pages (coded_page.h), one at a time: what kinds there are, and who decodes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/coded_page.h"

namespace computron::kernels {

// Places that are decoded together, and those whose three-bit numbers lie together.
inline constexpr std::size_t kCodedGroup = 64, kCodedRun = 512;

constexpr std::size_t three_bit_bytes(std::size_t values) { return values * 3 / 8; }

// How values of a type are taken apart.
template <class V, int kPlanes, bool kTop>
struct CodedKind {
  using Value = V;
  static constexpr int kBytePlanes = kPlanes;
  static constexpr bool kTopBits = kTop;
  static constexpr std::size_t kValues = kCodedBlockBytes / sizeof(V);
  // From the beginning of a block.
  static constexpr std::size_t kTopAt = kPlanes * kValues;
  static constexpr std::size_t kCodesAt = kTopAt + (kTop ? three_bit_bytes(kValues) : 0);
  static constexpr std::size_t kTableAt = kCodesAt + three_bit_bytes(kValues);
  static constexpr std::size_t kCountAt = kTableAt + 8;
  static constexpr std::size_t kOthersAt = kTableAt + 16;

  // Which of a group's values place p holds.
  static constexpr std::size_t value_at(std::size_t p) {
    return sizeof(V) == 4 ? (p >> 2 & 3) * 16 + (p >> 4) * 4 + (p & 3) : (p & 8) * 4 + (p >> 4) * 8 + (p & 7);
  }
};
using CodedBf16 = CodedKind<std::uint16_t, 1, false>;
using CodedF16 = CodedKind<std::uint16_t, 1, true>;
using CodedF32 = CodedKind<std::uint32_t, 3, false>;

// Decodes a block of that code to `out`, aligned to 64 bytes. Up to 64 bytes from any place in [others, others_end] may be
// read, and others_end + 64 is readable; a damaged block gives any values, and reads and writes nothing else.
struct CodedBlock {
  const std::uint8_t* bytes;
  const std::uint8_t* others_end;
};
void decode_block_plain(BlockCode code, const CodedBlock& block, std::uint8_t* out);
void decode_block_avx2(BlockCode code, const CodedBlock& block, std::uint8_t* out);
void decode_block_avx512(BlockCode code, const CodedBlock& block, std::uint8_t* out);

}  // namespace computron::kernels
