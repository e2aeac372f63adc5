#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "computron/base/error.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/gemm_avx2.h"
#include "kernels/cpu/gemm_f16.h"
#include "kernels/cpu/gemm_onednn.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pack.h"

namespace computron::kernels {
namespace {

constexpr int kRowClasses[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
static_assert(std::size(kRowClasses) == 16 && kRowClasses[15] == kMaxGemmRows);

}  // namespace

GemmKernel best_gemm_kernel(DType dtype) {
  if (dtype == DType::kBF16 && amx_usable()) return GemmKernel::kAmx;
  if (dtype == DType::kF16) return best_isa() == Isa::kAvx512 ? GemmKernel::kAvx512 : GemmKernel::kAvx2;
  if (OneDnnGemm::fast(dtype)) return GemmKernel::kOneDnn;
  return dtype == DType::kF32 ? GemmKernel::kAvx2 : GemmKernel::kNone;
}

int row_class(int rows) {
  ensure(rows >= 1 && rows <= kMaxGemmRows, "a GEMM call with no rows or too many");
  return *std::lower_bound(std::begin(kRowClasses), std::end(kRowClasses), rows);
}

Gemm::Gemm(GemmKernel f32, GemmKernel bf16, GemmKernel f16) : f32_(f32), bf16_(bf16), f16_(f16) {
  if (f32 == GemmKernel::kOneDnn || bf16 == GemmKernel::kOneDnn) onednn_ = std::make_unique<OneDnnGemm>();
}

Gemm::~Gemm() = default;

void Gemm::run(DType dtype, const std::byte* x, int rows, int depth, const std::byte* weight, int columns,
               float* tile) {
  const int padded = padded_depth(depth, dtype);
  if (padded != depth) x = pad_depth(dtype, x, rows, depth);
  if (dtype == DType::kF16) return run_f16(reinterpret_cast<const float*>(x), rows, padded, weight, columns, tile);
  switch (kernel_for(dtype)) {
    case GemmKernel::kOneDnn:
      return onednn_->run(dtype, x, row_class(rows), padded, weight, columns, tile);
    case GemmKernel::kAmx:
      return gemm_amx(x, rows, padded, weight, columns, tile);
    case GemmKernel::kAvx2:
      return gemm_avx2(reinterpret_cast<const float*>(x), rows, padded, reinterpret_cast<const float*>(weight), columns,
                       tile);
    case GemmKernel::kAvx512:
    case GemmKernel::kNone:
      break;
  }
  throw Error(ExitCode::kInternal,
              "internal: no GEMM kernel for " + std::string(name_of(dtype)) + " on this processor");
}

GemmKernel Gemm::kernel_for(DType dtype) const {
  return dtype == DType::kF32 ? f32_ : dtype == DType::kBF16 ? bf16_ : f16_;
}

void Gemm::run_f16(const float* x, int rows, int depth, const std::byte* weight, int columns, float* tile) {
  constexpr std::size_t kLine = 64;
  widened_.resize(std::max(widened_.size(), f16_scratch(depth) + kLine / sizeof(float)));
  auto* scratch =
      reinterpret_cast<float*>(round_up(reinterpret_cast<std::uintptr_t>(widened_.data()), std::uintptr_t{kLine}));
  const auto multiply = f16_ == GemmKernel::kAvx512 ? gemm_f16_avx512 : gemm_f16_avx2;
  multiply(x, rows, depth, weight, columns, tile, scratch);
}

// So that no kernel meets a partial depth, whose last columns would have to be masked: garbage times a padding zero is
// not zero when it is a NaN.
const std::byte* Gemm::pad_depth(DType dtype, const std::byte* x, int rows, int depth) {
  const std::size_t from_bytes = depth * size_of(gemm_input_dtype(dtype));
  const std::size_t to_bytes = padded_depth(depth, dtype) * size_of(gemm_input_dtype(dtype));
  padded_.assign(row_class(rows) * to_bytes, std::byte{0});
  for (int m = 0; m < rows; ++m) std::memcpy(padded_.data() + m * to_bytes, x + m * from_bytes, from_bytes);
  return padded_.data();
}

}  // namespace computron::kernels
