#include "computron/ops/coded_size.h"

#include <vector>

#include "kernels/cpu/coded_page.h"

namespace computron {

std::size_t coded_bytes(std::span<const std::byte> values, DType dtype) {
  const std::vector<BlockEncoding> blocks(coded_blocks(values.size()), encoding_of(dtype));
  std::vector<std::byte> coded(most_coded_bytes(values.size()));
  return kernels::encode_page(values, blocks, coded.data());
}

}  // namespace computron
