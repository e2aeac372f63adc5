// The template behind decode_block_avx2() and decode_block_avx512(). Everything is local to the including file: code
// compiled for AVX-512 must not be linked with anything else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/coded_blocks.h"

namespace computron::kernels {
namespace {

// Lanes: Bytes are 64 bytes; bits<kRight, kMask> shifts 16-bit words right and masks bytes; kEscapesOneByOne: escapes
// are put in place by a loop, whose end must not depend on the weights, or it would be guessed wrong.
template <class Values, class Lanes, Stores kStores>
class BlockDecoder {
  using Bytes = typename Lanes::Bytes;
  static constexpr std::size_t kLine = 64;
  // How many lines are prefetched a group: a whole block's, whatever it takes coded.
  static constexpr std::size_t kLinesAhead = kCodedGroup * sizeof(typename Values::Value) / kLine;

 public:
  BlockDecoder(const CodedBlock& block, std::uint8_t* out)
      : block_(block),
        out_(out),
        escapes_(block.bytes + Values::kEscapesAt),
        table_(Lanes::table8(block.bytes + Values::kTableAt)) {}

  // The exponents of a run are complete before those of the run before it are put together with the other bits: what
  // was written byte by byte cannot be read as a vector at once.
  void run() {
    if constexpr (Lanes::kEscapesOneByOne) {
      const std::size_t escapes = block_.end - escapes_;
      if (escapes > 5 * kGroups) return run_with<16>();
      if (escapes > 2 * kGroups) return run_with<8>();
    }
    run_with<4>();
  }

 private:
  static constexpr std::size_t kGroups = Values::kValues / kCodedGroup;

  // kAlways: the escapes of a group that are put in place whether there are so many or not, where they go one by one.
  template <int kAlways>
  void run_with() {
    alignas(64) std::uint8_t exponents[2][kCodedRun + kCodedGroup];
    find_exponents<kAlways>(0, exponents[0]);
    for (std::size_t first = 0, i = 0; first < Values::kValues; first += kCodedRun, ++i) {
      if (first + kCodedRun < Values::kValues) find_exponents<kAlways>(first + kCodedRun, exponents[(i + 1) % 2]);
      put_together(first, exponents[i % 2]);
    }
  }

  // The three-bit numbers of a run, two groups a vector.
  struct Numbers {
    explicit Numbers(const std::uint8_t* at)
        : a(Lanes::load(at)), b(Lanes::load(at + kCodedGroup)), d(Lanes::load(at + 2 * kCodedGroup)) {
      last = Lanes::either(Lanes::template bits<3, 0x11>(a), Lanes::template bits<2, 0x22>(b),
                           Lanes::template bits<1, 0x44>(d));
    }
    template <int kGroup>
    Bytes of() const {
      const Bytes& both = kGroup < 2 ? a : kGroup < 4 ? b : kGroup < 6 ? d : last;
      return Lanes::template bits<kGroup % 2 * 4, 7>(both);
    }
    Bytes a, b, d, last;
  };

  template <int kAlways>
  [[gnu::always_inline]] void find_exponents(std::size_t first, std::uint8_t* exponents) {
    const Numbers codes(block_.bytes + Values::kCodesAt + three_bit_bytes(first));
    find_group<kAlways, 0>(codes, exponents);
    find_group<kAlways, 1>(codes, exponents);
    find_group<kAlways, 2>(codes, exponents);
    find_group<kAlways, 3>(codes, exponents);
    find_group<kAlways, 4>(codes, exponents);
    find_group<kAlways, 5>(codes, exponents);
    find_group<kAlways, 6>(codes, exponents);
    find_group<kAlways, 7>(codes, exponents);
  }
  template <int kAlways, int kGroup>
  [[gnu::always_inline]] void find_group(const Numbers& codes, std::uint8_t* exponents) {
    const Bytes code = codes.template of<kGroup>();
    const Bytes named = Lanes::look_up(table_, code);
    escapes_ = Lanes::template with_escapes<kAlways>(code, named, escapes_, exponents + kGroup * kCodedGroup);
    escapes_ = escapes_ < block_.end ? escapes_ : block_.end;
  }

  [[gnu::always_inline]] void put_together(std::size_t first, const std::uint8_t* exponents) const {
    const Numbers tops(block_.bytes + (Values::kTopBits ? Values::kTopAt : Values::kCodesAt) + three_bit_bytes(first));
    put_group<0>(first, tops, exponents);
    put_group<1>(first, tops, exponents);
    put_group<2>(first, tops, exponents);
    put_group<3>(first, tops, exponents);
    put_group<4>(first, tops, exponents);
    put_group<5>(first, tops, exponents);
    put_group<6>(first, tops, exponents);
    put_group<7>(first, tops, exponents);
  }
  template <int kGroup>
  [[gnu::always_inline]] void put_group(std::size_t first, const Numbers& tops, const std::uint8_t* exponents) const {
    const std::size_t at = first + kGroup * kCodedGroup;
    prefetch(at);
    std::uint8_t* const out = out_ + at * sizeof(typename Values::Value);
    Bytes upper = Lanes::load(exponents + kGroup * kCodedGroup);
    if constexpr (Values::kTopBits) upper = Lanes::either(upper, tops.template of<kGroup>());
    const Bytes lowest = Lanes::load(block_.bytes + at);
    if constexpr (sizeof(typename Values::Value) == 2) {
      put(out, Lanes::rotated_right16(Lanes::lower8(lowest, upper)));
      put(out + 64, Lanes::rotated_right16(Lanes::upper8(lowest, upper)));
    } else {
      const Bytes second = Lanes::load(block_.bytes + Values::kValues + at);
      const Bytes third = Lanes::load(block_.bytes + 2 * Values::kValues + at);
      const Bytes low = Lanes::lower8(lowest, second), low_next = Lanes::upper8(lowest, second);
      const Bytes high = Lanes::lower8(third, upper), high_next = Lanes::upper8(third, upper);
      put(out, Lanes::rotated_right32(Lanes::lower16(low, high)));
      put(out + 64, Lanes::rotated_right32(Lanes::upper16(low, high)));
      put(out + 128, Lanes::rotated_right32(Lanes::lower16(low_next, high_next)));
      put(out + 192, Lanes::rotated_right32(Lanes::upper16(low_next, high_next)));
    }
  }

  [[gnu::always_inline]] static void put(std::uint8_t* out, const Bytes& values) {
    kStores == Stores::kStreaming ? Lanes::stream(out, values) : Lanes::store(out, values);
  }

  // What is behind this block, as fast as it is decoded: to the second cache early, since the first can wait for few
  // lines of memory at a time, and from there to the first.
  [[gnu::always_inline]] void prefetch(std::size_t at) const {
    const auto* const line = reinterpret_cast<const char*>(block_.end) + at * sizeof(typename Values::Value);
    for (std::size_t i = 0; i < kLinesAhead; ++i) {
      __builtin_prefetch(line + i * kLine - kCodedBlockBytes / 2, /*write=*/0, /*locality=*/3);
      __builtin_prefetch(line + i * kLine + kCodedBlockBytes / 2, /*write=*/0, /*locality=*/2);
    }
  }

  CodedBlock block_;
  std::uint8_t* out_;
  const std::uint8_t* escapes_;  // the next
  typename Lanes::Table table_;
};

template <class Lanes, Stores kStores>
void decode_block(BlockEncoding encoding, const CodedBlock& block, std::uint8_t* out) {
  if (encoding == BlockEncoding::kBf16) BlockDecoder<CodedBf16, Lanes, kStores>(block, out).run();
  if (encoding == BlockEncoding::kF16) BlockDecoder<CodedF16, Lanes, kStores>(block, out).run();
  if (encoding == BlockEncoding::kF32) BlockDecoder<CodedF32, Lanes, kStores>(block, out).run();
}

template <class Lanes>
void decode_block(BlockEncoding encoding, const CodedBlock& block, std::uint8_t* out, Stores stores) {
  if (stores == Stores::kStreaming) return decode_block<Lanes, Stores::kStreaming>(encoding, block, out);
  decode_block<Lanes, Stores::kCached>(encoding, block, out);
}

}  // namespace
}  // namespace computron::kernels
