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
  // The digest of parts: a state (nullptr without memory) to which they are added.
  void* (*new_state)();
  void (*delete_state)(void* state);
  void (*add)(void* state, const void* bytes, std::size_t count);
  std::uint64_t (*value64)(const void* state);
};

extern const Xxh3 kXxh3Avx512;  // xxh3_avx512.cpp; only where the processor has AVX-512

namespace {

constexpr Xxh3 compiled_xxh3() {
  return {.digest128 = [](const void* bytes, std::size_t count) { return XXH3_128bits(bytes, count); },
          .digest64 = [](const void* bytes, std::size_t count, std::uint64_t seed) -> std::uint64_t {
            return XXH3_64bits_withSeed(bytes, count, seed);
          },
          .new_state = []() -> void* {
            XXH3_state_t* const state = XXH3_createState();
            if (state != nullptr) XXH3_64bits_reset(state);
            return state;
          },
          .delete_state = [](void* state) { XXH3_freeState(static_cast<XXH3_state_t*>(state)); },
          .add = [](void* state, const void* bytes,
                    std::size_t count) { XXH3_64bits_update(static_cast<XXH3_state_t*>(state), bytes, count); },
          .value64 = [](const void* state) -> std::uint64_t {
            return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state));
          }};
}

}  // namespace
}  // namespace computron
