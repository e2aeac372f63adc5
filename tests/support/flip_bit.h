// Damages memory as a bad link would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace computron::test {

// Flips the bit of `bytes` that `random` names.
inline void flip_some_bit(std::span<std::byte> bytes, std::uint64_t random) {
  const std::uint64_t bit = random % (8 * bytes.size());
  bytes[bit / 8] ^= std::byte{1} << (bit % 8);
}

}  // namespace computron::test
