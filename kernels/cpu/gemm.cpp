#include "kernels/cpu/gemm.h"

#include <array>
#include <cstring>

#include "computron/base/error.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pack.h"

namespace computron::kernels {
namespace {

// By dtype.
std::array<GemmKernel, 3> fastest_kernels() {
  std::array<GemmKernel, 3> fastest{};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto kernels = gemm_kernels(dtype);
    if (!kernels.empty()) fastest[static_cast<std::size_t>(dtype)] = kernels.back();
  }
  return fastest;
}

}  // namespace

std::vector<GemmKernel> gemm_kernels(DType dtype) {
  const Isa isa = usable_isa();
  if (dtype == DType::kBF16) {
    if (isa == Isa::kAmx) return {GemmKernel::kAmx};  // adds within a tile in an order of its own
    if (isa == Isa::kAvx512Bf16) return {GemmKernel::kAvx512};
    return {};
  }
  if (isa == Isa::kAvx2) return {GemmKernel::kAvx2};
  return {GemmKernel::kAvx2, GemmKernel::kAvx512};
}

void Gemm::run(DType dtype, const std::byte* x, int rows, int depth, const std::byte* weight, int columns,
               float* tile) {
  static const auto fastest = fastest_kernels();
  run(fastest[static_cast<std::size_t>(dtype)], dtype, x, rows, depth, weight, columns, tile);
}

void Gemm::run(GemmKernel kernel, DType dtype, const std::byte* x, int rows, int depth, const std::byte* weight,
               int columns, float* tile, const PanelBlocking& blocking) {
  ensure(rows >= 1 && rows <= kMaxGemmRows, "a GEMM call with no rows or too many");
  const int padded = padded_depth(depth, dtype);
  if (padded != depth) x = pad_depth(dtype, x, rows, depth);
  if (kernel == GemmKernel::kAmx) return gemm_amx(x, rows, padded, weight, columns, tile);
  const PanelCall panels{x, rows, padded, weight, columns, tile, scratch_->bytes, blocking};
  switch (dtype) {
    case DType::kF32:
      return kernel == GemmKernel::kAvx512 ? gemm_f32_avx512(panels) : gemm_f32_avx2(panels);
    case DType::kF16:
      return kernel == GemmKernel::kAvx512 ? gemm_f16_avx512(panels) : gemm_f16_avx2(panels);
    case DType::kBF16:
      ensure(kernel == GemmKernel::kAvx512, "bfloat16 weights on a processor that cannot multiply them");
      return gemm_bf16_avx512(panels);
  }
}

// So that no kernel meets a partial depth, whose last columns would have to be masked: garbage times a padding zero is
// not zero when it is a NaN.
const std::byte* Gemm::pad_depth(DType dtype, const std::byte* x, int rows, int depth) {
  const std::size_t from_bytes = depth * size_of(gemm_input_dtype(dtype));
  const std::size_t to_bytes = padded_depth(depth, dtype) * size_of(gemm_input_dtype(dtype));
  padded_.assign(rows * to_bytes, std::byte{0});
  for (int m = 0; m < rows; ++m) std::memcpy(padded_.data() + m * to_bytes, x + m * from_bytes, from_bytes);
  return padded_.data();
}

}  // namespace computron::kernels
