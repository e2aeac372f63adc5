// The template behind decode_block_*(). Everything is local to the including file: code compiled for AVX-512 must not be
// linked with anything else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/coded_blocks.h"

namespace computron::kernels {
namespace {

// Lanes: Bytes, 64 of them; load, stream, low_bits, look_up, take_others, and what interleaves and rotates.
template <class Kind, class Lanes>
class BlockDecoder {
  using Bytes = typename Lanes::Bytes;

 public:
  BlockDecoder(const CodedBlock& block, std::uint8_t* out)
      : block_(block), out_(out), others_(block.bytes + Kind::kOthersAt), table_(Lanes::table(block.bytes + Kind::kTableAt)) {}

  void run() {
    for (std::size_t first = 0; first < Kind::kValues; first += kCodedRun) {
      const Numbers codes(block_.bytes + Kind::kCodesAt + three_bit_bytes(first));
      const Numbers tops(block_.bytes + (Kind::kTopBits ? Kind::kTopAt : Kind::kCodesAt) + three_bit_bytes(first));
      group<0>(first, codes, tops);
      group<1>(first, codes, tops);
      group<2>(first, codes, tops);
      group<3>(first, codes, tops);
      group<4>(first, codes, tops);
      group<5>(first, codes, tops);
      group<6>(first, codes, tops);
      group<7>(first, codes, tops);
    }
  }

 private:
  // The three-bit numbers of a run.
  struct Numbers {
    explicit Numbers(const std::uint8_t* at)
        : a(Lanes::load(at)), b(Lanes::load(at + kCodedGroup)), d(Lanes::load(at + 2 * kCodedGroup)) {}
    template <int kGroup>
    Bytes of() const {
      if constexpr (kGroup < 6) {
        const Bytes& both = kGroup < 2 ? a : kGroup < 4 ? b : d;
        return Lanes::template bits<kGroup % 2 * 4, 7>(both);
      } else {
        constexpr int kBit = kGroup == 6 ? 3 : 7;
        return Lanes::either(Lanes::template bits<kBit, 1>(a), Lanes::template moved_bit<kBit, 1>(b),
                             Lanes::template moved_bit<kBit, 2>(d));
      }
    }
    Bytes a, b, d;
  };

  template <int kGroup>
  [[gnu::always_inline]] void group(std::size_t first, const Numbers& codes, const Numbers& tops) {
    const std::size_t at = first + kGroup * kCodedGroup;
    const Bytes code = codes.template of<kGroup>();
    Bytes exponent = Lanes::look_up(table_, code);
    others_ = std::min(Lanes::take_others(code, others_, exponent), block_.others_end);
    std::uint8_t* const out = out_ + at * sizeof(typename Kind::Value);
    if constexpr (Kind::kTopBits) exponent = Lanes::either(exponent, tops.template of<kGroup>());
    const Bytes lowest = Lanes::load(block_.bytes + at);
    if constexpr (sizeof(typename Kind::Value) == 2) {
      Lanes::stream(out, Lanes::rotated16(Lanes::lower8(lowest, exponent)));
      Lanes::stream(out + 64, Lanes::rotated16(Lanes::upper8(lowest, exponent)));
    } else {
      const Bytes second = Lanes::load(block_.bytes + Kind::kValues + at);
      const Bytes third = Lanes::load(block_.bytes + 2 * Kind::kValues + at);
      const Bytes low = Lanes::lower8(lowest, second), low_upper = Lanes::upper8(lowest, second);
      const Bytes high = Lanes::lower8(third, exponent), high_upper = Lanes::upper8(third, exponent);
      Lanes::stream(out, Lanes::rotated32(Lanes::lower16(low, high)));
      Lanes::stream(out + 64, Lanes::rotated32(Lanes::upper16(low, high)));
      Lanes::stream(out + 128, Lanes::rotated32(Lanes::lower16(low_upper, high_upper)));
      Lanes::stream(out + 192, Lanes::rotated32(Lanes::upper16(low_upper, high_upper)));
    }
  }

  CodedBlock block_;
  std::uint8_t* out_;
  const std::uint8_t* others_;
  typename Lanes::Table table_;
};

template <class Lanes>
void decode_block(BlockCode code, const CodedBlock& block, std::uint8_t* out) {
  if (code == BlockCode::kBf16) BlockDecoder<CodedBf16, Lanes>(block, out).run();
  if (code == BlockCode::kF16) BlockDecoder<CodedF16, Lanes>(block, out).run();
  if (code == BlockCode::kF32) BlockDecoder<CodedF32, Lanes>(block, out).run();
}

}  // namespace
}  // namespace computron::kernels
