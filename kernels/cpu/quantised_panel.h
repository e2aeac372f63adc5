// How quantised GEMM weights lie in memory on CPU, the packer that puts them there, and the plain loop that gives their
// values.
//
// A weight [rows, depth] is cut into blocks of 64 rows as in pack.h, its depth padded to 32. A block is a sequence of
// groups of `type.group` k: 64 scales, then the codes, in the order in which pack.h has values of `type.values` (f32:
// [k][64]; bf16: [k / 2][64][2]), but int8 that is multiplied in integers (gemm_integers.h) as if for bf16. Where the
// scales have factors, 64 of these come first. A code of eight bits is a byte. Of those of four each 128, which are two
// k of all rows, are 16 words of 32 bits: number 16 j + i of them is bits [4 j, 4 j + 4) of word i, so that one shift
// gives 16 neighbours.
//
// With AMX codes of int8, int4 and fp4 lie in runs instead, where groups are of whole runs and values bf16
// (gemm_code_runs.h). A run, 32 k of all rows, is row after row of 32 bytes for eight bits. For four it is 16 times 32
// words of 16 bits, a word a k, and row 4 i + j has bits [4 j, 4 j + 4) of the words of number i. Zeroed memory is a
// weight of zeros.
//
// A plain weight of 16 bits is one of these, too: of one group, without scales.
#pragma once

#include <algorithm>
#include <cstddef>

#include "computron/base/weight_type.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pack.h"

namespace computron::kernels {

// Whether codes of `type` are multiplied as the whole numbers that they are (gemm_integers.h), not as values.
inline bool multiplies_integers(const WeightType& type) {
  const Isa isa = usable_isa();
  return type.quantised() && type.values == DType::kF32 && type.codes != DType::kFp8 &&
         (isa == Isa::kAvx512Vnni || (isa == Isa::kAvx2 && has_integer_pairs()));
}

// Where things lie in a block, in bytes from its beginning.
struct QuantisedLayout {
  static constexpr int kRun = 32;

  int depth;   // padded
  int group;   // k of a group; the last may have fewer, a multiple of 16, too
  int groups;  // of a block
  std::size_t bits;
  std::size_t scale_bytes;    // of a scale
  std::size_t factors_bytes;  // of all factors of a block
  bool in_runs;               // the codes
  bool in_pairs;              // codes in no runs: both of a pair of k side by side

  QuantisedLayout(int unpadded, const WeightType& type)
      : depth(round_up(unpadded, 32)),
        group(type.quantised() ? std::min(type.group, depth) : depth),
        groups(ceil_div(depth, group)),
        bits(bits_of(type.codes)),
        scale_bytes(type.quantised() ? size_of(type.scales) : 0),
        factors_bytes(kRowBlock * type.factor_bytes()),
        in_runs(type.quantised() && type.codes != DType::kFp8 && type.values == DType::kBF16 && group % kRun == 0 &&
                usable_isa() == Isa::kAmx),
        in_pairs(type.values == DType::kBF16 || (type.codes == DType::kInt8 && multiplies_integers(type))) {}

  // Codes of this many k, an even number.
  constexpr std::size_t code_bytes(int k) const { return static_cast<std::size_t>(k) * kRowBlock * bits / 8; }
  constexpr std::size_t scales_at(int g) const {
    return factors_bytes + g * (kRowBlock * scale_bytes + code_bytes(group));
  }
  // Of an even k; in runs of a multiple of kRun. Groups are multiples of 16.
  constexpr std::size_t codes_at(int k) const {
    return scales_at(k / group) + kRowBlock * scale_bytes + code_bytes(k % group);
  }
  constexpr std::size_t block_bytes() const {
    return factors_bytes + groups * kRowBlock * scale_bytes + code_bytes(depth);
  }
};

// Scales of at most 11 significant bits: a code of eight bits times one is exact in float32.
constexpr bool has_short_scales(const WeightType& type) { return type.scales != DType::kF32 && !type.has_factors(); }

// As pack() and pack_scales() of pack.h.
void pack_codes(std::byte* packed, int depth, const WeightType& type, int row, int rows, int column, int columns,
                const std::byte* source, std::size_t row_stride, std::size_t column_stride);

// out[i] = code × scale, rounded to type.values, of k = first + i < last of a row of a block; `first` is even. The two
// NaNs of fp8 and of e4m3 count as ±480.
void dequantise_row(const std::byte* block, const QuantisedLayout& layout, const WeightType& type, int row, int first,
                    int last, float* out);

// k in [first, first + count) of all rows of a block as pack.h has them; both multiples of 16.
void expand_plainly(const std::byte* block, const QuantisedLayout& layout, const WeightType& type, int first, int count,
                    std::byte* to);

}  // namespace computron::kernels
