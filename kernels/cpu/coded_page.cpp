#include "kernels/cpu/coded_page.h"

#include <algorithm>
#include <cstring>

#include "computron/base/vectors.h"
#include "kernels/cpu/coded_blocks.h"
#include "kernels/cpu/isa.h"

namespace computron::kernels {
namespace {

struct BlockCoder {
  void (*decode)(BlockEncoding, const CodedBlock&, std::uint8_t*, Stores);
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
  const auto decode = [](BlockEncoding encoding, const CodedBlock& block, std::uint8_t* out, Stores) {
    decode_block_plain(encoding, block, out);
  };
  return {decode, encode_block_plain};
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

void copy_raw(const std::byte* from, std::size_t bytes, std::byte* to, Stores stores) {
  std::size_t i = stores == Stores::kCached ? bytes : 0;
  std::memcpy(to, from, i);
  for (; i + 32 <= bytes; i += 32) {
    const __m256i some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), some);
  }
  std::memcpy(to + i, from + i, bytes - i);
}

void fill(const std::byte* pattern, std::byte* to, Stores stores) {
  for (std::size_t i = 0; i < kCodedBlockBytes; i += kFillBytes) copy_raw(pattern, kFillBytes, to + i, stores);
}

}  // namespace

CodedIsa best_coded_isa() {
  static const bool wide = usable_isa() >= Isa::kAvx512 && has_byte_compression();
  return wide ? CodedIsa::kAvx512 : CodedIsa::kAvx2;
}

PageEncoder::PageEncoder(std::span<const std::byte> page, std::span<const BlockEncoding> values, std::byte* out,
                         CodedIsa isa)
    : page_(page), values_(values), out_(out), isa_(isa), at_(coded_directory_bytes(values.size())) {
  ensure(page.size() <= kMostCodableBytes && values.size() == coded_blocks(page.size()), "a page that cannot be coded");
  std::memset(out, 0, at_);
  put_entry(out, values.size(), at_, BlockEncoding::kRaw);
}

void PageEncoder::encode_to(std::size_t end) {
  const BlockCoder coder = coder_of(isa_);
  for (; next_ < end; ++next_) {
    const std::size_t first = next_ * kCodedBlockBytes;
    const auto block = page_.subspan(first, std::min(kCodedBlockBytes, page_.size() - first));
    const Encoded encoded = encode_block(block, values_[next_], coder, out_ + at_);
    put_entry(out_, next_, at_, encoded.encoding);
    const std::size_t ends = round_up(at_ + encoded.bytes, kCodedGrain);
    std::memset(out_ + at_ + encoded.bytes, 0, ends - at_ - encoded.bytes);
    at_ = ends;
  }
  put_entry(out_, values_.size(), at_, BlockEncoding::kRaw);
}

std::size_t encode_page(std::span<const std::byte> page, std::span<const BlockEncoding> values, std::byte* out,
                        CodedIsa isa) {
  PageEncoder encoder(page, values, out, isa);
  encoder.encode_to(values.size());
  return encoder.bytes();
}

std::size_t coded_offset(std::span<const std::byte> coded, std::size_t block) {
  return entry_at(coded, block).offset();
}

bool decode_blocks(std::span<const std::byte> coded, std::size_t page_bytes, std::size_t first, std::size_t end,
                   std::byte* out, Stores stores, CodedIsa isa) {
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
    std::byte* const to = out + (block - first) * kCodedBlockBytes;
    if (encoding == BlockEncoding::kRaw) {
      copy_raw(from, decoded, to, stores);
    } else if (encoding == BlockEncoding::kFill) {
      fill(from, to, stores);
    } else {
      coder.decode(encoding, {plain_bytes(from), plain_bytes(coded.data() + ends)}, plain_bytes(to), stores);
    }
  }
  _mm_sfence();
  return good;
}

}  // namespace computron::kernels
