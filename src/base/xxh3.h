// XXH3 as compiled for one set of instructions: the library's own build keeps to the oldest, and is four to five times
// slower. The digests are the same.
#pragma once

#define XXH_INLINE_ALL  // with the instructions of the including file
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace computron {

struct Xxh3 {
  XXH128_hash_t (*digest128)(const void* bytes, std::size_t count);
  std::uint64_t (*digest64)(const void* bytes, std::size_t count, std::uint64_t seed);
};

extern const Xxh3 kXxh3Avx512;  // xxh3_avx512.cpp; only where the processor has AVX-512

namespace {

constexpr Xxh3 compiled_xxh3() {
  return {.digest128 = [](const void* bytes, std::size_t count) { return XXH3_128bits(bytes, count); },
          .digest64 = [](const void* bytes, std::size_t count, std::uint64_t seed) -> std::uint64_t {
            return XXH3_64bits_withSeed(bytes, count, seed);
          }};
}

}  // namespace
}  // namespace computron
