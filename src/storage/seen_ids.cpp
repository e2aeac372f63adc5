#include "computron/storage/seen_ids.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

namespace computron {
namespace {

constexpr std::size_t kLeastSlots = 1024;
constexpr Digest128 kFree{};

Digest128 digest_of(std::string_view id) {
  Digest128 digest = digest128(std::as_bytes(std::span(id.data(), id.size())));
  if (digest == kFree) digest.back() = 1;
  return digest;
}

std::size_t slots_for(std::size_t ids) { return std::bit_ceil(std::max(kLeastSlots, ids + ids / 3 + 1)); }

}  // namespace

// Linear probing: digests are as good as random.
std::size_t SeenIds::slot_of(const Digest128& id) const {
  std::uint64_t begin = 0;
  std::memcpy(&begin, id.data(), sizeof begin);
  std::size_t slot = begin & (slots_.size() - 1);
  while (slots_[slot] != kFree && slots_[slot] != id) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void SeenIds::rehash(std::size_t slots) {
  std::vector<Digest128> old(slots);
  old.swap(slots_);
  for (const Digest128& id : old) {
    if (id != kFree) slots_[slot_of(id)] = id;
  }
}

void SeenIds::reserve(std::size_t ids) {
  const std::size_t slots = slots_for(std::min(ids, kMostReserved));
  if (slots > slots_.size()) rehash(slots);
}

void SeenIds::insert(std::string_view id) {
  if (slots_for(count_ + 1) > slots_.size()) rehash(slots_for(count_ + 1));
  const Digest128 digest = digest_of(id);
  Digest128& slot = slots_[slot_of(digest)];
  if (slot == kFree) ++count_;
  slot = digest;
}

bool SeenIds::contains(std::string_view id) const { return !slots_.empty() && slots_[slot_of(digest_of(id))] != kFree; }

}  // namespace computron
