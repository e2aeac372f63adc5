#include "src/ops/cpu/weight_format.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"

namespace computron {
int CpuWeightFormat::row_block() const { return kernels::kRowBlock; }

std::size_t CpuWeightFormat::panel_bytes(int rows, int in, DType dtype) const {
  return kernels::packed_bytes(rows, in, dtype);
}

void CpuWeightFormat::pack(std::byte* panel, int in, DType dtype, int row, int rows, int column, int columns,
                           const std::byte* source, std::size_t row_stride, std::size_t column_stride) const {
  kernels::pack(panel, in, dtype, row, rows, column, columns, source, row_stride, column_stride);
}

DType CpuWeightFormat::input_dtype(DType dtype) const { return kernels::gemm_input_dtype(dtype); }

}  // namespace computron
