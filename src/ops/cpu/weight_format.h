// The packed layout of kernels/cpu/pack.h as the weight format of the CPU operations.
#pragma once

#include "computron/ops/ops.h"

namespace computron {

class CpuWeightFormat final : public WeightFormat {
 public:
  int row_block() const override;
  std::size_t panel_bytes(int rows, int in, const WeightType& type) const override;
  void pack(std::byte* panel, int in, const WeightType& type, int row, int rows, int column, int columns,
            const std::byte* source, std::size_t row_stride, std::size_t column_stride) const override;
  void pack_scales(std::byte* panel, int in, const WeightType& type, int row, int rows, int group, int groups,
                   const std::byte* source, std::size_t row_stride, std::size_t group_stride) const override;
  void pack_factor(std::byte* panel, int in, const WeightType& type, int row, int rows, double factor) const override;
  DType input_dtype(const WeightType& type) const override;
};

}  // namespace computron
