// xxHash digests: XXH3-128 for what lies in files, XXH3-64 of pieces for pages, 64-bit mixes for state that ranks
// compare.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace computron {

// Canonical (big-endian) bytes of XXH3-128, as `xxhsum -H2` prints them.
using Digest128 = std::array<std::uint8_t, 16>;

Digest128 digest128(std::span<const std::byte> bytes);
std::uint64_t digest64(std::span<const std::byte> bytes, std::uint64_t seed = 0);
std::string to_hex(const Digest128& digest);

// What pages are digested in, so that a GPU's warps digest a page together (kernels/cuda/page_digest.h).
inline constexpr std::size_t kDigestPieceBytes = 4096;

// The digest of a page that comes one part after another: digest64() of the digest64()s, 8 bytes each and the lowest
// one first, of its pieces of kDigestPieceBytes. The last piece may be shorter; a page without bytes has none.
class PageDigest {
 public:
  // Every part but the last is whole pieces.
  void add(std::span<const std::byte> part);
  // Of all that has been added.
  std::uint64_t value() const;

 private:
  std::vector<std::uint64_t> pieces_;
  bool ends_in_piece_ = true;  // more may be added
};
// The same of a page that is there as a whole.
std::uint64_t page_digest(std::span<const std::byte> page);

// Hash of a small tuple of integers (splitmix64 rounds). The sum or xor of such hashes is a digest of a *set* that
// can be kept up to date element by element.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}
template <class... Ints>
constexpr std::uint64_t hash_tuple(std::uint64_t first, Ints... rest) {
  std::uint64_t h = mix64(first);
  ((h = mix64(h ^ (static_cast<std::uint64_t>(rest) + 0x632be59bd9b4e019ull))), ...);
  return h;
}

}  // namespace computron
