// Pages of weights without the bits that their exponents waste, exact to the bit. Values of a weight matrix use few of
// the exponents that their type has: of each block the seven commonest are named by three bits a value, and any other
// follows as a byte of its own. A page is decoded block by block, from any block on, as it arrives on the device.
//
// A coded page, little-endian:
//   u32 directory[blocks + 1]   bits 0-23: where the block begins, in 16 bytes from the beginning of the page;
//                               bits 24-31: its BlockCode. The last entry says where the last block ends
//   the blocks                  each at a multiple of 16 bytes
// A block is 8 KiB of the page; the last may be shorter and is then raw. A coded one (n values: 4,096 of 16 bits or
// 2,048 of 32) is, with w = the value rotated left by one bit, so that its sign is last and its exponent first:
//   byte planes    [planes][n]        the lowest bytes of w: one of 16-bit types, three of float32
//   top bits       [n * 3 / 8]        of float16 alone: bits 8-10 of w
//   codes          [n * 3 / 8]        1-7: the exponent is table[code]; 0: it is the next of `others`
//   table          [8]                the block's commonest exponents from 1 on; table[0] is 0
//   u32 count, 0                      how many values have code 0
//   others         [count]            exponents, in the order of the values' places
// An exponent is the upper byte of w (of float16 its five upper bits, the lower three being 0). Places: of 64 values that
// follow each other, place p holds value (p & 8) * 4 + (p >> 4) * 8 + (p & 7), of float32 (p >> 2 & 3) * 16 +
// (p >> 4) * 4 + (p & 3), which is how vectors interleave bytes. Three-bit numbers of 512 places are bytes A[64], B[64],
// D[64]: those of places 0-63 in bits 0-2 of A, 64-127 in bits 4-6 of A, then of B and D likewise; those of places 384-447
// have their bits in bit 3 of A, B and D, those of 448-511 in bit 7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "computron/base/types.h"

namespace computron::kernels {

inline constexpr std::size_t kCodedBlockBytes = 8192;  // of a page
inline constexpr std::size_t kCodedPadding = 64;       // bytes behind a coded page that are read, and do not matter
inline constexpr std::size_t kMostCodableBytes = std::size_t{128} << 20;  // of a page

enum class BlockCode : std::uint8_t { kRaw = 0, kFill = 1, kBf16 = 2, kF16 = 3, kF32 = 4 };
constexpr BlockCode code_of(DType t) {
  return t == DType::kF32 ? BlockCode::kF32 : t == DType::kF16 ? BlockCode::kF16 : BlockCode::kBf16;
}

// Which instructions decode: AVX-512 with VBMI2 where the processor has it.
enum class CodedIsa { kPlain, kAvx2, kAvx512 };
CodedIsa best_coded_isa();

constexpr std::size_t coded_blocks(std::size_t page_bytes) { return ceil_div(page_bytes, kCodedBlockBytes); }
// The most that `page_bytes` may take coded: a little more than raw.
std::size_t most_coded_bytes(std::size_t page_bytes);

// Writes `page` coded to `out`, which has room for most_coded_bytes(), and returns how many bytes it takes. `values`: of
// each block the code that its values may gain by, kRaw where that is unknown; a block that gains nothing is raw.
// At most kMostCodableBytes.
std::size_t encode_page(std::span<const std::byte> page, std::span<const BlockCode> values, std::byte* out);

// Where block `block` begins, which is where block - 1 ends, in bytes from the beginning of the coded page. Of a damaged
// page anything.
std::size_t coded_offset(std::span<const std::byte> coded, std::size_t block);

// Decodes blocks [first, end) of a page of `page_bytes` into `page`, the whole page's place, aligned to 64 bytes, past the
// processor's caches. False where `coded` cannot be what encode_page() wrote for a page of that size. Whatever `coded`
// holds, no byte beyond it and kCodedPadding is read, none beyond the page written.
bool decode_blocks(std::span<const std::byte> coded, std::size_t page_bytes, std::size_t first, std::size_t end,
                   std::byte* page, CodedIsa isa = best_coded_isa());

}  // namespace computron::kernels
