// GEMM weights on CUDA: plain rows [out][in], as cuBLAS and the kernels read them, or tiles of codes and scales
// (kernels/cuda/quantised_tiles.h); with zero rows up to the row block.
#pragma once

#include "computron/ops/ops.h"

namespace computron {

class CudaWeightFormat final : public WeightFormat {
 public:
  static constexpr int kRowBlock = 16;  // as many rows as products of few rows take at once (kTileRows)

  // A panel's bytes ÷ its rows.
  static std::size_t row_bytes(int in, const WeightType& type);

  int row_block() const override { return kRowBlock; }
  bool joins_pages() const override { return true; }
  std::size_t panel_bytes(int rows, int in, const WeightType& type) const override;
  void pack(std::byte* panel, int in, const WeightType& type, int row, int rows, int column, int columns,
            const std::byte* source, std::size_t row_stride, std::size_t column_stride) const override;
  void pack_scales(std::byte* panel, int in, const WeightType& type, int row, int rows, int group, int groups,
                   const std::byte* source, std::size_t row_stride, std::size_t group_stride) const override;
};

}  // namespace computron
