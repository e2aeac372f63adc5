// The blocks of a model's cache: which there are, who holds them, and which full ones can be found by their tokens.
//
//   held: by one sequence, or by several that begin with the same tokens
//   kept: by nobody, but full of tokens that somebody may come with again; used for something else when need be, the
//         one that was let go longest ago first
//   blank: by nobody, and what it holds is of no use
//
// A full block is known by its tokens and all those before it: both are compared, not only their hashes.
#pragma once

#include <cstdint>
#include <list>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "computron/base/types.h"

namespace computron {

class CacheBlocks {
 public:
  // `keeps`: full blocks are kept and found.
  CacheBlocks(int block_tokens, bool keeps) : block_tokens_(block_tokens), prefix_caching_(keeps) {}

  int block_tokens() const { return block_tokens_; }
  // Blocks that so many tokens take.
  int blocks_for(int tokens) const { return ceil_div(tokens, block_tokens_); }
  // Blocks [0, count()) exist.
  int count() const { return static_cast<int>(blocks_.size()); }
  int free() const { return static_cast<int>(free_.size()); }
  int available() const { return static_cast<int>(free_.size() + cached_.size()); }
  // From this one on they are held by nobody.
  int end_of_used() const { return end_of_used_; }
  // Whether full blocks are kept and found.
  bool prefix_caching() const { return prefix_caching_; }
  int ref_count(std::uint32_t block) const { return blocks_[block].ref_count; }

  // Error{kInternal} if one that is held would go.
  void resize(int count);
  // The lowest blank one, else one that is kept: now the caller's alone. Error{kInternal} when there is none.
  std::uint32_t allocate();
  // The caller, a sequence whose list this is, holds them no longer.
  void release(std::span<const std::uint32_t> blocks);

  // The blocks that hold the beginning of `tokens`, as far as they are found, without the last token: somebody has to
  // compute that. From now on the caller holds them, too.
  std::vector<std::uint32_t> acquire_prefix(std::span<const TokenId> tokens);
  // How many find() would find.
  int prefix_hit_blocks(std::span<const TokenId> tokens) const { return static_cast<int>(longest_hit(tokens).size()); }
  // A sequence's list and tokens, of which blocks [first, last) have been filled; those before them are known.
  void cache_full_blocks(std::span<const std::uint32_t> list, std::span<const TokenId> tokens, int first, int last);

 private:
  using Content =
      std::uint64_t;  // names the tokens of a block and of all before it; never used again. 0: nothing known
  struct Block {
    int ref_count = 0;
    Content content = 0;
    bool found = false;     // it is the one that is found by its content
    std::uint64_t key = 0;  // of its entry
    std::list<std::uint32_t>::iterator cached_at = {};
  };
  struct Entry {
    Content before = 0, content = 0;
    std::vector<TokenId> tokens;
    std::uint32_t block = 0;
  };
  std::vector<std::uint32_t> longest_hit(std::span<const TokenId> tokens) const;
  const Entry* look_up(Content before, std::span<const TokenId> tokens) const;
  static std::uint64_t key_of(Content before, std::span<const TokenId> tokens);
  void hold(std::uint32_t block);
  void forget(std::uint32_t block);

  int block_tokens_;
  bool prefix_caching_;
  int end_of_used_ = 0;
  std::vector<Block> blocks_;
  std::set<std::uint32_t> free_;
  std::list<std::uint32_t> cached_;  // let go longest ago first
  std::unordered_map<std::uint64_t, Entry> entries_;
  Content last_content_ = 0;
};

}  // namespace computron
