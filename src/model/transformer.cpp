#include "computron/model/transformer.h"

namespace computron {

Transformer::Transformer(const Image& image, int t) {
  if (image.plan.embeds()) embedding_.emplace(image, t);
  for (int layer = 0; layer < image.plan.layers; ++layer) blocks_.emplace_back(image, layer);
  if (image.plan.has_head()) head_.emplace(image, t);
}

void Transformer::forward(Pass& pass, Activations hidden, LogitSummary* logits) {
  if (embedding_) embedding_->forward(pass, hidden);
  for (TransformerBlock& block : blocks_) block.forward(pass, hidden);
  if (head_) head_->forward(pass, hidden, logits);
}

}  // namespace computron
