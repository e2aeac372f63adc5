// Encodes and decodes coded pages (computron/kernels/coded_layout.h).
#pragma once

#include <cstddef>
#include <span>

#include "computron/kernels/coded_layout.h"

namespace computron::kernels {

// Which instructions encode and decode: AVX-512 where the processor has its VBMI2 part. All give the same bytes.
enum class CodedIsa { kPlain, kAvx2, kAvx512 };
CodedIsa best_coded_isa();

// Writes `page` coded to `out`, which has room for most_coded_bytes(), and returns how many bytes it takes. `values`:
// the encoding by which each block may gain, kRaw where that is unknown; a block that gains nothing is raw. The page
// has at most kMostCodableBytes.
std::size_t encode_page(std::span<const std::byte> page, std::span<const BlockEncoding> values, std::byte* out,
                        CodedIsa isa = best_coded_isa());

// Where block `block` begins, which is where block - 1 ends, in bytes from the beginning of the coded page. A damaged
// page may say anything.
std::size_t coded_offset(std::span<const std::byte> coded, std::size_t block);

// Decodes blocks [first, end) of a page of `page_bytes`. `page` is where the whole page belongs, aligned to 64 bytes;
// it is written past the processor's caches. False where `coded` cannot be what encode_page() wrote for a page of that
// size. Whatever `coded` holds, nothing but it and kCodedPadding behind it is read, and nothing but those blocks
// written.
bool decode_blocks(std::span<const std::byte> coded, std::size_t page_bytes, std::size_t first, std::size_t end,
                   std::byte* page, CodedIsa isa = best_coded_isa());

}  // namespace computron::kernels
