#include "computron/model/transformer.h"

#include <fmt/format.h>

namespace computron {

void Transformer::check_supported(const ModelConfig& config) {
  const auto refuse = [&config](const char* what) {
    throw ConfigError(fmt::format("architecture '{}' has {}, which this program does not compute", config.architecture,
                                  what));
  };
  if (config.gated_mlp) refuse("gated MLPs");
  if (config.positions != PositionKind::kLearned) refuse("rotary positions");
}

Transformer::Transformer(const Image& image, int t) {
  check_supported(image.plan.config);
  if (image.plan.embeds()) embedding_.emplace(image, t);
  for (int layer = 0; layer < image.plan.layers; ++layer) blocks_.emplace_back(image, layer);
  if (image.plan.has_head()) head_.emplace(image, t);
}

void Transformer::forward(Pass& pass, Activations hidden, LogitSummary* logits) {
  if (embedding_) {
    const TraceSpan span(pass.trace, TraceTrack::kCompute, "embedding");
    embedding_->forward(pass, hidden);
  }
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const TraceSpan span(pass.trace, TraceTrack::kCompute, "layer", {}, {"layer", layer});
    blocks_[layer].forward(pass, hidden);
  }
  if (head_) {
    const TraceSpan span(pass.trace, TraceTrack::kCompute, "head");
    head_->forward(pass, hidden, logits);
  }
}

}  // namespace computron
