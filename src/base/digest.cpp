#include "computron/base/digest.h"

#include <algorithm>
#include <bit>

#include "computron/base/error.h"
#include "computron/base/types.h"
#include "src/base/xxh3.h"

namespace computron {
namespace {

constexpr Xxh3 kXxh3Baseline = compiled_xxh3();

const Xxh3& xxh3() {
#if defined(__x86_64__)
  static const Xxh3& best = __builtin_cpu_supports("avx512f") ? kXxh3Avx512 : kXxh3Baseline;
#else
  static const Xxh3& best = kXxh3Baseline;
#endif
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

static_assert(std::endian::native == std::endian::little, "digests of pieces are digested as they lie in memory");

void PageDigest::add(std::span<const std::byte> part) {
  ensure(ends_in_piece_ || part.empty(), "a part of a page was added behind one that ends within a piece");
  pieces_.reserve(pieces_.size() + ceil_div(part.size(), kDigestPieceBytes));
  for (; !part.empty(); part = part.subspan(std::min(part.size(), kDigestPieceBytes))) {
    const auto piece = part.first(std::min(part.size(), kDigestPieceBytes));
    ends_in_piece_ = piece.size() == kDigestPieceBytes;
    pieces_.push_back(digest64(piece));
  }
}

std::uint64_t PageDigest::value() const { return digest64(std::as_bytes(std::span(pieces_))); }

std::uint64_t page_digest(std::span<const std::byte> page) {
  PageDigest digest;
  digest.add(page);
  return digest.value();
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
