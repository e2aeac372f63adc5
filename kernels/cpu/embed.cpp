#include "kernels/cpu/embed.h"

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "kernels/cpu/pack.h"
#include "kernels/cpu/quantised_panel.h"

namespace computron::kernels {

void embed_row(const std::byte* packed, int row, int depth, const WeightType& type, float* out) {
  const std::byte* block = packed + row / kRowBlock * packed_bytes(kRowBlock, depth, type);
  if (type.quantised()) {
    return dequantise_row(block, QuantisedLayout(depth, type), type, row % kRowBlock, 0, depth, out);
  }
  const auto* units = reinterpret_cast<const std::uint32_t*>(block) + row % kRowBlock;
  if (type.values == DType::kF32) {
    for (int k = 0; k < depth; ++k) out[k] = std::bit_cast<float>(units[k * kRowBlock]);
    return;
  }
  const auto widen_pairs = [&](auto widen) {
    for (int k = 0; k < depth; k += 2) {
      const std::uint32_t pair = units[k / 2 * kRowBlock];
      out[k] = widen(pair & 0xffffu);
      if (k + 1 < depth) out[k + 1] = widen(pair >> 16);
    }
  };
  if (type.values == DType::kF16) return widen_pairs([](std::uint32_t bits) { return _cvtsh_ss(bits); });
  widen_pairs([](std::uint32_t bits) { return std::bit_cast<float>(bits << 16); });
}

}  // namespace computron::kernels
