// One stage of a transformer on one rank.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "computron/model/layers.h"

namespace computron {

class Transformer {
 public:
  // ConfigError naming the first thing the configuration asks for that no layer here computes.
  static void check_supported(const ModelConfig& config);

  // Borrows the image. `t` is this rank's place in the stage. Throws what check_supported() throws.
  Transformer(const Image& image, int t);

  // The stage's part of a forward pass. On the first stage `hidden` [M, hidden] is filled from the tokens, elsewhere
  // it holds what the stage before computed. On the last stage logits[R] are filled when the stream has run.
  void forward(Pass& pass, Activations hidden, LogitSummary* logits);

 private:
  std::optional<Embedding> embedding_;
  std::vector<TransformerBlock> blocks_;
  std::optional<Head> head_;
};

}  // namespace computron
