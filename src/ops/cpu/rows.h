// Where a row of activations lies.
#pragma once

#include <cstddef>

#include "computron/base/types.h"
#include "computron/ops/ops.h"

namespace computron {

inline float* f32_row(const Activations& a, int row) {
  return reinterpret_cast<float*>(a.data) + static_cast<std::size_t>(row) * a.columns;
}
inline std::byte* row_of(const Activations& a, int row) {
  return a.data + static_cast<std::size_t>(row) * a.columns * size_of(a.dtype);
}

}  // namespace computron
