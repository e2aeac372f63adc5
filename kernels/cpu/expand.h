// Slices of quantised weights (quantised_panel.h), and of plain ones of 16 bits, as values packed as in pack.h: what
// the GEMM kernels multiply.
#pragma once

#include <cstddef>

#include "computron/base/weight_type.h"
#include "kernels/cpu/quantised_panel.h"

namespace computron::kernels {

struct Expansion {
  WeightType type;
  QuantisedLayout layout;
  // Writes k in [first, first + count) of a block, both multiples of 16, as groups are; in runs of 32. Memory is asked
  // ahead for what comes next.
  void (*expand)(const Expansion&, const std::byte* block, int first, int count, std::byte* to);
};

// Each for values of its type; to float32 plain weights of float16 and bfloat16, too.
void expand_f32_avx2(const Expansion& e, const std::byte* block, int first, int count, std::byte* to);
void expand_f32_avx512(const Expansion& e, const std::byte* block, int first, int count, std::byte* to);
void expand_bf16_avx512(const Expansion& e, const std::byte* block, int first, int count, std::byte* to);

}  // namespace computron::kernels
