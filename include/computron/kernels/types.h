// Plain types that the kernels of every device take, and that the operations hand on to them. They know of no device,
// stream or event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "computron/base/types.h"

namespace computron {

// kQuickGelu: x σ(1.702 x) (Hendrycks and Gimpel 2016).
enum class Activation : std::uint8_t { kNone, kRelu, kGeluTanh, kGeluErf, kSilu, kTanh, kQuickGelu };
// kRmsNormPlusOne: the stored weight is what is to be added to one, in float32 (Gemma).
enum class NormKind : std::uint8_t { kLayerNorm, kRmsNorm, kRmsNormPlusOne };

// How a gated MLP puts its two products together: activation(gate) × (up + offset); with a limit of
// min(gate, limit) and of up between -limit and limit.
struct Gate {
  Activation activation = Activation::kNone;
  float limit = 0;  // 0: none
  float offset = 0;

  constexpr Gate(Activation of, float limit_of_both = 0, float offset_of_up = 0)
      : activation(of), limit(limit_of_both), offset(offset_of_up) {}
};

// Which experts' logits the weights of the chosen ones are the softmax over: their own, so that they sum to one, or
// those of all experts.
enum class RouterSoftmax : std::uint8_t { kChosen, kAll };

// How a router chooses for each row: the `per_token` of `experts` with the largest logits, ties to the smaller number.
struct RoutingRule {
  int experts = 0;
  int per_token = 0;
  RouterSoftmax softmax = RouterSoftmax::kChosen;
};

// Where the key/value cache of one model lies in a rank's pool.
// Slot (block, layer) is number block × layers + layer; it lies in frame frames[slot / slots_per_frame] at
// (slot % slots_per_frame) × slot_bytes. A slot is keys, then values, [2][kv_heads][block_tokens × head_dim] of
// `dtype`; how a head's part is ordered is the device's business.
struct KvCacheView {
  std::byte* pool = nullptr;
  std::size_t frame_bytes = 0;
  std::span<const FrameId> frames;
  int slots_per_frame = 0;
  std::size_t slot_bytes = 0;
  int layers = 0;    // of this stage
  int kv_heads = 0;  // of this rank
  int head_dim = 0;
  int block_tokens = 0;
  DType dtype = DType::kF32;

  std::byte* slot(std::uint32_t block, int layer) const {
    const std::size_t index = static_cast<std::size_t>(block) * layers + layer;
    return pool + frames[index / slots_per_frame] * frame_bytes + (index % slots_per_frame) * slot_bytes;
  }
};

// Consecutive rows of a batch that belong to one sequence: batch rows [row, row + rows) are its tokens at positions
// [start, start + rows); blocks[i] holds positions [i × block_tokens, (i + 1) × block_tokens).
struct SequenceRows {
  int row = 0;
  int rows = 0;
  int start = 0;
  std::span<const std::uint32_t> blocks;
};

struct AttentionShape {
  int heads = 0;     // query heads of this rank
  int kv_heads = 0;  // of this rank; query head h uses kv head h / (heads / kv_heads)
  int head_dim = 0;
  float scale = 1;  // multiplies q·k
  bool causal = true;
  int window = 0;      // key j is visible to query i iff i - j < window, where not causal |i - j|; 0: no window
  float soft_cap = 0;  // scores are soft_cap × tanh(score / soft_cap); 0: as they are
};

// The columns of logits: column c is token first_token + c for c < real, and padding behind. A row is cut into `slices`
// equal slices, and each is reduced by itself.
struct LogitColumns {
  TokenId first_token = 0;
  int real = 0;
  int slices = 1;
};

// The top-k of one slice of a row of logits, and its log-sum-exp as max and sum_exp. Slices of all ranks together give
// the greedy token and log-probabilities.
struct TopLogits {
  static constexpr int kTop = 21;
  TokenId tokens[kTop];  // best first; ties: smaller token first
  float logits[kTop];    // as many as min(top, real columns) are valid
  std::int32_t count = 0;
  float max = 0;           // over real columns
  double sum_exp = 0;      // Σ exp(logit − max)
  float target_logit = 0;  // logit of the asked-for token, if its row lies here
  std::uint8_t has_target = 0;
  std::uint8_t finite = 1;  // 0: a NaN or infinity among the real columns
};

}  // namespace computron
