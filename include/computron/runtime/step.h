// A step: what rank 0 tells every rank. Fetches, changes of caches, and at most one forward pass of one model.
//
// Models that differ in their adapters alone (ShardLayout::family) may have their rows in one pass: the step's model
// and, behind its chunks, those of its riders, each rider's side by side. All pages of a rider are there before the
// pass, and are used until its end (ReleasePoint::kEnd).
//
// A step says everything; ranks decide nothing. All ranks get the common part, each only its own stage's plan.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "computron/base/bytes.h"
#include "computron/base/types.h"
#include "computron/model/sampler.h"
#include "computron/model/shard_layout.h"

namespace computron {

// When a frame's content has been used for the last time, as a place in the order of all page uses: use `use` of the
// forward pass of step `step`, or the step's very end. Whatever comes into the frame waits for this point and no other.
struct ReleasePoint {
  static constexpr PageUse kEnd = 0xffffffff;
  StepId step = 0;  // 0: before the first step; nothing waits for it
  PageUse use = kEnd;
  auto operator<=>(const ReleasePoint&) const = default;  // NOLINT(modernize-use-nullptr): it has none
};

// Copy `page` of `model` into `frame` once `after`, the release point of what the frame holds now, has been enqueued.
// The page that the frame held is thereby evicted.
struct Fetch {
  ModelId model = 0;
  PageId page = 0;
  FrameId frame = 0;
  ReleasePoint after;
};

// A frame-sized place in the offload area, the part of a rank's host memory that caches are offloaded to.
using HostSlot = std::uint32_t;

// Changes the ordered list of frames that is a model's cache space, or offloads all of it to host memory or reloads it.
// A model's cache is wholly in frames or wholly in slots, and no pass of the model runs while it is in slots.
struct CacheChange {
  enum Kind : std::uint8_t {
    kPlain,    // first `taken` frames leave the list's end, then `added` join it
    kOffload,  // the whole list, `taken` frames, leaves; frame i of it is copied to slots[i]
    kReload,  // `added` become the list; added[i] is filled from slots[i], the model's slots in the order of offloading
    kDropOffloaded,  // what the model's slots hold is forgotten
  };
  ModelId model = 0;
  std::uint32_t taken = 0;
  std::vector<FrameId> added = {};
  Kind kind = kPlain;
  std::vector<HostSlot> slots = {};
  // Of an earlier step. kOffload: the cache's release point. kReload: the latest release point of what `added` hold.
  ReleasePoint after = {};
};

// What the ranks of one stage do for a step. Cache changes happen before the pass, and before the fetches are counted;
// their copies are on the copy stream before those of the fetches. So a fetch, a reload or an addition that is written
// behind an offload may have the offloaded frames (and an offload the slots of a reload before it) without waiting for
// anything.
struct StagePlan {
  std::vector<CacheChange> caches;
  std::vector<Fetch> fetches;
};

// The tokens of one sequence that a pass computes: positions [start, start + tokens.size()). An encoder's sequence is
// one chunk; an embedder's has its result with the last one. A picture has one token for its class token and one for
// each patch, whose values do not matter.
struct SequenceChunk {
  enum Output : std::uint8_t {
    kNone,
    kLast,             // logits of the last token's row
    kAll,              // of every token's row, with the next token's logit (prompt scoring)
    kPooledEmbedding,  // encoders, embedders: the sequence's embedding
    kScores,           // encoders, embedders: the scores of the model's classes
  };
  SequenceId sequence = 0;
  std::uint32_t start = 0;
  std::vector<TokenId> tokens;
  std::vector<std::uint32_t> new_blocks;  // logical cache blocks that join the sequence's list
  Output output = kNone;
  std::uint8_t top = 0;                           // candidates wanted a row beyond the best one
  bool long_factors = false;                      // longrope: its long factors rotate the sequence, and did so before
  TokenId after_last = -1;                        // with kAll: the token that follows the chunk, -1 if unknown
  std::uint32_t values = 0;                       // with kPooledEmbedding and kScores: how many
  std::optional<SamplingParams> sampling = {};    // with a sequence's first chunk, where it samples
  std::vector<std::int32_t> token_type_ids = {};  // [tokens]; empty: all 0
  std::vector<float> patches = {};  // images: [tokens, patch_values], zeros for the class token; only the first
                                    // stage gets them
  // Whose the sequence is, where that is another model than the step's: a rider.
  std::optional<ModelId> rider = {};
};

// Chunks of a pass that stand side by side and are of one model.
struct ModelChunks {
  ModelId model = 0;
  std::span<const SequenceChunk> chunks;
};

struct Step {
  enum Kind : std::uint8_t { kRun, kShutdown, kStop };  // the last two: nothing follows, all done or not
  StepId id = 0;
  Kind kind = kRun;
  ModelId model = 0;
  float predicted_s = 0;              // from when it is sent until it has been executed, as rank 0 thinks
  std::vector<SequenceId> closed;     // sequences that end before this step; their blocks are free
  std::vector<SequenceChunk> chunks;  // empty: no forward pass
  std::vector<StagePlan> stages;      // on a rank: only its own stage's entry is filled
  std::uint64_t digest = 0;           // of the bytes that it came in; not sent, 0 where it was made

  // Rows that get logits, in order: what the last stage's report holds.
  int logit_rows() const;
  // Chunks with a vector or scores, in order, and how many values they have together.
  int encoded_rows() const;
  std::size_t encoded_values() const;
  int rows() const;

  ModelId model_of(const SequenceChunk& chunk) const { return chunk.rider.value_or(model); }
  // The chunks of the step's model, then those of each rider.
  std::vector<ModelChunks> by_model() const;

  // Guides (SamplingParams::guide) travel once each, however many sequences begin with them; a decoded step's chunks
  // share their texts.
  std::vector<std::byte> encode(int stage) const;
  // Error{kInternal} for bytes that are not a step of a mesh of `stages` stages.
  static Step decode(std::span<const std::byte> bytes, int stage, int stages);
};

}  // namespace computron
