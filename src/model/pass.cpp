#include "computron/model/pass.h"

#include <algorithm>
#include <utility>

namespace computron {

Workspace::Sizes Workspace::Sizes::of(const ShardPlan& plan, const Ops& ops, int max_rows) {
  const auto rows = static_cast<std::size_t>(ops.padded_rows(max_rows));
  const auto bytes = [rows](int columns) { return round_up(rows * columns * sizeof(float), std::size_t{4096}); };
  const ModelConfig& c = plan.config;
  const int attention_width = plan.heads * c.head_dim;
  const int fused_width = (plan.heads + 2 * plan.kv_heads) * c.head_dim;
  return {.hidden = bytes(c.hidden),
          .partial = bytes(c.hidden),
          .input = bytes(c.hidden),
          .inner = bytes(std::max(attention_width, plan.ffn)),
          .fused = bytes(fused_width),
          .logits = round_up(static_cast<std::size_t>(ops.padded_rows(kLogitRows)) * plan.vocab * sizeof(float),
                             std::size_t{4096}),
          .bias = round_up(std::max(fused_width, plan.ffn) * sizeof(float), std::size_t{4096})};
}

Workspace::Sizes Workspace::Sizes::max(const Sizes& other) const {
  return {.hidden = std::max(hidden, other.hidden),
          .partial = std::max(partial, other.partial),
          .input = std::max(input, other.input),
          .inner = std::max(inner, other.inner),
          .fused = std::max(fused, other.fused),
          .logits = std::max(logits, other.logits),
          .bias = std::max(bias, other.bias)};
}

Workspace::Workspace(Device& device, const Sizes& sizes) : buffer_(device.allocate(sizes.total(), "workspace")) {
  std::byte* next = buffer_->data();
  const auto take = [&next](std::size_t bytes) { return std::exchange(next, next + bytes); };
  hidden_ = take(sizes.hidden);
  partial_ = take(sizes.partial);
  input_ = take(sizes.input);
  inner_ = take(sizes.inner);
  fused_ = take(sizes.fused);
  logits_ = take(sizes.logits);
  bias_ = take(sizes.bias);
}

}  // namespace computron
