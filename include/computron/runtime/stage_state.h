// What a stage's pool holds and which sequences it knows: page tables, cache lists, sequences, and digests of them.
//
// Rank 0 keeps one for every stage and applies each step to it when it decides the step; every rank keeps its own and
// applies the step when it executes it. Done records carry the digests, and rank 0 compares them: since both sides run
// this same code on what they believe, a difference means that a message, a rank or this code went wrong.
//
//   frame: free | page of a model | cache frame of a model
//   slot of the spill area: free | a model's cache, moved there whole
//   block of a model's cache: of no sequence | of one | full and of several that begin with the same tokens
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "computron/runtime/step.h"

namespace computron {

// Digests of the parts of a state after a step.
struct StateDigest {
  // Of all models: each changes with every change of its part and costs O(change) to keep.
  std::uint64_t pages = 0;    // xor over (model, page, frame)
  std::uint64_t caches = 0;   // xor over (model, index in list, frame)
  std::uint64_t spilled = 0;  // xor over (model, index in list, slot)
  std::uint64_t lengths = 0;  // xor over (sequence, model, length)
  std::uint64_t blocks = 0;   // xor over (sequence, index, block)
  std::uint64_t tokens = 0;   // xor over (sequence, history)
  std::uint64_t bytes_fetched = 0;
  std::uint64_t frames_moved = 0;  // of caches, to the spill area and back
  // Of what the step's pass has used, read anew where it lies; 0 without a pass. A few bytes a page of the model and a
  // block of the sequences.
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
  // `images[m]` is model m's image of this stage; borrowed. `host_slots`: of the spill area.
  StageState(std::vector<const Image*> images, int frames, int host_slots = 0);

  // The parts of applying a step, in this order; Error{kInternal} for anything a right scheduler would not say.
  void close(SequenceId sequence);
  void change_cache(const CacheChange& change);
  void place(const Fetch& fetch);
  // A sequence's first chunk starts at 0, or behind full blocks that continue each other: its first new ones. A block
  // that is written is in no other sequence's list, and in its own one not full.
  void extend(ModelId model, const SequenceChunk& chunk);
  // The page that the frame holds is no longer there; refuses a cache frame.
  void forget(FrameId frame) { vacate(frame); }
  // All of it: how rank 0 follows a step it has decided.
  void apply(const Step& step, int stage);

  FrameId frame_of(ModelId model, PageId page) const { return page_tables_[model][page]; }
  const std::vector<FrameId>& cache(ModelId model) const { return caches_[model]; }
  // Where the model's cache is while it is spilled, in the order of its list; empty otherwise.
  const std::vector<HostSlot>& spilled(ModelId model) const { return spilled_[model]; }
  bool slot_taken(HostSlot slot) const { return slots_taken_[slot]; }
  int host_slots() const { return static_cast<int>(slots_taken_.size()); }
  const SequenceState& sequence(SequenceId id) const;
  int resident_pages(ModelId model) const { return resident_[model]; }
  int frames() const { return static_cast<int>(owners_.size()); }

  struct Owner {
    enum Kind : std::uint8_t { kFree, kPage, kCache } kind = kFree;
    ModelId model = 0;
    std::uint32_t index = 0;  // page, or place in the cache list
  };
  const Owner& owner(FrameId frame) const { return owners_[frame]; }

  // Without what a pass uses.
  const StateDigest& digest() const { return digest_; }
  // When `step` and nothing beyond it has been applied.
  StateDigest digest_after(const Step& step) const;
  const Image& image(ModelId model) const { return *images_[model]; }

 private:
  friend struct StageStateTables;  // whoever checks that a difference in the tables themselves is found
  struct Block {
    int holders = 0;  // sequences
    bool full = false;
    std::uint64_t before = 0, after = 0;  // hashes of the tokens before its first and to its last one
  };
  Block& block(ModelId model, std::uint32_t number);
  void begin_behind(const SequenceChunk& chunk, SequenceState& s);
  void write(const SequenceChunk& chunk, SequenceState& s);
  void toggle(SequenceId id, const SequenceState& s);  // in the digest: into it or out of it
  void lose_blocks(ModelId model);
  void vacate(FrameId frame);  // forgets the page it holds; refuses a cache frame
  void take_frames(ModelId model, std::uint32_t count);
  void add_frames(ModelId model, const std::vector<FrameId>& frames);
  void take_slots(ModelId model, const std::vector<HostSlot>& slots);
  void free_slots(ModelId model);

  std::vector<const Image*> images_;
  std::vector<std::vector<FrameId>> page_tables_;  // [model][page]
  std::vector<int> resident_;                      // [model]
  std::vector<std::vector<FrameId>> caches_;       // [model]
  std::vector<std::vector<HostSlot>> spilled_;     // [model]
  std::vector<bool> slots_taken_;                  // [slot]
  std::vector<Owner> owners_;                      // [frame]
  std::vector<std::vector<Block>> blocks_;         // [model][block]
  std::unordered_map<SequenceId, SequenceState> sequences_;
  StateDigest digest_;
};

}  // namespace computron
