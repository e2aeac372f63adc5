// Puts codes and scales of a quantised weight where the kernels read them (kernels/cuda/quantised_tiles.h). On the
// host, when a shard is loaded; see WeightFormat for what is packed.
#pragma once

#include <cstddef>

#include "kernels/cuda/quantised_tiles.h"

namespace computron {

// As WeightFormat::pack() and pack_scales(). Pieces may come from several threads, whichever share a byte.
void pack_codes(std::byte* panel, const kernels::cuda::QuantisedTiles& tiles, int row, int rows, int column,
                int columns, const std::byte* source, std::size_t row_stride, std::size_t column_stride);
void pack_scales(std::byte* panel, const kernels::cuda::QuantisedTiles& tiles, int row, int rows, int group, int groups,
                 const std::byte* source, std::size_t row_stride, std::size_t group_stride);

}  // namespace computron
