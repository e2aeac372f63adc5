// How GEMM weights lie in memory on CPU, and the packer that puts them there.
//
// A weight [rows, depth] is cut into blocks of 64 rows. float32: [rows / 64][depth][64], depth padded to 16; float16
// likewise, depth padded to 32; bfloat16: [rows / 64][depth / 2][64][2], depth padded to 32 (at the same time the tiles
// of AMX). Any 64-row block is a weight by itself and bytes mean the same at any address, so a panel can lie in any
// frame and be computed in any groups of blocks. Quantised weights: quantised_panel.h.
#pragma once

#include <cstddef>

#include "computron/base/types.h"
#include "computron/base/weight_type.h"

namespace computron::kernels {

inline constexpr int kRowBlock = 64;

constexpr int depth_multiple(DType dtype) { return dtype == DType::kF32 ? 16 : 32; }
constexpr int padded_depth(int depth, DType dtype) { return round_up(depth, depth_multiple(dtype)); }
constexpr std::size_t packed_bytes(int rows, int depth, DType dtype) {
  return static_cast<std::size_t>(round_up(rows, kRowBlock)) * padded_depth(depth, dtype) * size_of(dtype);
}

std::size_t packed_bytes(int rows, int depth, const WeightType& type);

// Packs rows [row, row + rows) × columns [column, column + columns) of a weight of depth `depth`; element (r, c) of the
// piece is source[r * row_stride + c * column_stride], of type.values, or a byte for each code. Fast when either
// stride is 1. Pieces of quantised weights may be packed at the same time, in memory that was zero.
void pack(std::byte* packed, int depth, const WeightType& type, int row, int rows, int column, int columns,
          const std::byte* source, std::size_t row_stride, std::size_t column_stride);
// Scales of groups [group, group + groups) of rows [row, row + rows).
void pack_scales(std::byte* packed, int depth, const WeightType& type, int row, int rows, int group, int groups,
                 const std::byte* source, std::size_t row_stride, std::size_t group_stride);
// The factor of the scales of rows [row, row + rows), whose type.has_factors().
void pack_factor(std::byte* packed, int depth, const WeightType& type, int row, int rows, double factor);

}  // namespace computron::kernels
