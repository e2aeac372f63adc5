#include "computron/storage/line_history.h"

#include <cstring>

namespace computron {
namespace {

std::uint64_t half(const Digest128& key) {
  std::uint64_t half = 0;
  std::memcpy(&half, key.data(), sizeof half);
  return half;
}

}  // namespace

void LineHistory::note(RequestId line, const Digest128& key) {
  Line& entry = blocks_[line / kBlock][line % kBlock];
  if (entry.known) {
    --lines_known_;
    digest_ -= hash_tuple(line, entry.key);
  }
  entry.key = half(key);
  entry.known = true;
  ++lines_known_;
  digest_ += digest_of(line, key);
}

std::uint64_t LineHistory::digest_of(RequestId line, const Digest128& key) { return hash_tuple(line, half(key)); }

void LineHistory::set_done(RequestId line, bool done) {
  Line& entry = blocks_[line / kBlock][line % kBlock];
  if (entry.done == done) return;
  entry.done = done;
  done ? ++lines_done_ : --lines_done_;
}

const LineHistory::Line* LineHistory::find(RequestId line) const {
  const auto block = blocks_.find(line / kBlock);
  return block == blocks_.end() ? nullptr : &block->second[line % kBlock];
}

bool LineHistory::known(RequestId line) const {
  const Line* entry = find(line);
  return entry != nullptr && entry->known;
}

bool LineHistory::fits(RequestId line, const Digest128& key) const {
  const Line* entry = find(line);
  return entry == nullptr || !entry->known || entry->key == half(key);
}

bool LineHistory::done(RequestId line) const {
  const Line* entry = find(line);
  return entry != nullptr && entry->done;
}

std::optional<RequestId> LineHistory::last_known() const {
  if (blocks_.empty()) return std::nullopt;
  const auto& [number, block] = *blocks_.rbegin();
  for (std::size_t i = kBlock; i-- > 0;) {
    if (block[i].known) return number * kBlock + i;
  }
  return std::nullopt;
}

}  // namespace computron
