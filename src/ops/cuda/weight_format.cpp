#include "src/ops/cuda/weight_format.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

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

std::size_t CudaWeightFormat::panel_bytes(int rows, int in, const WeightType& type) const {
  ensure(!type.quantised(), "quantised weights on a CUDA device");
  return static_cast<std::size_t>(round_up(rows, kRowBlock)) * in * size_of(type.values);
}

void CudaWeightFormat::pack(std::byte* panel, int in, const WeightType& type, int row, int rows, int column,
                            int columns, const std::byte* source, std::size_t row_stride,
                            std::size_t column_stride) const {
  ensure(!type.quantised(), "quantised weights on a CUDA device");
  const auto pack_as = [&]<class T>(T) {
    pack_elements(reinterpret_cast<T*>(panel), in, row, rows, column, columns, reinterpret_cast<const T*>(source),
                  row_stride, column_stride);
  };
  size_of(type.values) == 4 ? pack_as(std::uint32_t{}) : pack_as(std::uint16_t{});
}

void CudaWeightFormat::pack_scales(std::byte*, int, const WeightType&, int, int, int, int, const std::byte*,
                                   std::size_t, std::size_t) const {
  ensure(false, "quantised weights on a CUDA device");
}

}  // namespace computron
