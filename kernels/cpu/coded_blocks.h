// The blocks of coded pages (computron/kernels/coded_layout.h), one at a time. The plain loops say what the vectors
// must do: every encoder writes the same bytes, every decoder the same values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "computron/kernels/coded_layout.h"

namespace computron::kernels {

// Whether what is decoded goes past the processor's caches (to frames) or into them.
enum class Stores { kCached, kStreaming };

// A coded block. The escapes end before `end`, and 64 bytes behind it can be read.
struct CodedBlock {
  const std::uint8_t* bytes;
  const std::uint8_t* end;
};

// Decodes a block of values to `out`, aligned to 64 bytes. Requires least_block_bytes(). A damaged block may claim more
// escapes than it has: the escapes of each group of 64 values begin at `end` at the latest. So nothing outside of the
// block and the 64 bytes behind it is read, nothing outside of the 8 KiB at `out` is written, and all decoders give the
// same values.
void decode_block_plain(BlockEncoding encoding, const CodedBlock& block, std::uint8_t* out);
void decode_block_avx2(BlockEncoding encoding, const CodedBlock& block, std::uint8_t* out, Stores stores);
void decode_block_avx512(BlockEncoding encoding, const CodedBlock& block, std::uint8_t* out, Stores stores);

// Encodes 8 KiB of values and returns how many bytes that takes; 0: no fewer than the values themselves, and `out`
// holds anything. Writes up to kCodedBlockBytes + kCodedPadding at `out`.
std::size_t encode_block_plain(BlockEncoding encoding, const std::uint8_t* values, std::uint8_t* out);
std::size_t encode_block_avx2(BlockEncoding encoding, const std::uint8_t* values, std::uint8_t* out);
std::size_t encode_block_avx512(BlockEncoding encoding, const std::uint8_t* values, std::uint8_t* out);

}  // namespace computron::kernels
