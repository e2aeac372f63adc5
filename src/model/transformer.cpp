#include "computron/model/transformer.h"

namespace computron {

Transformer::Transformer(const ShardLayout& layout, int t) {
  const ModelConfig& config = layout.plan.config;
  if (layout.plan.embeds()) embedding_.emplace(layout, t);
  if (config.positions == PositionKind::kRotary) rotary_.emplace(config);
  for (int layer = 0; layer < layout.plan.layers; ++layer) blocks_.emplace_back(layout, layer, t);
  if (!layout.plan.has_head()) return;
  final_norm_ = Norm(layout, "final_norm");
  if (config.causal) {
    head_.emplace(layout, t);
  } else {
    classifier_.emplace(layout);
  }
}

void Transformer::forward(Pass& pass, Activations hidden, const Outputs& out) {
  if (embedding_) {
    const TraceSpan span(pass.trace, TraceTrack::kCompute, "embedding");
    embedding_->forward(pass, hidden);
  }
  if (rotary_) rotary_->forward(pass);
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const TraceSpan span(pass.trace, TraceTrack::kCompute, "layer", {}, {"layer", layer});
    blocks_[layer].forward(pass, hidden);
  }
  if (!head_ && !classifier_) return;
  const TraceSpan span(pass.trace, TraceTrack::kCompute, "head");
  if (final_norm_.present()) final_norm_.forward(pass, hidden, hidden);
  if (head_) head_->forward(pass, hidden, out);
  if (classifier_) classifier_->forward(pass, hidden, out.pooled_embeddings, out.scores);
}

}  // namespace computron
