// Coded pages: pages of weights without the bits that their exponents waste, exact to the bit.
//
// A type has room for many exponents, and the weights of a matrix use few. The seven commonest exponents of a block are
// named by a code of three bits a value; every other one is an escape, a byte of its own. A page can be decoded from
// any block on, so it can be decoded as it arrives on the device.
//
// A coded page, little-endian:
//   u32 directory[blocks + 1]   bits 0-23: where the block begins, in units of 16 bytes from the page's beginning;
//                               bits 24-31: its BlockEncoding. The last entry says where the last block ends
//   the blocks                  each begins at a multiple of 16 bytes
//
// A block holds 8 KiB of the page. The page's last block may be shorter, and is raw then. A raw block is the bytes
// themselves; a filled block is 64 bytes that repeat. A block of values has n of them (4,096 of 16 bits or 2,048 of
// 32). With w = the value rotated left by one bit, so that its sign comes last and its exponent first, it is:
//   byte planes   [planes][n]   the lower bytes of w, the lowest first: one plane of 16-bit types, three of float32
//   top bits      [3 n / 8]     of float16 alone: bits 8-10 of w, as three-bit numbers
//   codes         [3 n / 8]     three-bit numbers; code 1-7: the exponent is table[code]; 0: it is the next escape
//   table         [8]           the block's commonest exponents, the commonest in table[1]; table[0] is 0
//   escapes       [any number]  in the order of the values' places
// An exponent is the upper byte of w; the three top bits of float16 are 0 in it.
//
// Places are the order in which vectors interleave bytes. Of 64 neighbouring values place p holds value
// (p & 8) * 4 + (p >> 4) * 8 + (p & 7), of float32 value (p >> 2 & 3) * 16 + (p >> 4) * 4 + (p & 3).
//
// The three-bit numbers of 512 places are 192 bytes A[64] B[64] D[64]. Group g is places 64 g to 64 g + 63; its number
// p lies in byte p. Groups 0 and 1 have bits 0-2 and 4-6 of A, groups 2 and 3 those of B, groups 4 and 5 those of D.
// Group 6 has bit 3 of A, B and D as its bits 0, 1 and 2; group 7 has bit 7 likewise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "computron/base/host_device.h"
#include "computron/base/types.h"

namespace computron {

inline constexpr std::size_t kCodedBlockBytes = 8192;  // of a page
inline constexpr std::size_t kCodedPadding = 64;       // bytes behind a coded page that are read and do not matter
inline constexpr std::size_t kMostCodableBytes = std::size_t{128} << 20;  // of a page
inline constexpr std::size_t kCodedGrain = 16;                            // blocks begin at multiples of it
inline constexpr std::size_t kFillBytes = 64;
inline constexpr std::size_t kCodedGroup = 64;  // values that are decoded together
inline constexpr std::size_t kCodedRun = 512;   // values whose three-bit numbers lie together
inline constexpr int kCodedExponents = 7;       // that the table of a block names

enum class BlockEncoding : std::uint8_t { kRaw = 0, kFill = 1, kBf16 = 2, kF16 = 3, kF32 = 4 };
// Codes of quantised weights hold no exponents that could be coded.
constexpr BlockEncoding encoding_of(DType t) {
  constexpr BlockEncoding kOfPlain[] = {BlockEncoding::kF32, BlockEncoding::kF16, BlockEncoding::kBf16};
  return is_plain(t) ? kOfPlain[static_cast<std::size_t>(t)] : BlockEncoding::kRaw;
}

constexpr std::size_t three_bit_bytes(std::size_t values) { return values * 3 / 8; }

// How values of a type are taken apart.
template <class V, int kPlanes, bool kTop>
struct CodedValues {
  using Value = V;
  static constexpr int kBytePlanes = kPlanes;
  static constexpr bool kTopBits = kTop;
  static constexpr std::size_t kValues = kCodedBlockBytes / sizeof(V);
  // Offsets from the beginning of a block.
  static constexpr std::size_t kTopAt = kPlanes * kValues;
  static constexpr std::size_t kCodesAt = kTopAt + (kTop ? three_bit_bytes(kValues) : 0);
  static constexpr std::size_t kTableAt = kCodesAt + three_bit_bytes(kValues);
  static constexpr std::size_t kEscapesAt = kTableAt + 1 + kCodedExponents;

  // Which of a group's values place p holds.
  static constexpr std::size_t value_at(std::size_t p) {
    return sizeof(V) == 4 ? (p >> 2 & 3) * 16 + (p >> 4) * 4 + (p & 3) : (p & 8) * 4 + (p >> 4) * 8 + (p & 7);
  }
};
using CodedBf16 = CodedValues<std::uint16_t, 1, false>;
using CodedF16 = CodedValues<std::uint16_t, 1, true>;
using CodedF32 = CodedValues<std::uint32_t, 3, false>;

constexpr std::size_t coded_blocks(std::size_t page_bytes) { return ceil_div(page_bytes, kCodedBlockBytes); }
constexpr std::size_t coded_directory_bytes(std::size_t blocks) {
  return round_up((blocks + 1) * sizeof(std::uint32_t), kCodedGrain);
}
// The most that a page may take when it is coded: a little more than raw. Includes kCodedPadding.
constexpr std::size_t most_coded_bytes(std::size_t page_bytes) {
  const std::size_t blocks = coded_blocks(page_bytes);
  return coded_directory_bytes(blocks) + blocks * kCodedBlockBytes + kCodedPadding;
}

// An entry of the directory.
struct BlockEntry {
  std::uint32_t bits;

  static constexpr int kOffsetBits = 24;
  static constexpr BlockEntry make(std::size_t offset, BlockEncoding encoding) {
    return {static_cast<std::uint32_t>(offset / kCodedGrain) | static_cast<std::uint32_t>(encoding) << kOffsetBits};
  }
  // In bytes from the beginning of the coded page.
  COMPUTRON_HOST_DEVICE constexpr std::size_t offset() const {
    return (bits & ((1u << kOffsetBits) - 1)) * kCodedGrain;
  }
  COMPUTRON_HOST_DEVICE constexpr BlockEncoding encoding() const {
    return static_cast<BlockEncoding>(bits >> kOffsetBits);
  }
};

// How many bytes a block of that encoding has at least, if it holds `decoded` bytes of the page; more than any page has
// where there is no such block.
COMPUTRON_HOST_DEVICE constexpr std::size_t least_block_bytes(BlockEncoding encoding, std::size_t decoded) {
  if (encoding == BlockEncoding::kRaw) return decoded;
  if (decoded == kCodedBlockBytes) {
    if (encoding == BlockEncoding::kFill) return kFillBytes;
    if (encoding == BlockEncoding::kBf16) return CodedBf16::kEscapesAt;
    if (encoding == BlockEncoding::kF16) return CodedF16::kEscapesAt;
    if (encoding == BlockEncoding::kF32) return CodedF32::kEscapesAt;
  }
  return ~std::size_t{0};
}

}  // namespace computron
