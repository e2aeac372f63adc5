#include "computron/base/digest.h"

#define XXH_INLINE_ALL  // with the program's baseline, AVX2
#include <algorithm>

#include "src/base/xxh3.h"

namespace computron {
namespace {

constexpr Xxh3 kXxh3Avx2 = {[](const void* bytes, std::size_t count) { return XXH3_128bits(bytes, count); },
                            [](const void* bytes, std::size_t count, std::uint64_t seed) -> std::uint64_t {
                              return XXH3_64bits_withSeed(bytes, count, seed);
                            }};

const Xxh3& xxh3() {
  static const Xxh3& best = __builtin_cpu_supports("avx512f") ? kXxh3Avx512 : kXxh3Avx2;
  return best;
}

}  // namespace

Digest128 digest128(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, xxh3().digest128(bytes.data(), bytes.size()));
  Digest128 digest;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), digest.begin());
  return digest;
}

std::uint64_t digest64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return xxh3().digest64(bytes.data(), bytes.size(), seed);
}

std::string to_hex(const Digest128& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace computron
