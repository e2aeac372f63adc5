// Encodes and decodes coded pages (computron/kernels/coded_layout.h).
#pragma once

#include <cstddef>
#include <span>

#include "computron/kernels/coded_layout.h"
#include "kernels/cpu/coded_blocks.h"

namespace computron::kernels {

// Which instructions encode and decode: AVX-512 where the processor has its VBMI2 part. All give the same bytes.
enum class CodedIsa { kPlain, kAvx2, kAvx512 };
CodedIsa best_coded_isa();

// Writes a page coded to `out`, which has room for most_coded_bytes(), as many blocks at a time as the caller wants.
class PageEncoder {
 public:
  // `values`: the encoding by which each block may gain, kRaw where that is unknown; a block that gains nothing is raw.
  // The page has at most kMostCodableBytes. Borrows everything.
  PageEncoder(std::span<const std::byte> page, std::span<const BlockEncoding> values, std::byte* out,
              CodedIsa isa = best_coded_isa());

  // Encodes the blocks before `end` that are not encoded yet.
  void encode_to(std::size_t end);
  // The bytes that the coded page takes, once all blocks are encoded.
  std::size_t bytes() const { return at_; }

 private:
  std::span<const std::byte> page_;
  std::span<const BlockEncoding> values_;
  std::byte* out_;
  CodedIsa isa_;
  std::size_t next_ = 0, at_ = 0;  // the next block, and where it begins
};

// All of it.
std::size_t encode_page(std::span<const std::byte> page, std::span<const BlockEncoding> values, std::byte* out,
                        CodedIsa isa = best_coded_isa());

// Where block `block` begins, which is where block - 1 ends, in bytes from the beginning of the coded page. A damaged
// page may say anything.
std::size_t coded_offset(std::span<const std::byte> coded, std::size_t block);

// Decodes blocks [first, end) of a page of `page_bytes`. Block `first` goes to `out`, aligned to 64 bytes, the others
// behind it. False where `coded` cannot be what encode_page() wrote for a page of that size. Whatever `coded` holds,
// nothing but it and kCodedPadding behind it is read, and nothing but those blocks written.
bool decode_blocks(std::span<const std::byte> coded, std::size_t page_bytes, std::size_t first, std::size_t end,
                   std::byte* out, Stores stores = Stores::kStreaming, CodedIsa isa = best_coded_isa());

}  // namespace computron::kernels
