#include "computron/base/digest.h"

#include <algorithm>
#include <new>

#include "src/base/xxh3.h"

namespace computron {
namespace {

constexpr Xxh3 kXxh3Avx2 = compiled_xxh3();  // the program's baseline

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

Digest64::Digest64() : state_(xxh3().new_state(), xxh3().delete_state) {
  if (state_ == nullptr) throw std::bad_alloc();
}

void Digest64::add(std::span<const std::byte> part) { xxh3().add(state_.get(), part.data(), part.size()); }

std::uint64_t Digest64::value() const { return xxh3().value64(state_.get()); }

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
