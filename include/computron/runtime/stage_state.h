// What a stage's pool holds and which sequences run: page tables, cache lists, sequences, and digests of them.
//
// Rank 0 keeps one StageState for every stage and applies each step to it when it decides the step; every rank keeps
// its own and applies the step when it executes it. Done records carry the digests, and rank 0 compares them: since
// both sides run this same code on what they believe, a difference means that a message, a rank or this code went
// wrong.
//
//   frame                      free | page of a model | cache frame of a model
//   slot of an adapter         free | page of a model; slots are numbered on from the last frame
//   slot of the offload area   free | one frame's worth of a model's offloaded cache
//   block of a model's cache   held by no sequence | by one | full, and held by several with the same prefix
//
// What must hold after every call; a step that would break it is refused with Error{kInternal}:
//   * owners_ is the inverse of page_tables_ and caches_: each frame is in at most one place of them, where pages that
//     are one (shared_pages.h) are one place, known by the first of them. resident_ counts the pages in frames. Pages
//     that belong into slots (ShardLayout::kind_of) are in slots, all others and caches in frames.
//   * A model's cache is wholly in frames (caches_) or wholly in slots (offloaded_). No pass of the model runs while
//     it is in slots. Its blocks keep their numbers on the way.
//   * holders of a block = the running sequences that have it in their list. A block that is written has one holder and
//     is not full; a full block is never written again until nobody holds it.
//   * digest_ follows every change of the tables, each of which xors its part in or out, or adds to a count. How the
//     changes were grouped into steps makes no difference.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "computron/runtime/shared_pages.h"
#include "computron/runtime/step.h"

namespace computron {

// Digests of the parts of a state after a step. It travels in done records as it lies in memory.
struct StateDigest {
  // Of all models: each follows every change of its part, at a cost of O(change).
  std::uint64_t pages = 0;      // xor over (model, page, frame); of pages that are one, the first counts
  std::uint64_t caches = 0;     // xor over (model, index in list, frame)
  std::uint64_t offloaded = 0;  // xor over (model, index in list, slot)
  std::uint64_t lengths = 0;    // xor over (sequence, model, length)
  std::uint64_t blocks = 0;     // xor over (sequence, index, block)
  std::uint64_t tokens = 0;     // xor over (sequence, history)
  std::uint64_t bytes_fetched = 0;
  std::uint64_t frames_moved = 0;  // of caches, to the offload area and back
  // Of what the step's pass has used, computed from the tables themselves; 0 without a pass. Costs a few bytes a page
  // of each of its models and a block of the sequences.
  std::uint64_t page_table = 0;
  std::uint64_t cache_list = 0;
  std::uint64_t sequences = 0;  // their models, lengths, blocks and histories
  bool operator==(const StateDigest&) const = default;
  // "pages", "caches", ... of the first field that differs; empty if none.
  std::string first_difference(const StateDigest& other) const;
};

struct SequenceState {
  ModelId model = 0;
  std::uint32_t length = 0;  // tokens whose keys and values are in the cache
  std::vector<std::uint32_t> blocks;
  std::uint64_t history = 0;  // hash of those tokens
};

class StageState {
 public:
  // `layouts[m]` is model m's layout of this stage; borrowed. `host_slots`: of the offload area. `adapter_slots`: small
  // frames, for the pages of adapters.
  StageState(std::vector<const ShardLayout*> layouts, int frames, int host_slots = 0, int adapter_slots = 0);

  // The parts of applying a step, in this order; Error{kInternal} for anything that a right scheduler would not order.
  // The sequence ends; it holds its blocks no longer.
  void close(SequenceId sequence);
  void change_cache(const CacheChange& change);
  // The page, with all that are one with it, is resident in the fetch's frame from here on; what the frame held is
  // evicted.
  void place(const Fetch& fetch);
  // The chunk's tokens join their sequence, which its first chunk starts. That one begins at position 0, or behind a
  // cached prefix: then chunk.new_blocks starts with full blocks that continue each other and hold the tokens before
  // chunk.start. Every other new block is held by no other sequence.
  // `histories`: of the sequence behind each of the tokens, as histories() of another stage in the same state says;
  // empty: they are worked out here.
  void extend(ModelId model, const SequenceChunk& chunk, std::span<const std::uint64_t> histories = {});
  // Of the chunks' sequences (SequenceState::history) behind each of their tokens, one chunk behind the other, before
  // any extend(). All stages have the same: rank 0 hashes the tokens once, and those of several chunks side by side.
  std::vector<std::uint64_t> histories(ModelId model, std::span<const SequenceChunk> chunks) const;
  // The page that `frame` holds, if any, and all that are one with it are no longer resident. Error{kInternal} for a
  // cache frame.
  void evict(FrameId frame);
  // All parts: how rank 0 follows a step that it has decided. `stage`: whose plan is applied.
  void apply(const Step& step, int stage);

  FrameId frame_of(ModelId model, PageId page) const { return page_tables_[model][page]; }
  const std::vector<FrameId>& page_table(ModelId model) const { return page_tables_[model]; }  // [page]
  const std::vector<FrameId>& cache(ModelId model) const { return caches_[model]; }
  // Where the model's cache is while it is offloaded, in the order of its list; empty otherwise.
  const std::vector<HostSlot>& offloaded(ModelId model) const { return offloaded_[model]; }
  bool slot_taken(HostSlot slot) const { return slots_taken_[slot]; }
  int host_slots() const { return static_cast<int>(slots_taken_.size()); }
  const SequenceState& sequence(SequenceId id) const;  // Error{kInternal} where it does not run
  int resident_pages(ModelId model) const { return resident_[model]; }
  FrameKind kind_of(FrameId frame) const {
    return frame < static_cast<FrameId>(frames_) ? FrameKind::kWhole : FrameKind::kSlot;
  }

  struct Owner {
    enum Kind : std::uint8_t { kFree, kPage, kCache } kind = kFree;
    ModelId model = 0;
    std::uint32_t index = 0;  // kPage: page, the first of those that are one; kCache: index in the cache list
  };
  const Owner& owner(FrameId frame) const { return owners_[frame]; }

  // The digests of all models; those of what a pass uses are 0.
  const StateDigest& digest() const { return digest_; }
  // All digests. To be called when `step` has been applied and nothing beyond it.
  StateDigest digest_after(const Step& step) const;
  const ShardLayout& layout(ModelId model) const { return *layouts_[model]; }
  const SharedPages& shared() const { return shared_; }

 private:
  friend struct StageStateTables;  // whoever checks that a difference in the tables themselves is found
  struct Block {
    int holders = 0;    // running sequences that have it in their lists
    bool full = false;  // holds block_tokens tokens
    // SequenceState::history before the block's first token, and behind its last one: a full block continues a prefix
    // whose history is `before`.
    std::uint64_t before = 0, after = 0;
  };
  Block& block(ModelId model, std::uint32_t number);
  // Sets length and history of a sequence that starts behind a cached prefix, from the prefix's blocks.
  void start_behind_prefix(const SequenceChunk& chunk, SequenceState& s);
  // The chunk's tokens enter the sequence's history, where it is `histories` behind each, and its blocks.
  void write(const SequenceChunk& chunk, SequenceState& s, std::span<const std::uint64_t> histories);
  // Of the chunk's sequence before its first token.
  std::uint64_t history_before(ModelId model, const SequenceChunk& chunk) const;
  // After the model's cache has lost frames or slots: drops the blocks that lay there, which nobody may hold.
  void drop_lost_blocks(ModelId model);
  void take_frames(ModelId model, std::uint32_t count);
  void add_frames(ModelId model, const std::vector<FrameId>& frames);
  void take_slots(ModelId model, const std::vector<HostSlot>& slots);
  void free_slots(ModelId model);

  std::vector<const ShardLayout*> layouts_;
  int frames_ = 0;
  SharedPages shared_;
  std::vector<std::vector<FrameId>> page_tables_;  // [model][page]
  std::vector<int> resident_;                      // [model]
  std::vector<std::vector<FrameId>> caches_;       // [model]
  std::vector<std::vector<HostSlot>> offloaded_;   // [model]
  std::vector<bool> slots_taken_;                  // [slot]
  std::vector<Owner> owners_;                      // [frame or slot]
  std::vector<std::vector<Block>> blocks_;         // [model][block]
  std::unordered_map<SequenceId, SequenceState> sequences_;
  StateDigest digest_;
};

}  // namespace computron
