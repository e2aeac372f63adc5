#include "src/ops/cpu/weight_format.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pack.h"

namespace computron {

int CpuWeightFormat::row_block() const { return kernels::kRowBlock; }

std::size_t CpuWeightFormat::panel_bytes(int rows, int in, const WeightType& type) const {
  return kernels::packed_bytes(rows, in, type);
}

void CpuWeightFormat::pack(std::byte* panel, int in, const WeightType& type, int row, int rows, int column, int columns,
                           const std::byte* source, std::size_t row_stride, std::size_t column_stride) const {
  kernels::pack(panel, in, type, row, rows, column, columns, source, row_stride, column_stride);
}

void CpuWeightFormat::pack_scales(std::byte* panel, int in, const WeightType& type, int row, int rows, int group,
                                  int groups, const std::byte* source, std::size_t row_stride,
                                  std::size_t group_stride) const {
  kernels::pack_scales(panel, in, type, row, rows, group, groups, source, row_stride, group_stride);
}

void CpuWeightFormat::pack_factor(std::byte* panel, int in, const WeightType& type, int row, int rows,
                                  double factor) const {
  kernels::pack_factor(panel, in, type, row, rows, factor);
}

DType CpuWeightFormat::input_dtype(const WeightType& type) const { return kernels::gemm_input_dtype(type); }

}  // namespace computron
