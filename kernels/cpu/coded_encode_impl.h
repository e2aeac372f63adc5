// The template behind encode_block_avx2() and encode_block_avx512(). Everything is local to the including file: code
// compiled for AVX-512 must not be linked with anything else.
//
// A block takes three passes, the second and the third over what lies in the nearest cache: its values are taken apart
// into planes, its exponents are counted, and they are replaced by codes. Counting would take longest: a value after
// the other is a cycle each. So the 16 exponents up to the block's largest, and 0, are counted by vectors; together
// they hold all but a few values of almost any block of weights. That the seven commonest are among them is certain if
// the rest is less than the seventh of them; otherwise all are counted one by one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/coded_blocks.h"

namespace computron::kernels {
namespace {

// The commonest exponents, and how many values have them.
struct ExponentTable {
  std::uint8_t exponents[kCodedExponents] = {};
  int used = 0;
  std::uint32_t named = 0;
  std::uint32_t rarest = 0;  // values whose exponent is the last entry's, if all entries are used
};

constexpr std::uint32_t counted(std::uint32_t count, int exponent) {
  return count << 8 | static_cast<std::uint32_t>(255 - exponent);
}

// `counts`, made by counted(), of different exponents, are used up. The commonest first, of equals the smaller.
template <int kCounts>
ExponentTable commonest(std::uint32_t (&counts)[kCounts]) {
  ExponentTable table;
  for (; table.used < kCodedExponents; ++table.used) {
    std::uint32_t best = 0;
    for (const std::uint32_t count : counts) best = count > best ? count : best;
    if (best >> 8 == 0) return table;
    table.exponents[table.used] = static_cast<std::uint8_t>(255 - (best & 255));
    table.named += best >> 8;
    table.rarest = best >> 8;
    for (std::uint32_t& count : counts) count = count == best ? 0 : count;
  }
  return table;
}

// Lanes: Bytes are 64 bytes; bits<kRight, kMask> and left<kLeft, kMask> shift 16-bit words and mask bytes.
template <class Values, class Lanes>
class BlockEncoder {
  using Bytes = typename Lanes::Bytes;
  static constexpr int kExponentShift = Values::kTopBits ? 3 : 0;  // exponents are numbers from 0 on here
  static constexpr int kWindow = 16;                               // exponents that are counted by vectors
  static constexpr int kTogether = Lanes::kCountersTogether;
  static constexpr std::size_t kRunGroups = kCodedRun / kCodedGroup;
  // By pair of indices: the first counts 1, the second 16.
  static constexpr std::uint8_t kPairCounters[kWindow / 2][kWindow] = {
      {1, 16},
      {0, 0, 1, 16},
      {0, 0, 0, 0, 1, 16},
      {0, 0, 0, 0, 0, 0, 1, 16},
      {0, 0, 0, 0, 0, 0, 0, 0, 1, 16},
      {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 16},
      {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 16},
      {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 16}};

 public:
  BlockEncoder(const std::uint8_t* values, std::uint8_t* out) : values_(values), out_(out) {}

  std::size_t encode() {
    take_apart();
    const bool in_window = choose_in_window();
    if (!in_window) table_ = commonest_of_all();
    const std::size_t bytes = Values::kEscapesAt + Values::kValues - table_.named;
    if (bytes >= kCodedBlockBytes) return 0;
    write_table();
    in_window ? write_codes(WindowCodes(*this)) : write_codes(AnyCodes(table_));
    return bytes;
  }

 private:
  // ---- planes

  void take_apart() {
    Bytes largest = Lanes::all(0);
    for (std::size_t first = 0; first < Values::kValues; first += kCodedRun) {
      Bytes tops[kRunGroups];
      for (std::size_t g = 0; g < kRunGroups; ++g) {
        const std::size_t at = first + g * kCodedGroup;
        Bytes exponent = planes(at);
        if constexpr (Values::kTopBits) {
          tops[g] = Lanes::template bits<0, 7>(exponent);
          exponent = Lanes::template bits<kExponentShift, 31>(exponent);
        }
        Lanes::store(exponents_ + at, exponent);
        largest = Lanes::larger(largest, exponent);
      }
      if constexpr (Values::kTopBits) write_numbers(tops, out_ + Values::kTopAt + three_bit_bytes(first));
    }
    top_ = Lanes::largest_of(largest);
  }

  // Writes the byte planes of the group at `at` and returns its upper bytes.
  Bytes planes(std::size_t at) {
    const std::uint8_t* const from = values_ + at * sizeof(typename Values::Value);
    if constexpr (sizeof(typename Values::Value) == 2) {
      const Bytes a = Lanes::rotated_left16(Lanes::load(from)), b = Lanes::rotated_left16(Lanes::load(from + 64));
      Lanes::store(out_ + at, Lanes::lower_bytes16(a, b));
      return Lanes::upper_bytes16(a, b);
    } else {
      const auto planes = Lanes::byte_planes(from);
      Lanes::store(out_ + at, planes.lowest);
      Lanes::store(out_ + Values::kValues + at, planes.second);
      Lanes::store(out_ + 2 * Values::kValues + at, planes.third);
      return planes.upper;
    }
  }

  // ---- counting

  // False where another exponent might be commoner.
  bool choose_in_window() {
    std::uint32_t counts[2 * kWindow] = {};
    std::uint32_t seen = 0;
    for (int first = 0; first < kWindow; first += 2 * kTogether) count_window(first, counts);
    if (top_ >= kWindow) counts[kWindow] = count_zeros();
    for (int i = 0; i <= kWindow; ++i) {
      const int exponent = i < kWindow ? top_ - i : 0;
      seen += counts[i];
      counts[i] = exponent < 0 ? 0 : counted(counts[i], exponent);
    }
    table_ = commonest(counts);
    const std::uint32_t rest = static_cast<std::uint32_t>(Values::kValues) - seen;
    return rest == 0 || (table_.used == kCodedExponents && rest < table_.rarest);
  }

  // How far below the largest each exponent is, in the lower four bits; the uppermost is set beyond the window.
  Bytes window_index(const Bytes& exponent) const {
    return Lanes::plus_saturated(Lanes::minus(Lanes::all(top_), exponent), Lanes::all(0x80 - kWindow));
  }

  // counts[i] of exponent top - i, for 2 kTogether of them: two counters of four bits in a byte, for a run's 8 groups.
  void count_window(int first, std::uint32_t (&counts)[2 * kWindow]) const {
    typename Lanes::Table counters[kTogether];
    for (int j = 0; j < kTogether; ++j) counters[j] = Lanes::table16(kPairCounters[first / 2 + j]);
    Bytes sums[2 * kTogether];
    for (Bytes& sum : sums) sum = Lanes::all(0);
    for (std::size_t run = 0; run < Values::kValues; run += kCodedRun) {
      Bytes pairs[kTogether];
      for (Bytes& pair : pairs) pair = Lanes::all(0);
      for (std::size_t g = 0; g < kRunGroups; ++g) {
        const Bytes index = window_index(Lanes::load(exponents_ + run + g * kCodedGroup));
        for (int j = 0; j < kTogether; ++j) pairs[j] = Lanes::plus(pairs[j], Lanes::look_up(counters[j], index));
      }
      for (int j = 0; j < kTogether; ++j) {
        sums[2 * j] = Lanes::plus(sums[2 * j], Lanes::template bits<0, 15>(pairs[j]));
        sums[2 * j + 1] = Lanes::plus(sums[2 * j + 1], Lanes::template bits<4, 15>(pairs[j]));
      }
    }
    for (int i = 0; i < 2 * kTogether; ++i) counts[first + i] = Lanes::sum(sums[i]);
  }

  std::uint32_t count_zeros() const {
    Bytes zeros = Lanes::all(0);
    for (std::size_t at = 0; at < Values::kValues; at += kCodedGroup) {
      zeros = Lanes::counting_zeros(zeros, Lanes::load(exponents_ + at));
    }
    return Lanes::sum(zeros);
  }

  // In four tables, since a count that has just been stored is slow to read.
  ExponentTable commonest_of_all() const {
    std::uint32_t counts[4][256] = {};
    for (std::size_t i = 0; i < Values::kValues; i += 4) {
      for (std::size_t k = 0; k < 4; ++k) ++counts[k][exponents_[i + k]];
    }
    for (int e = 0; e < 256; ++e) {
      counts[0][e] = counted(counts[0][e] + counts[1][e] + counts[2][e] + counts[3][e], e);
    }
    return commonest(counts[0]);
  }

  // ---- codes

  void write_table() {
    std::uint8_t* const table = out_ + Values::kTableAt;
    table[0] = 0;
    for (int i = 0; i < kCodedExponents; ++i) {
      table[1 + i] = static_cast<std::uint8_t>(table_.exponents[i] << kExponentShift);
    }
  }

  // Codes of exponents in the window and of 0.
  class WindowCodes {
   public:
    explicit WindowCodes(const BlockEncoder& encoder) : encoder_(encoder), zero_(Lanes::all(0)) {
      alignas(16) std::uint8_t codes[kWindow] = {};
      for (int i = 0; i < encoder.table_.used; ++i) {
        const int below = encoder.top_ - encoder.table_.exponents[i];
        const auto code = static_cast<std::uint8_t>(1 + i);
        if (below < kWindow) codes[below] = code;
        if (encoder.table_.exponents[i] == 0) zero_ = Lanes::all(code);
      }
      codes_ = Lanes::table16(codes);
    }
    Bytes of(const Bytes& exponent) const {
      return Lanes::where_zero(exponent, zero_, Lanes::look_up(codes_, encoder_.window_index(exponent)));
    }

   private:
    const BlockEncoder& encoder_;
    typename Lanes::Table codes_;
    Bytes zero_;  // the code of exponent 0
  };

  class AnyCodes {
   public:
    explicit AnyCodes(const ExponentTable& table) : table_(table) {}
    Bytes of(const Bytes& exponent) const {
      Bytes code = Lanes::all(0);
      for (int i = 0; i < table_.used; ++i) {
        code = Lanes::where_equal(exponent, Lanes::all(table_.exponents[i]), Lanes::all(1 + i), code);
      }
      return code;
    }

   private:
    const ExponentTable& table_;
  };

  template <class Codes>
  void write_codes(const Codes& codes) {
    std::uint8_t* escape = out_ + Values::kEscapesAt;
    for (std::size_t first = 0; first < Values::kValues; first += kCodedRun) {
      Bytes numbers[kRunGroups];
      for (std::size_t g = 0; g < kRunGroups; ++g) {
        const Bytes exponent = Lanes::load(exponents_ + first + g * kCodedGroup);
        numbers[g] = codes.of(exponent);
        escape = Lanes::put_escapes(numbers[g], Lanes::template left<kExponentShift, 0xFF>(exponent), escape);
      }
      write_numbers(numbers, out_ + Values::kCodesAt + three_bit_bytes(first));
    }
  }

  static void write_numbers(const Bytes (&numbers)[kRunGroups], std::uint8_t* out) {
    const Bytes last = Lanes::either(numbers[6], Lanes::template left<4, 0x70>(numbers[7]));
    write_third<3>(numbers[0], numbers[1], last, out);
    write_third<2>(numbers[2], numbers[3], last, out + kCodedGroup);
    write_third<1>(numbers[4], numbers[5], last, out + 2 * kCodedGroup);
  }
  template <int kLeft>
  static void write_third(const Bytes& low, const Bytes& high, const Bytes& last, std::uint8_t* out) {
    Lanes::store(out, Lanes::either(low, Lanes::template left<4, 0x70>(high), Lanes::template left<kLeft, 0x88>(last)));
  }

  const std::uint8_t* values_;
  std::uint8_t* out_;
  std::uint8_t top_ = 0;  // the largest exponent
  ExponentTable table_;
  alignas(64) std::uint8_t exponents_[Values::kValues];  // by place
};

template <class Lanes>
std::size_t encode_block(BlockEncoding encoding, const std::uint8_t* values, std::uint8_t* out) {
  if (encoding == BlockEncoding::kBf16) return BlockEncoder<CodedBf16, Lanes>(values, out).encode();
  if (encoding == BlockEncoding::kF16) return BlockEncoder<CodedF16, Lanes>(values, out).encode();
  if (encoding == BlockEncoding::kF32) return BlockEncoder<CodedF32, Lanes>(values, out).encode();
  return 0;
}

}  // namespace
}  // namespace computron::kernels
