// Compiled with AVX-512; nothing here runs unless the processor has it.
#define XXH_INLINE_ALL
#include "src/base/xxh3.h"

namespace computron {

const Xxh3 kXxh3Avx512 = {[](const void* bytes, std::size_t count) { return XXH3_128bits(bytes, count); },
                          [](const void* bytes, std::size_t count, std::uint64_t seed) -> std::uint64_t {
                            return XXH3_64bits_withSeed(bytes, count, seed);
                          }};

}  // namespace computron
