#include "computron/model/transformer.h"

namespace computron {

Transformer::Transformer(const ShardLayout& layout, int t) {
  const ModelConfig& config = layout.plan.config;
  causal_ = config.causal;
  if (layout.plan.embeds()) embedding_.emplace(layout, t);
  if (config.positions == PositionKind::kRotary) rotary_.emplace(config);
  for (int layer = 0; layer < layout.plan.layers; ++layer) blocks_.emplace_back(layout, layer, t);
  if (!layout.plan.has_head()) return;
  final_norm_ = Norm(layout, "final_norm");
  if (config.pools()) {
    pooled_head_.emplace(layout);
  } else {
    head_.emplace(layout, t);
  }
}

std::string Transformer::begin_pass(const Pass& pass, const Outputs& out) const {
  const Batch& batch = pass.batch;
  PassArrays arrays;
  arrays.add_input(std::span(batch.tokens));
  arrays.add_input(std::span(batch.positions));
  arrays.add_input(std::span(batch.token_type_ids));
  arrays.add_input(std::span(batch.output_rows));
  arrays.add_input(std::span(batch.top));
  arrays.add_input(std::span(batch.targets));
  arrays.add_input(std::span(batch.real_rows));
  if (rotary_) rotary_->add_to(arrays);
  for (const TransformerBlock& block : blocks_) block.add_to(arrays);
  arrays.sequences = batch.sequences;
  arrays.cache = &pass.cache;
  arrays.rows = batch.rows();
  arrays.causal = causal_;
  if (head_) head_->add_to(arrays, batch, out);
  std::string launches = pass.ops.begin_pass(arrays);
  // Longrope rotates runs of sequences (RotaryEmbedding::forward).
  if (!launches.empty()) launches.append(batch.long_factors.begin(), batch.long_factors.end());
  return launches;
}

void Transformer::forward(Pass& pass, Activations hidden, const Outputs& out) {
  pass.ops.upload_inputs(pass.stream);
  if (embedding_) {
    const TraceSpan span(pass.trace, TraceTrack::kCompute, "embedding");
    embedding_->forward(pass, hidden);
  }
  if (rotary_) rotary_->forward(pass);
  ResidualStream h(hidden);
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const TraceSpan span(pass.trace, TraceTrack::kCompute, "layer", {}, {"layer", layer});
    blocks_[layer].forward(pass, h);
  }
  if (!head_ && !pooled_head_) return h.settle(pass);
  const TraceSpan span(pass.trace, TraceTrack::kCompute, "head");
  final_norm_.present() ? h.normalise(pass, final_norm_, hidden) : h.settle(pass);
  if (head_) head_->forward(pass, hidden, out);
  if (pooled_head_) pooled_head_->forward(pass, hidden, out);
}

}  // namespace computron
