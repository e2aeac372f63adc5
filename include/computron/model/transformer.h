// One stage of a transformer on one rank, whatever the family: the configuration says which layers it has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "computron/model/layers.h"

namespace computron {

class Transformer {
 public:
  // Borrows the layout. `t` is this rank's place in the stage.
  Transformer(const ShardLayout& layout, int t);

  // Tells the operations what host memory forward() will work with: before it, and once for all of its calls with the
  // same batch. Returns what the launches of forward() depend on beside numbers of rows and the places of pages and
  // scratch memory (Ops::begin_pass). Ops::end_pass() goes with it.
  std::string begin_pass(const Pass& pass, const Outputs& out) const;

  // The stage's part of a forward pass. On the first stage `hidden` [M, hidden] is filled from the batch, elsewhere it
  // holds what the stage before computed. On the last stage `out` is filled when the stream has run.
  void forward(Pass& pass, Activations hidden, const Outputs& out);

 private:
  bool causal_ = true;
  std::optional<Embedding> embedding_;
  std::optional<RotaryEmbedding> rotary_;
  std::vector<TransformerBlock> blocks_;
  Norm final_norm_;
  std::optional<Head> head_;               // decoders
  std::optional<PooledHead> pooled_head_;  // encoders and embedders
};

}  // namespace computron
