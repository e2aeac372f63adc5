#include "kernels/cpu/coded_page.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "kernels/cpu/coded_blocks.h"

namespace computron::kernels {
namespace {

constexpr std::size_t kGrain = 16;  // blocks begin at multiples of it
constexpr std::uint32_t kOffsetBits = 24;
constexpr std::size_t kFillBytes = 64;
constexpr std::size_t kCommonest = 7;

std::uint32_t entry(std::size_t offset, BlockCode code) {
  return static_cast<std::uint32_t>(offset / kGrain) | static_cast<std::uint32_t>(code) << kOffsetBits;
}

std::size_t directory_bytes(std::size_t blocks) { return round_up((blocks + 1) * sizeof(std::uint32_t), kGrain); }

std::uint32_t entry_at(std::span<const std::byte> coded, std::size_t block) {
  std::uint32_t entry = 0;
  std::memcpy(&entry, coded.data() + block * sizeof entry, sizeof entry);
  return entry;
}

std::size_t offset_in(std::uint32_t entry) { return (entry & ((1u << kOffsetBits) - 1)) * kGrain; }

bool is_fill(const std::byte* block) {
  return std::memcmp(block, block + kFillBytes, kCodedBlockBytes - kFillBytes) == 0;
}

// --- Encoding -----------------------------------------------------------------------------------------------------

// Loops over arrays that compilers turn into vectors; only counting exponents and picking those without a code go one by
// one.
template <class Kind>
class BlockEncoder {
  using Value = typename Kind::Value;
  static constexpr int kBits = 8 * sizeof(Value);
  static constexpr std::size_t kTogether = 16 / sizeof(Value);  // values that follow each other have such places

 public:
  explicit BlockEncoder(const std::byte* block) {
    for (std::size_t first = 0; first < Kind::kValues; first += kTogether) {
      const std::size_t value = first / kCodedGroup * kCodedGroup + Kind::value_at(first % kCodedGroup);
      std::array<Value, kTogether> values;
      std::memcpy(values.data(), block + value * sizeof(Value), sizeof values);
      for (std::size_t i = 0; i < kTogether; ++i) values_[first + i] = std::rotl(values[i], 1);
    }
    for (std::size_t i = 0; i < Kind::kValues; ++i) exponents_[i] = exponent(values_[i]);
    choose_table(counted());
  }

  std::size_t bytes() const { return Kind::kOthersAt + others_; }

  // May write up to the end of a whole block.
  void write(std::uint8_t* out) const {
    for (int plane = 0; plane < Kind::kBytePlanes; ++plane) {
      std::uint8_t* const bytes = out + plane * Kind::kValues;
      for (std::size_t i = 0; i < Kind::kValues; ++i) bytes[i] = static_cast<std::uint8_t>(values_[i] >> (8 * plane));
    }
    Numbers numbers;
    if constexpr (Kind::kTopBits) {
      for (std::size_t i = 0; i < Kind::kValues; ++i) numbers[i] = static_cast<std::uint8_t>(values_[i] >> 8 & 7);
      write_numbers(numbers, out + Kind::kTopAt);
    }
    find_codes(numbers);
    write_numbers(numbers, out + Kind::kCodesAt);
    std::copy(table_.begin(), table_.end(), out + Kind::kTableAt);
    const std::uint32_t count[2] = {static_cast<std::uint32_t>(others_), 0};
    std::memcpy(out + Kind::kCountAt, count, sizeof count);
    std::uint8_t* other = out + Kind::kOthersAt;
    for (std::size_t i = 0; i < Kind::kValues; ++i) {
      *other = exponents_[i];
      other += numbers[i] == 0;
    }
  }

 private:
  using Numbers = std::array<std::uint8_t, Kind::kValues>;  // by place
  using Counts = std::array<std::uint32_t, 256>;            // [exponent]

  static std::uint8_t exponent(Value w) {
    return static_cast<std::uint8_t>(w >> (kBits - 8)) & (Kind::kTopBits ? 0xF8 : 0xFF);
  }

  // In four tables, since a count that has just been stored is slow to read.
  Counts counted() const {
    std::array<Counts, 4> counts{};
    for (std::size_t i = 0; i < Kind::kValues; i += counts.size()) {
      for (std::size_t k = 0; k < counts.size(); ++k) ++counts[k][exponents_[i + k]];
    }
    for (std::size_t e = 0; e < counts[0].size(); ++e) counts[0][e] += counts[1][e] + counts[2][e] + counts[3][e];
    return counts[0];
  }

  void choose_table(const Counts& counts) {
    std::array<std::uint8_t, 256> order;
    std::iota(order.begin(), order.end(), std::uint8_t{0});
    std::partial_sort(order.begin(), order.begin() + kCommonest, order.end(), [&](std::uint8_t a, std::uint8_t b) {
      return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
    });
    std::copy_n(order.begin(), kCommonest, table_.begin() + 1);
    others_ = Kind::kValues;
    for (std::size_t code = 1; code <= kCommonest; ++code) others_ -= counts[table_[code]];
  }

  void find_codes(Numbers& codes) const {
    codes.fill(0);
    for (std::uint8_t code = 1; code <= kCommonest; ++code) {
      const std::uint8_t named = table_[code];
      for (std::size_t i = 0; i < Kind::kValues; ++i) codes[i] = exponents_[i] == named ? code : codes[i];
    }
  }

  static void write_numbers(const Numbers& numbers, std::uint8_t* out) {
    for (std::size_t first = 0; first < Kind::kValues; first += kCodedRun) {
      const std::uint8_t* const run = numbers.data() + first;
      const std::uint8_t* const sixth = run + 6 * kCodedGroup;
      const std::uint8_t* const seventh = run + 7 * kCodedGroup;
      for (int third = 0; third < 3; ++third, out += kCodedGroup) {
        const std::uint8_t* const low = run + 2 * third * kCodedGroup;
        const std::uint8_t* const high = low + kCodedGroup;
        for (std::size_t p = 0; p < kCodedGroup; ++p) {
          const int bits = (sixth[p] >> third & 1) << 3 | (seventh[p] >> third & 1) << 7;
          out[p] = static_cast<std::uint8_t>(low[p] | high[p] << 4 | bits);
        }
      }
    }
  }

  std::array<Value, Kind::kValues> values_;  // rotated, by place
  std::array<std::uint8_t, Kind::kValues> exponents_;
  std::array<std::uint8_t, 1 + kCommonest> table_{};
  std::size_t others_ = 0;
};

// How many bytes it has written; 0: it does not gain.
template <class Kind>
std::size_t encode_as(const std::byte* block, std::byte* out) {
  const BlockEncoder<Kind> encoder(block);
  if (encoder.bytes() >= kCodedBlockBytes) return 0;
  encoder.write(reinterpret_cast<std::uint8_t*>(out));
  return encoder.bytes();
}

std::size_t encode_values(const std::byte* block, BlockCode code, std::byte* out) {
  switch (code) {
    case BlockCode::kBf16: return encode_as<CodedBf16>(block, out);
    case BlockCode::kF16: return encode_as<CodedF16>(block, out);
    case BlockCode::kF32: return encode_as<CodedF32>(block, out);
    case BlockCode::kRaw:
    case BlockCode::kFill: break;
  }
  return 0;
}

struct Encoded {
  BlockCode code;
  std::size_t bytes;
};

Encoded encode_block(std::span<const std::byte> block, BlockCode values, std::byte* out) {
  const bool whole = block.size() == kCodedBlockBytes;
  if (whole && is_fill(block.data())) {
    std::memcpy(out, block.data(), kFillBytes);
    return {BlockCode::kFill, kFillBytes};
  }
  const std::size_t bytes = whole ? encode_values(block.data(), values, out) : 0;
  if (bytes > 0) return {values, bytes};
  std::memcpy(out, block.data(), block.size());
  return {BlockCode::kRaw, block.size()};
}

// --- Decoding -----------------------------------------------------------------------------------------------------

// The bytes that a block of that code has at least; none: there is no such code.
std::size_t least_bytes(BlockCode code, std::size_t decoded) {
  constexpr std::size_t kNone = ~std::size_t{0};
  if (code == BlockCode::kRaw) return decoded;
  if (decoded != kCodedBlockBytes) return kNone;
  switch (code) {
    case BlockCode::kFill: return kFillBytes;
    case BlockCode::kBf16: return CodedBf16::kOthersAt;
    case BlockCode::kF16: return CodedF16::kOthersAt;
    case BlockCode::kF32: return CodedF32::kOthersAt;
    case BlockCode::kRaw: break;
  }
  return kNone;
}

void stream_raw(const std::byte* from, std::size_t bytes, std::byte* to) {
  std::size_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
  std::memcpy(to + i, from + i, bytes - i);
}

void stream_fill(const std::byte* pattern, std::byte* to) {
  for (std::size_t i = 0; i < kCodedBlockBytes; i += kFillBytes) stream_raw(pattern, kFillBytes, to + i);
}

// The next block's lines, while this one is decoded.
void prefetch(const std::byte* from, const std::byte* end) {
  for (const std::byte* line = from; line < end; line += 64) _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
}

using DecodeBlock = void (*)(BlockCode, const CodedBlock&, std::uint8_t*);

DecodeBlock decoder_of(CodedIsa isa) {
  switch (isa) {
    case CodedIsa::kPlain: return decode_block_plain;
    case CodedIsa::kAvx2: return decode_block_avx2;
    case CodedIsa::kAvx512: return decode_block_avx512;
  }
  return decode_block_plain;
}

}  // namespace

CodedIsa best_coded_isa() {
  static const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vbmi2");
  return wide ? CodedIsa::kAvx512 : CodedIsa::kAvx2;
}

std::size_t most_coded_bytes(std::size_t page_bytes) {
  const std::size_t blocks = coded_blocks(page_bytes);
  return directory_bytes(blocks) + blocks * kCodedBlockBytes + kCodedPadding;
}

std::size_t encode_page(std::span<const std::byte> page, std::span<const BlockCode> values, std::byte* out) {
  const std::size_t blocks = coded_blocks(page.size());
  ensure(page.size() <= kMostCodableBytes && values.size() == blocks, "a page that cannot be coded");
  std::memset(out, 0, directory_bytes(blocks));
  std::size_t at = directory_bytes(blocks);
  for (std::size_t block = 0; block <= blocks; ++block) {
    Encoded encoded{BlockCode::kRaw, 0};
    if (block < blocks) {
      const std::size_t first = block * kCodedBlockBytes;
      const auto bytes = page.subspan(first, std::min(kCodedBlockBytes, page.size() - first));
      encoded = encode_block(bytes, values[block], out + at);
    }
    const std::uint32_t said = entry(at, encoded.code);
    std::memcpy(out + block * sizeof said, &said, sizeof said);
    const std::size_t end = round_up(at + encoded.bytes, kGrain);
    std::memset(out + at + encoded.bytes, 0, end - at - encoded.bytes);
    at = end;
  }
  return at;
}

std::size_t coded_offset(std::span<const std::byte> coded, std::size_t block) {
  return offset_in(entry_at(coded, block));
}

bool decode_blocks(std::span<const std::byte> coded, std::size_t page_bytes, std::size_t first, std::size_t end,
                   std::byte* page, CodedIsa isa) {
  if (coded.size() < directory_bytes(coded_blocks(page_bytes)) || end > coded_blocks(page_bytes)) return false;
  const DecodeBlock decode = decoder_of(isa);
  bool good = true;
  for (std::size_t block = first; block < end && good; ++block) {
    const std::uint32_t said = entry_at(coded, block);
    const auto code = static_cast<BlockCode>(said >> kOffsetBits);
    const std::size_t begins = offset_in(said), ends = coded_offset(coded, block + 1);
    const std::size_t decoded = std::min(kCodedBlockBytes, page_bytes - block * kCodedBlockBytes);
    const std::size_t least = least_bytes(code, decoded);
    good = begins <= ends && ends <= coded.size() && least <= ends - begins;
    if (!good) break;
    const std::byte* const from = coded.data() + begins;
    std::byte* const to = page + block * kCodedBlockBytes;
    prefetch(coded.data() + ends, std::min(coded.data() + ends + (ends - begins), coded.data() + coded.size()));
    if (code == BlockCode::kRaw) {
      stream_raw(from, decoded, to);
    } else if (code == BlockCode::kFill) {
      stream_fill(from, to);
    } else {
      const auto* const bytes = reinterpret_cast<const std::uint8_t*>(from);
      decode(code, {bytes, bytes + (ends - begins)}, reinterpret_cast<std::uint8_t*>(to));
    }
  }
  _mm_sfence();
  return good;
}

}  // namespace computron::kernels
