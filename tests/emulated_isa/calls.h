// The instructions of instructions.h over memory, so that their callers need no vectors: calls.cpp, compiled once with
// the emulated ones and once with the processor's own.
#pragma once

#include <array>
#include <cstdint>

namespace computron::emulated_isa {

using Floats16 = std::array<float, 16>;
using Words = std::array<std::uint16_t, 32>;  // bfloat16
using Bytes = std::array<std::uint8_t, 64>;
using Tile = std::array<std::uint8_t, 1024>;  // 16 rows

struct Calls {
  Floats16 (*dot_products)(const Floats16& sums, const Words& a, const Words& b);
  Words (*two_to_bf16)(const Floats16& above, const Floats16& below);
  std::array<std::uint16_t, 16> (*to_bf16)(const Floats16& x);
  Bytes (*permuted)(const Bytes& index, const Bytes& x);
  Bytes (*permuted_under_mask)(const Bytes& other, std::uint64_t mask, const Bytes& index, const Bytes& x);
  Bytes (*permuted_of_two)(const Bytes& lower, const Bytes& index, const Bytes& upper);
  // sums + x · w of so many rows of x, pairs of k and columns.
  Tile (*multiply_tiles)(const Tile& sums, const Tile& x, const Tile& w, int rows, int pairs, int columns);
};

const Calls& emulated_calls();
const Calls& real_calls();  // runs what the processor may not have: kernels::processor_isa() and has_byte_permutes()

}  // namespace computron::emulated_isa
