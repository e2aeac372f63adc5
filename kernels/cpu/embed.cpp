#include "kernels/cpu/embed.h"

#include <bit>

#include "kernels/cpu/pack.h"

namespace computron::kernels {

void embed_row(const std::byte* packed, int row, int depth, DType dtype, float* out) {
  const std::byte* block = packed + row / kRowBlock * packed_bytes(kRowBlock, depth, dtype);
  const auto* units = reinterpret_cast<const std::uint32_t*>(block) + row % kRowBlock;
  if (dtype == DType::kF32) {
    for (int k = 0; k < depth; ++k) out[k] = std::bit_cast<float>(units[k * kRowBlock]);
    return;
  }
  for (int k = 0; k < depth; k += 2) {
    const std::uint32_t pair = units[k / 2 * kRowBlock];
    out[k] = std::bit_cast<float>(pair << 16);
    if (k + 1 < depth) out[k + 1] = std::bit_cast<float>(pair & 0xffff0000u);
  }
}

}  // namespace computron::kernels
