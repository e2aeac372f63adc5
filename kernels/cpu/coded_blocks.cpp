// The plain loops, a value after the other.
#include "kernels/cpu/coded_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

namespace computron::kernels {
namespace {

// Three-bit number `place` of a run of 512.
std::uint8_t number_at(const std::uint8_t* run, std::size_t place) {
  const std::size_t group = place / kCodedGroup, p = place % kCodedGroup;
  if (group < 6) return run[group / 2 * kCodedGroup + p] >> (group % 2 * 4) & 7;
  const int bit = group == 6 ? 3 : 7;
  int number = 0;
  for (std::size_t third = 0; third < 3; ++third) number |= (run[third * kCodedGroup + p] >> bit & 1) << third;
  return static_cast<std::uint8_t>(number);
}

// Sets it, where the bytes are 0 still.
void put_number(std::uint8_t* run, std::size_t place, std::uint8_t number) {
  const std::size_t group = place / kCodedGroup, p = place % kCodedGroup;
  if (group < 6) {
    run[group / 2 * kCodedGroup + p] |= static_cast<std::uint8_t>(number << (group % 2 * 4));
    return;
  }
  const int bit = group == 6 ? 3 : 7;
  for (std::size_t third = 0; third < 3; ++third) {
    run[third * kCodedGroup + p] |= static_cast<std::uint8_t>((number >> third & 1) << bit);
  }
}

// Where the three-bit numbers of the run begin that value `place` of a block is in.
constexpr std::size_t run_at(std::size_t place) { return three_bit_bytes(place / kCodedRun * kCodedRun); }

template <class Values>
constexpr std::size_t value_of(std::size_t place) {
  return place / kCodedGroup * kCodedGroup + Values::value_at(place % kCodedGroup);
}

template <class Values>
void decode(const CodedBlock& block, std::uint8_t* out) {
  using Value = typename Values::Value;
  const std::uint8_t* escape = block.bytes + Values::kEscapesAt;
  const std::uint8_t* const table = block.bytes + Values::kTableAt;
  for (std::size_t i = 0; i < Values::kValues; ++i) {
    if (i % kCodedGroup == 0) escape = std::min(escape, block.end);
    const std::uint8_t code = number_at(block.bytes + Values::kCodesAt + run_at(i), i % kCodedRun);
    Value w = code > 0 ? table[code] : *escape++;
    if (Values::kTopBits) w |= number_at(block.bytes + Values::kTopAt + run_at(i), i % kCodedRun);
    for (int plane = Values::kBytePlanes - 1; plane >= 0; --plane) {
      w = static_cast<Value>(w << 8 | block.bytes[plane * Values::kValues + i]);
    }
    const Value value = std::rotr(w, 1);
    std::memcpy(out + value_of<Values>(i) * sizeof value, &value, sizeof value);
  }
}

// The code of every exponent; 0: it has none.
using Codes = std::array<std::uint8_t, 256>;

template <class Values>
class PlainEncoder {
  using Value = typename Values::Value;

 public:
  explicit PlainEncoder(const std::uint8_t* values) {
    for (std::size_t i = 0; i < Values::kValues; ++i) {
      Value value = 0;
      std::memcpy(&value, values + value_of<Values>(i) * sizeof value, sizeof value);
      rotated_[i] = std::rotl(value, 1);
    }
  }

  std::size_t encode(std::uint8_t* out) const {
    std::fill(out + Values::kTopAt, out + Values::kEscapesAt, std::uint8_t{0});
    const Codes codes = choose(out + Values::kTableAt);
    const auto escapes = static_cast<std::size_t>(
        std::count_if(rotated_.begin(), rotated_.end(), [&](Value w) { return codes[exponent(w)] == 0; }));
    if (Values::kEscapesAt + escapes >= kCodedBlockBytes) return 0;
    std::uint8_t* escape = out + Values::kEscapesAt;
    for (std::size_t i = 0; i < Values::kValues; ++i) {
      const Value w = rotated_[i];
      for (int plane = 0; plane < Values::kBytePlanes; ++plane) {
        out[plane * Values::kValues + i] = static_cast<std::uint8_t>(w >> (8 * plane));
      }
      if (Values::kTopBits) put_number(out + Values::kTopAt + run_at(i), i % kCodedRun, w >> 8 & 7);
      const std::uint8_t code = codes[exponent(w)];
      put_number(out + Values::kCodesAt + run_at(i), i % kCodedRun, code);
      if (code == 0) *escape++ = exponent(w);
    }
    return Values::kEscapesAt + escapes;
  }

 private:
  static std::uint8_t exponent(Value w) {
    return static_cast<std::uint8_t>(w >> (8 * sizeof(Value) - 8)) & (Values::kTopBits ? 0xF8 : 0xFF);
  }

  // The commonest exponents that there are; of equals the smaller first.
  Codes choose(std::uint8_t* table) const {
    std::array<int, 256> counts{};
    for (const Value w : rotated_) ++counts[exponent(w)];
    std::array<int, 256> order;
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int a, int b) { return counts[a] > counts[b]; });
    Codes codes{};
    for (int code = 1; code <= kCodedExponents && counts[order[code - 1]] > 0; ++code) {
      table[code] = static_cast<std::uint8_t>(order[code - 1]);
      codes[table[code]] = static_cast<std::uint8_t>(code);
    }
    return codes;
  }

  std::array<Value, Values::kValues> rotated_;  // by place
};

}  // namespace

void decode_block_plain(BlockEncoding encoding, const CodedBlock& block, std::uint8_t* out) {
  if (encoding == BlockEncoding::kBf16) decode<CodedBf16>(block, out);
  if (encoding == BlockEncoding::kF16) decode<CodedF16>(block, out);
  if (encoding == BlockEncoding::kF32) decode<CodedF32>(block, out);
}

std::size_t encode_block_plain(BlockEncoding encoding, const std::uint8_t* values, std::uint8_t* out) {
  if (encoding == BlockEncoding::kBf16) return PlainEncoder<CodedBf16>(values).encode(out);
  if (encoding == BlockEncoding::kF16) return PlainEncoder<CodedF16>(values).encode(out);
  if (encoding == BlockEncoding::kF32) return PlainEncoder<CodedF32>(values).encode(out);
  return 0;
}

}  // namespace computron::kernels
