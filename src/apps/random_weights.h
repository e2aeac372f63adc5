// Normally distributed weights from a counter-based generator: element i of a tensor depends on (seed, name of the
// tensor, i) and on nothing else, so pieces can be made by any thread in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "computron/base/types.h"

namespace computron {

struct WeightDistribution {
  float mean = 0;
  float deviation = 0;
};

class RandomTensor {
 public:
  // Elements that are made together; pieces begin at multiples of it.
  static constexpr std::size_t kTile = 512;

  RandomTensor(std::uint64_t seed, std::string_view name, WeightDistribution distribution);

  // Writes elements [first, first + out.size() / size_of(dtype)), little-endian.
  void fill(std::size_t first, DType dtype, std::span<std::byte> out) const;

 private:
  void make_tile(std::size_t tile, float* out) const;

  std::uint64_t key_;
  WeightDistribution distribution_;
};

}  // namespace computron
