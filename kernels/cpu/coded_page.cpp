#include "kernels/cpu/coded_page.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/coded_blocks.h"

namespace computron::kernels {
namespace {

struct BlockCoder {
  void (*decode)(BlockEncoding, const CodedBlock&, std::uint8_t*);
  std::size_t (*encode)(BlockEncoding, const std::uint8_t*, std::uint8_t*);
};

BlockCoder coder_of(CodedIsa isa) {
  switch (isa) {
    case CodedIsa::kPlain:
      break;
    case CodedIsa::kAvx2:
      return {decode_block_avx2, encode_block_avx2};
    case CodedIsa::kAvx512:
      return {decode_block_avx512, encode_block_avx512};
  }
  return {decode_block_plain, encode_block_plain};
}

const std::uint8_t* plain_bytes(const std::byte* p) { return reinterpret_cast<const std::uint8_t*>(p); }
std::uint8_t* plain_bytes(std::byte* p) { return reinterpret_cast<std::uint8_t*>(p); }

// --- Encoding

struct Encoded {
  BlockEncoding encoding;
  std::size_t bytes;
};

bool repeats(const std::byte* block) {
  return std::memcmp(block, block + kFillBytes, kCodedBlockBytes - kFillBytes) == 0;
}

Encoded copied(std::span<const std::byte> bytes, BlockEncoding encoding, std::byte* out) {
  std::memcpy(out, bytes.data(), bytes.size());
  return {encoding, bytes.size()};
}

Encoded encode_block(std::span<const std::byte> block, BlockEncoding values, const BlockCoder& coder, std::byte* out) {
  if (block.size() < kCodedBlockBytes) return copied(block, BlockEncoding::kRaw, out);
  if (repeats(block.data())) return copied(block.first(kFillBytes), BlockEncoding::kFill, out);
  const std::size_t bytes = coder.encode(values, plain_bytes(block.data()), plain_bytes(out));
  return bytes > 0 ? Encoded{values, bytes} : copied(block, BlockEncoding::kRaw, out);
}

void put_entry(std::byte* out, std::size_t block, std::size_t offset, BlockEncoding encoding) {
  const BlockEntry entry = BlockEntry::make(offset, encoding);
  std::memcpy(out + block * sizeof entry, &entry, sizeof entry);
}

// --- Decoding

BlockEntry entry_at(std::span<const std::byte> coded, std::size_t block) {
  BlockEntry entry{};
  std::memcpy(&entry, coded.data() + block * sizeof entry, sizeof entry);
  return entry;
}

void stream_raw(const std::byte* from, std::size_t bytes, std::byte* to) {
  std::size_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), some);
  }
  std::memcpy(to + i, from + i, bytes - i);
}

void stream_fill(const std::byte* pattern, std::byte* to) {
  for (std::size_t i = 0; i < kCodedBlockBytes; i += kFillBytes) stream_raw(pattern, kFillBytes, to + i);
}

}  // namespace

CodedIsa best_coded_isa() {
  static const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512vbmi2");
  return wide ? CodedIsa::kAvx512 : CodedIsa::kAvx2;
}

std::size_t encode_page(std::span<const std::byte> page, std::span<const BlockEncoding> values, std::byte* out,
                        CodedIsa isa) {
  const std::size_t blocks = coded_blocks(page.size());
  ensure(page.size() <= kMostCodableBytes && values.size() == blocks, "a page that cannot be coded");
  const BlockCoder coder = coder_of(isa);
  std::size_t at = coded_directory_bytes(blocks);
  std::memset(out, 0, at);
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = block * kCodedBlockBytes;
    const auto bytes = page.subspan(first, std::min(kCodedBlockBytes, page.size() - first));
    const Encoded encoded = encode_block(bytes, values[block], coder, out + at);
    put_entry(out, block, at, encoded.encoding);
    const std::size_t end = round_up(at + encoded.bytes, kCodedGrain);
    std::memset(out + at + encoded.bytes, 0, end - at - encoded.bytes);
    at = end;
  }
  put_entry(out, blocks, at, BlockEncoding::kRaw);
  return at;
}

std::size_t coded_offset(std::span<const std::byte> coded, std::size_t block) {
  return entry_at(coded, block).offset();
}

bool decode_blocks(std::span<const std::byte> coded, std::size_t page_bytes, std::size_t first, std::size_t end,
                   std::byte* page, CodedIsa isa) {
  const std::size_t blocks = coded_blocks(page_bytes);
  if (coded.size() < coded_directory_bytes(blocks) || end > blocks) return false;
  const BlockCoder coder = coder_of(isa);
  bool good = true;
  for (std::size_t block = first; block < end && good; ++block) {
    const BlockEntry entry = entry_at(coded, block);
    const BlockEncoding encoding = entry.encoding();
    const std::size_t begins = entry.offset(), ends = coded_offset(coded, block + 1);
    const std::size_t decoded = std::min(kCodedBlockBytes, page_bytes - block * kCodedBlockBytes);
    good = begins <= ends && ends <= coded.size() && least_block_bytes(encoding, decoded) <= ends - begins;
    if (!good) break;
    const std::byte* const from = coded.data() + begins;
    std::byte* const to = page + block * kCodedBlockBytes;
    if (encoding == BlockEncoding::kRaw) {
      stream_raw(from, decoded, to);
    } else if (encoding == BlockEncoding::kFill) {
      stream_fill(from, to);
    } else {
      coder.decode(encoding, {plain_bytes(from), plain_bytes(coded.data() + ends)}, plain_bytes(to));
    }
  }
  _mm_sfence();
  return good;
}

}  // namespace computron::kernels
