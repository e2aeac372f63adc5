#include "kernels/cpu/embed.h"

#include <bit>
#include <cstdint>

#include "computron/base/vectors.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/quantised_panel.h"

namespace computron::kernels {

void embed_row(const std::byte* packed, int row, int depth, const WeightType& type, float* out) {
  const std::byte* block = packed + row / kRowBlock * packed_bytes(kRowBlock, depth, type);
  if (type.quantised()) {
    return dequantise_row(block, QuantisedLayout(depth, type), type, row % kRowBlock, 0, depth, out);
  }
  const auto* words = reinterpret_cast<const std::uint32_t*>(block) + row % kRowBlock;
  const auto* halves = reinterpret_cast<const std::uint16_t*>(block) + row % kRowBlock;
  switch (type.values) {
    case DType::kF32:
      for (int k = 0; k < depth; ++k) out[k] = std::bit_cast<float>(words[k * kRowBlock]);
      return;
    case DType::kF16:
      for (int k = 0; k < depth; ++k) out[k] = _cvtsh_ss(halves[k * kRowBlock]);
      return;
    default:
      for (int k = 0; k < depth; ++k) {
        const std::uint32_t pair = words[k / 2 * kRowBlock];
        out[k] = std::bit_cast<float>(k % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
      }
  }
}

}  // namespace computron::kernels
