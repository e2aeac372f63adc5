// Counter-based random numbers: a number is a function of its key and its place, so neither order nor restart changes
// it. Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "computron/base/host_device.h"

namespace computron {

COMPUTRON_HOST_DEVICE constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                                    std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xd2511f53} * counter[0], b = std::uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  return counter;
}

// The middle of the 2^32 equal parts of (0, 1) that `bits` numbers.
COMPUTRON_HOST_DEVICE constexpr double unit_interval(std::uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

// A sample of the standard Gumbel distribution. The largest of logit + noise over tokens is a sample of softmax(logits)
// (Gumbel 1954), which needs no sum and can be found slice by slice.
COMPUTRON_HOST_DEVICE inline double gumbel(std::uint32_t bits) { return -std::log(-std::log(unit_interval(bits))); }

}  // namespace computron
