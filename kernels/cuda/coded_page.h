// Decodes coded pages (computron/kernels/coded_layout.h). What the CPU's decoder gives of a page this gives, too, of a
// damaged one as well.
#pragma once

#include <cstddef>

#include "computron/kernels/coded_layout.h"

struct CUstream_st;

namespace computron::kernels::cuda {

// Blocks [first, end) of a page, in device memory.
struct DecodeCall {
  const std::byte* coded;   // aligned to 16 bytes; kCodedPadding behind it can be read
  std::size_t coded_bytes;  // without kCodedPadding
  std::size_t page_bytes;
  std::size_t first, end;
  std::byte* page;  // where the whole page belongs; aligned to 16 bytes
  int* refused;     // becomes `number` where a block cannot be what encode_page() wrote; the block is not written then
  int number = 1;
  const int* only_if = nullptr;  // nothing is done where it points to 0
};
// A warp takes a block. `end` is at most coded_blocks(page_bytes).
void decode_blocks(CUstream_st* stream, const DecodeCall& call);

}  // namespace computron::kernels::cuda
