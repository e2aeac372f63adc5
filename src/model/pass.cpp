#include "computron/model/pass.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace computron {
namespace {

constexpr std::size_t Workspace::Sizes::*kParts[] = {
    &Workspace::Sizes::hidden,       &Workspace::Sizes::partial,       &Workspace::Sizes::input,
    &Workspace::Sizes::inner,        &Workspace::Sizes::fused,         &Workspace::Sizes::angles,
    &Workspace::Sizes::logits,       &Workspace::Sizes::bias,          &Workspace::Sizes::gathered,
    &Workspace::Sizes::gathered_out, &Workspace::Sizes::mixture,       &Workspace::Sizes::k_slice,
    &Workspace::Sizes::routes,       &Workspace::Sizes::window_angles, &Workspace::Sizes::gates,
    &Workspace::Sizes::low_rank};

std::size_t bytes_for(int rows, int columns) {
  return round_up(static_cast<std::size_t>(rows) * columns * sizeof(float), std::size_t{4096});
}

// The most that the modules of a weight have together, of which an adapter changes some.
int ranks_of_a_weight(const ShardPlan& plan) {
  int most = 0, ranks = 0;
  for (const ShardTensor& tensor : plan.tensors) {
    if (!tensor.of_adapter()) ranks = 0;
    if (tensor.name.find(".lora_a") != std::string::npos) ranks += tensor.columns;
    most = std::max(most, ranks);
  }
  return most;
}

}  // namespace

void Batch::add_pooled(Pooling pooling, std::size_t index) {
  const SequenceRows& sequence = sequences[index];
  const int last = sequence.row + sequence.rows - 1;
  output_rows.push_back(pooling == Pooling::kFirst ? sequence.row : last);
  if (pooling != Pooling::kMean) return;
  means.outputs.push_back(static_cast<std::int32_t>(means.outputs.size()));
  means.finished.push_back(static_cast<std::int32_t>(index));
  means.reciprocals.push_back(1.0f / static_cast<float>(sequence.start + sequence.rows));
}

void Batch::sum_sequences() {
  means.ones.assign(static_cast<std::size_t>(rows()), 1.0f);
  for (std::size_t index = 0; index < sequences.size(); ++index) {
    means.sequence_of_row.resize(means.sequence_of_row.size() + static_cast<std::size_t>(sequences[index].rows),
                                 static_cast<std::int32_t>(index));
  }
}

Batch Batch::padded_to(int rows, int outputs) const {
  Batch padded = *this;
  const auto all = static_cast<std::size_t>(rows), wanted = static_cast<std::size_t>(outputs);
  padded.tokens.resize(all, 0);
  padded.positions.resize(all, 0);
  padded.token_type_ids.resize(all, 0);
  padded.output_rows.resize(wanted, rows - 1);
  padded.top.resize(wanted, 1);
  padded.targets.resize(wanted, -1);
  if (!sampling.empty()) padded.sampling.resize(wanted);
  padded.real_rows = {this->rows()};
  return padded;
}

Workspace::Sizes Workspace::Sizes::of(const ShardPlan& plan, const Ops& ops, int max_rows) {
  const ModelConfig& c = plan.config;
  const int rows = ops.padded_rows(max_rows);
  int width = std::max(c.hidden, c.token_columns());
  for (const DenseLayer& layer : c.dense) width = std::max(width, layer.out);
  const int all_heads = c.query_key_norm == QueryKeyNorm::kWidth ? c.heads + c.kv_heads : 0;
  const bool rotary = c.positions == PositionKind::kRotary;
  const int ups = c.gated_mlp ? 2 : 1, ffn = std::max(plan.ffn, plan.shared_ffn);
  const int fused = std::max({(plan.heads + 2 * plan.kv_heads) * c.head_dim, c.experts, c.classes, c.patch_values()});
  const int ranks = ranks_of_a_weight(plan);  // a product that it changes is complete before its activation, in `fused`
  // What goes through experts: where the device routes, every row as often as it chooses one.
  const int pairs = ops.routes_experts() ? rows * c.experts_per_token : rows;
  const int expert_biases = c.experts > 0 && c.mlp_bias ? c.experts * (ups * plan.expert_ffn + c.hidden) : 0;
  const auto for_mlps = [&](int columns, int parts) {
    return std::max(bytes_for(rows, columns * ffn / parts), bytes_for(pairs, columns * plan.expert_ffn / parts));
  };
  return {.hidden = bytes_for(rows, c.hidden),
          .partial = bytes_for(rows, std::max(width, all_heads)),
          .input = bytes_for(rows, std::max(width, c.patch_values())),
          .inner = std::max(bytes_for(rows, plan.heads * c.head_dim), for_mlps(1, 1)),
          .fused = std::max({bytes_for(rows, fused), for_mlps(ups, 1), bytes_for(rows, ranks > 0 ? width : 0)}),
          .angles = rotary ? bytes_for(rows, c.rotated()) : 0,
          .window_angles = rotary && c.rope_window_theta > 0 ? bytes_for(rows, c.rotated()) : 0,
          .logits = bytes_for(ops.padded_rows(kLogitRows), plan.vocab),
          .bias = bytes_for(1, std::max({fused, ups * ffn, width, expert_biases})),
          .gathered = c.experts > 0 ? bytes_for(rows, c.hidden) : 0,
          .gathered_out = c.experts > 0 ? bytes_for(pairs, c.hidden) : 0,
          .mixture = c.experts > 0 ? bytes_for(rows, c.hidden) : 0,
          .k_slice = plan.k_slices > 1 ? std::max(bytes_for(rows, plan.heads * c.head_dim / plan.k_slices),
                                                  for_mlps(1, plan.k_slices))
                                       : 0,
          .routes = c.experts > 0 ? round_up(ops.routing_bytes(rows, c.routing()), std::size_t{4096}) : 0,
          .gates = c.shared_ffn > 0 ? bytes_for(rows, 1) : 0,
          .low_rank = bytes_for(rows, kLowRankChains * ranks),
          .k_slices = plan.k_slices};
}

Workspace::Sizes Workspace::Sizes::max(const Sizes& other) const {
  Sizes larger;
  for (const auto part : kParts) larger.*part = std::max(this->*part, other.*part);
  larger.k_slices = std::max(k_slices, other.k_slices);
  return larger;
}

std::size_t Workspace::Sizes::total() const {
  std::size_t sum = 0;
  for (const auto part : kParts) sum += this->*part;
  return sum + (levels() - 1) * partial + (k_slices - 1) * mixture;
}

int Workspace::Sizes::levels() const { return 1 + std::bit_width(static_cast<unsigned>(k_slices - 1)); }

Workspace::Workspace(Device& device, const Sizes& sizes)
    : buffer_(device.allocate(sizes.total(), "workspace")), sizes_(sizes) {
  std::byte* next = buffer_->data();
  const auto take = [&next](std::size_t bytes, const char* overflow) {
    return Part{std::exchange(next, next + bytes), bytes, overflow};
  };
  hidden_ = take(sizes.hidden, "workspace.hidden is too short");
  partial_ = take(sizes.partial * sizes.levels(), "workspace.partial is too short");
  input_ = take(sizes.input, "workspace.input is too short");
  inner_ = take(sizes.inner, "workspace.inner is too short");
  fused_ = take(sizes.fused, "workspace.fused is too short");
  angles_ = take(sizes.angles, "workspace.angles is too short");
  window_angles_ = take(sizes.window_angles, "workspace.window_angles is too short");
  logits_ = take(sizes.logits, "workspace.logits is too short");
  bias_ = take(sizes.bias, "workspace.bias is too short");
  gathered_ = take(sizes.gathered, "workspace.gathered is too short");
  gathered_out_ = take(sizes.gathered_out, "workspace.gathered_out is too short");
  mixture_ = take(sizes.mixture * sizes.k_slices, "workspace.mixture is too short");
  k_slice_ = take(sizes.k_slice, "workspace.k_slice is too short");
  routes_ = take(sizes.routes, "workspace.routes is too short");
  gates_ = take(sizes.gates, "workspace.gates is too short");
  low_rank_ = take(sizes.low_rank, "workspace.low_rank is too short");
}

}  // namespace computron
