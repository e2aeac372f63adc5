// The same as the vectors do, a value after the other.
#include "kernels/cpu/coded_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace computron::kernels {
namespace {

std::uint8_t number_at(const std::uint8_t* run, std::size_t place) {
  const std::size_t group = place / kCodedGroup, p = place % kCodedGroup;
  if (group < 6) return run[group / 2 * kCodedGroup + p] >> (group % 2 * 4) & 7;
  const int bit = group == 6 ? 3 : 7;
  int number = 0;
  for (std::size_t third = 0; third < 3; ++third) number |= (run[third * kCodedGroup + p] >> bit & 1) << third;
  return static_cast<std::uint8_t>(number);
}

template <class Kind>
void decode(const CodedBlock& block, std::uint8_t* out) {
  using Value = typename Kind::Value;
  const std::uint8_t* other = block.bytes + Kind::kOthersAt;
  const std::uint8_t* const table = block.bytes + Kind::kTableAt;
  for (std::size_t i = 0; i < Kind::kValues; ++i) {
    const std::size_t run = three_bit_bytes(i / kCodedRun * kCodedRun);
    const std::uint8_t code = number_at(block.bytes + Kind::kCodesAt + run, i % kCodedRun);
    Value w = code > 0 ? table[code] : *other;
    if (code == 0) other = std::min(other + 1, block.others_end);
    if (Kind::kTopBits) w |= number_at(block.bytes + Kind::kTopAt + run, i % kCodedRun);
    for (int plane = Kind::kBytePlanes - 1; plane >= 0; --plane) {
      w = static_cast<Value>(w << 8 | block.bytes[plane * Kind::kValues + i]);
    }
    const Value value = std::rotr(w, 1);
    const std::size_t at = i / kCodedGroup * kCodedGroup + Kind::value_at(i % kCodedGroup);
    std::memcpy(out + at * sizeof value, &value, sizeof value);
  }
}

}  // namespace

void decode_block_plain(BlockCode code, const CodedBlock& block, std::uint8_t* out) {
  if (code == BlockCode::kBf16) decode<CodedBf16>(block, out);
  if (code == BlockCode::kF16) decode<CodedF16>(block, out);
  if (code == BlockCode::kF32) decode<CodedF32>(block, out);
}

}  // namespace computron::kernels
