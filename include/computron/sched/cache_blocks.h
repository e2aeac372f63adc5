// The blocks of a model's key-value cache: which there are, which sequences use them, and prefix caching.
//
//   used     by one sequence, or by several that begin with the same tokens (a reference count each)
//   cached   by none, but full of tokens that somebody may come with again; allocated for something else when need be,
//            the one that was released longest ago first
//   free     by none, and what it holds is of no use
//
// A full block is found by its tokens and all those before it: both are compared, not only their hashes. Block numbers
// are logical; StagePool says in which frames they lie. This is rank 0's bookkeeping: it touches no memory of a device.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "computron/base/types.h"

namespace computron {

// Numbers, of which the lowest is taken first: a bit each.
class FreeBlocks {
 public:
  int size() const { return size_; }
  // One that is not among them.
  void insert(std::uint32_t block);
  // Requires one.
  std::uint32_t take_lowest();
  // Those from `count` on are gone.
  void truncate(std::uint32_t count);

 private:
  std::vector<std::uint64_t> words_;
  std::size_t lowest_ = 0;  // no word before it has a bit
  int size_ = 0;
};

class CacheBlocks {
 public:
  // `prefix_caching`: full blocks stay cached when they are released, and are found. There are no blocks at first.
  CacheBlocks(int block_tokens, bool prefix_caching) : block_tokens_(block_tokens), prefix_caching_(prefix_caching) {}

  int block_tokens() const { return block_tokens_; }
  // Blocks that so many tokens take.
  int blocks_for(int tokens) const { return ceil_div(tokens, block_tokens_); }
  // Blocks [0, count()) exist.
  int count() const { return static_cast<int>(blocks_.size()); }
  int free() const { return free_.size(); }
  // Free or cached.
  int available() const { return free_.size() + static_cast<int>(cached_.size()); }
  int used() const { return count() - available(); }
  // The end of the used blocks: from this one on none is used.
  int end_of_used() const { return end_of_used_; }
  bool prefix_caching() const { return prefix_caching_; }
  // Sequences that use the block.
  int ref_count(std::uint32_t block) const { return blocks_[block].ref_count; }

  // From now on blocks [0, count) exist; new ones are free. Error{kInternal} if a used one would go.
  void resize(int count);
  // The lowest free one, else a cached one: now used by the caller alone. Error{kInternal} when none is available.
  std::uint32_t allocate();
  // The caller, a sequence whose list this is, uses them no longer. Error{kInternal} for one that nobody uses.
  void release(std::span<const std::uint32_t> blocks);

  // A prefix hit: the blocks that hold the beginning of `tokens`, as far as they are found, without the last token,
  // which somebody has to compute. From now on the caller uses them, too. Found is what was cached with the same
  // `root`, below kRoots (Request::prefix_root()).
  static constexpr std::uint64_t kRoots = 2;
  std::vector<std::uint32_t> acquire_prefix(std::span<const TokenId> tokens, std::uint64_t root = 0);
  // What acquire_prefix() would find, used or cached.
  std::vector<std::uint32_t> find_prefix(std::span<const TokenId> tokens, std::uint64_t root = 0) const;
  // Blocks [first, last) of a sequence's list are full from now on, with these of its tokens; those before them were
  // already. They can be found from now on.
  void cache_full_blocks(std::span<const std::uint32_t> list, std::span<const TokenId> tokens, int first, int last,
                         std::uint64_t root = 0);

 private:
  // Names the tokens of a block together with all before it; never used again. Below kRoots: what is before a
  // sequence's first block. Of a block, 0: not full, or not to be found.
  using Content = std::uint64_t;
  struct Block {
    int ref_count = 0;
    Content content = 0;
    bool found = false;                                 // it is the one that is found by its content
    std::uint64_t key = 0;                              // of its entry
    std::list<std::uint32_t>::iterator cached_at = {};  // while it is cached
  };
  // A block that can be found.
  struct Entry {
    Content before = 0, content = 0;
    std::vector<TokenId> tokens;
    std::uint32_t block = 0;
  };
  const Entry* look_up(Content before, std::span<const TokenId> tokens) const;
  static std::uint64_t key_of(Content before, std::span<const TokenId> tokens);
  void use(std::uint32_t block);
  void forget(std::uint32_t block);

  int block_tokens_;
  bool prefix_caching_;
  int end_of_used_ = 0;
  std::vector<Block> blocks_;
  FreeBlocks free_;
  std::list<std::uint32_t> cached_;                   // released longest ago first
  std::unordered_map<std::uint64_t, Entry> entries_;  // by hash
  Content last_content_ = kRoots - 1;
};

}  // namespace computron
