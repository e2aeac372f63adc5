// One stage of a transformer on one rank, whatever the family: the configuration says which layers it has.
#pragma once

#include <optional>
#include <vector>

#include "computron/model/layers.h"

namespace computron {

class Transformer {
 public:
  // Borrows the layout. `t` is this rank's place in the stage.
  Transformer(const ShardLayout& layout, int t);

  // The stage's part of a forward pass. On the first stage `hidden` [M, hidden] is filled from the batch, elsewhere it
  // holds what the stage before computed. On the last stage `out` is filled when the stream has run.
  void forward(Pass& pass, Activations hidden, const Outputs& out);

 private:
  std::optional<Embedding> embedding_;
  std::optional<RotaryEmbedding> rotary_;
  std::vector<TransformerBlock> blocks_;
  Norm final_norm_;
  std::optional<Head> head_;              // decoders
  std::optional<Classifier> classifier_;  // encoders
};

}  // namespace computron
