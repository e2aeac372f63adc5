#include "src/ops/cuda/weight_format.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "src/ops/cuda/tile_packer.h"

namespace computron {
namespace {

// Turned sources are read along their rows too: a square this large stays in the first cache.
constexpr int kSquare = 64;

template <class T>
void pack_elements(T* panel, int in, int row, int rows, int column, int columns, const T* source,
                   std::size_t row_stride, std::size_t column_stride) {
  const auto to = [&](int r) { return panel + static_cast<std::size_t>(row + r) * in + column; };
  if (column_stride == 1) {
    for (int r = 0; r < rows; ++r) std::copy_n(source + r * row_stride, columns, to(r));
    return;
  }
  for (int c0 = 0; c0 < columns; c0 += kSquare) {
    for (int r0 = 0; r0 < rows; r0 += kSquare) {
      for (int r = r0; r < std::min(rows, r0 + kSquare); ++r) {
        for (int c = c0; c < std::min(columns, c0 + kSquare); ++c) {
          to(r)[c] = source[r * row_stride + c * column_stride];
        }
      }
    }
  }
}

}  // namespace

std::size_t CudaWeightFormat::row_bytes(int in, const WeightType& type) {
  if (type.quantised()) return kernels::cuda::QuantisedTiles(type, in).row_bytes();
  return static_cast<std::size_t>(in) * size_of(type.values);
}

std::size_t CudaWeightFormat::panel_bytes(int rows, int in, const WeightType& type) const {
  return static_cast<std::size_t>(round_up(rows, kRowBlock)) * row_bytes(in, type);
}

void CudaWeightFormat::pack(std::byte* panel, int in, const WeightType& type, int row, int rows, int column,
                            int columns, const std::byte* source, std::size_t row_stride,
                            std::size_t column_stride) const {
  if (type.quantised()) {
    return pack_codes(panel, {type, in}, row, rows, column, columns, source, row_stride, column_stride);
  }
  const auto pack_as = [&]<class T>(T) {
    pack_elements(reinterpret_cast<T*>(panel), in, row, rows, column, columns, reinterpret_cast<const T*>(source),
                  row_stride, column_stride);
  };
  size_of(type.values) == 4 ? pack_as(std::uint32_t{}) : pack_as(std::uint16_t{});
}

void CudaWeightFormat::pack_scales(std::byte* panel, int in, const WeightType& type, int row, int rows, int group,
                                   int groups, const std::byte* source, std::size_t row_stride,
                                   std::size_t group_stride) const {
  computron::pack_scales(panel, {type, in}, row, rows, group, groups, source, row_stride, group_stride);
}

}  // namespace computron
