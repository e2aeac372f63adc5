#include "computron/sched/cache_blocks.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "computron/base/digest.h"
#include "computron/base/error.h"

namespace computron {
namespace {

constexpr std::size_t kBits = 64;  // of a word

}  // namespace

void FreeBlocks::insert(std::uint32_t block) {
  const std::size_t word = block / kBits;
  if (word >= words_.size()) words_.resize(word + 1);
  words_[word] |= std::uint64_t{1} << block % kBits;
  lowest_ = std::min(lowest_, word);
  ++size_;
}

std::uint32_t FreeBlocks::take_lowest() {
  while (words_[lowest_] == 0) ++lowest_;
  std::uint64_t& word = words_[lowest_];
  const auto block = static_cast<std::uint32_t>(lowest_ * kBits) + static_cast<std::uint32_t>(std::countr_zero(word));
  word &= word - 1;
  --size_;
  return block;
}

void FreeBlocks::truncate(std::uint32_t count) {
  if (words_.size() * kBits <= count) return;
  words_.resize(ceil_div<std::size_t>(count, kBits));
  if (count % kBits != 0) words_.back() &= (std::uint64_t{1} << count % kBits) - 1;
  lowest_ = std::min(lowest_, words_.size());
  size_ = 0;
  for (const std::uint64_t word : words_) size_ += std::popcount(word);
}

void CacheBlocks::use(std::uint32_t block) {
  ++blocks_[block].ref_count;
  end_of_used_ = std::max(end_of_used_, static_cast<int>(block) + 1);
}

void CacheBlocks::resize(int count) {
  ensure(count >= end_of_used(), "a cache in use cannot shrink");
  for (auto block = static_cast<std::uint32_t>(count); block < blocks_.size(); ++block) {
    if (blocks_[block].found) cached_.erase(blocks_[block].cached_at);
    forget(block);
  }
  for (auto block = static_cast<std::uint32_t>(blocks_.size()); std::cmp_less(block, count); ++block) {
    free_.insert(block);
  }
  free_.truncate(static_cast<std::uint32_t>(count));
  blocks_.resize(static_cast<std::size_t>(count));
}

std::uint32_t CacheBlocks::allocate() {
  ensure(available() > 0, "cache blocks run out");
  std::uint32_t block = 0;
  if (free_.size() > 0) {
    block = free_.take_lowest();
  } else {
    block = cached_.front();
    cached_.pop_front();
  }
  forget(block);
  use(block);
  return block;
}

// From the end of the list: a block that cannot be found without the one before it goes earlier than that.
void CacheBlocks::release(std::span<const std::uint32_t> list) {
  for (auto block = list.rbegin(); block != list.rend(); ++block) {
    Block& b = blocks_[*block];
    ensure(b.ref_count > 0, "a cache block is released that nobody uses");
    if (--b.ref_count > 0) continue;
    if (b.found) {
      b.cached_at = cached_.insert(cached_.end(), *block);
    } else {
      free_.insert(*block);
    }
  }
  while (end_of_used_ > 0 && blocks_[static_cast<std::size_t>(end_of_used_) - 1].ref_count == 0) --end_of_used_;
}

std::vector<std::uint32_t> CacheBlocks::acquire_prefix(std::span<const TokenId> tokens, std::uint64_t root) {
  std::vector<std::uint32_t> list = find_prefix(tokens, root);
  for (const std::uint32_t block : list) {
    if (blocks_[block].ref_count == 0) cached_.erase(blocks_[block].cached_at);
    use(block);
  }
  return list;
}

std::vector<std::uint32_t> CacheBlocks::find_prefix(std::span<const TokenId> tokens, std::uint64_t root) const {
  std::vector<std::uint32_t> list;
  const auto step = static_cast<std::size_t>(block_tokens_);
  Content before = root;
  for (std::size_t at = 0; prefix_caching_ && at + step < tokens.size(); at += step) {
    const Entry* entry = look_up(before, tokens.subspan(at, step));
    if (entry == nullptr) break;
    list.push_back(entry->block);
    before = entry->content;
  }
  return list;
}

void CacheBlocks::cache_full_blocks(std::span<const std::uint32_t> list, std::span<const TokenId> tokens, int first,
                                    int last, std::uint64_t root) {
  if (!prefix_caching_) return;
  for (int i = first; i < last; ++i) {
    const Content before = i == 0 ? root : blocks_[list[i - 1]].content;
    const auto mine =
        tokens.subspan(static_cast<std::size_t>(i) * block_tokens_, static_cast<std::size_t>(block_tokens_));
    Block& block = blocks_[list[i]];
    if (const Entry* same = look_up(before, mine)) {
      block.content = same->content;  // the same in another block: that one is found, what follows either is one
      continue;
    }
    block.content = ++last_content_;
    block.key = key_of(before, mine);
    // Another content of that hash stays.
    block.found =
        entries_.try_emplace(block.key, Entry{before, block.content, {mine.begin(), mine.end()}, list[i]}).second;
  }
}

const CacheBlocks::Entry* CacheBlocks::look_up(Content before, std::span<const TokenId> tokens) const {
  const auto found = entries_.find(key_of(before, tokens));
  if (found == entries_.end()) return nullptr;
  const Entry& entry = found->second;
  return entry.before == before && std::ranges::equal(entry.tokens, tokens) ? &entry : nullptr;
}

std::uint64_t CacheBlocks::key_of(Content before, std::span<const TokenId> tokens) {
  return digest64(std::as_bytes(tokens), before);
}

// What it held is no longer found.
void CacheBlocks::forget(std::uint32_t block) {
  Block& b = blocks_[block];
  if (b.found) entries_.erase(b.key);
  b = {};
}

}  // namespace computron
