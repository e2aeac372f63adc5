#include "computron/model/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace computron {
namespace {

// partial [M, n] f32 = its sum over the tp ranks of the stage.
void sum_over_ranks(Pass& pass, Activations partial) {
  pass.all_reduce.sum(pass.stream, reinterpret_cast<float*>(partial.data),
                      static_cast<std::size_t>(partial.rows) * partial.columns);
}

// Sums terms [M, hidden] that are computed one after the other, in the fixed tree ((0 + 1) + (2 + 3)) + ...: like a
// binary counter, it adds two equal halves as soon as the second is there.
class TreeSum {
 public:
  // After the last term, their number being a power of two, `total` holds the sum. It is workspace.partial(0).
  TreeSum(Pass& pass, Activations total) : pass_(pass), total_(total) {}

  // The caller puts the next term there, and calls add().
  Activations next() const { return at(depth_); }
  void add() {
    ++depth_;
    for (int term = terms_++; (term & 1) != 0; term >>= 1) {
      --depth_;
      pass_.ops.add_residual(pass_.stream, at(depth_), /*bias=*/{}, at(depth_ - 1));
    }
  }

 private:
  Activations at(int level) const { return pass_.work.partial(total_.rows, total_.columns, level); }

  Pass& pass_;
  Activations total_;
  int terms_ = 0;
  int depth_ = 0;  // sums that wait for their other half
};

AttentionShape attention_shape(const ShardPlan& plan, int layer) {
  const ModelConfig& c = plan.config;
  return {.heads = plan.heads,
          .kv_heads = plan.kv_heads,
          .head_dim = c.head_dim,
          .scale = c.attention_scale > 0 ? c.attention_scale : 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
          .causal = c.causal,
          .window = c.layer(layer).window,
          .soft_cap = c.attention_soft_cap};
}

std::variant<Mlp, Experts> make_mlp(const ShardLayout& layout, const std::string& prefix, int layer_in_stage, int t) {
  const ShardPlan& plan = layout.plan;
  if (plan.config.layer(plan.first_layer + layer_in_stage).experts) return Experts(layout, prefix, t);
  return Mlp(layout, prefix);
}

// out = activation(x Wᵀ + bias) for W = weight [n, k], x [M, k], out [M, n].
void multiply_parts(Pass& pass, Activations x, TensorRef& weight, const Vector& bias, Activation activation,
                    Activations out, bool release = true) {
  weight.for_each_weight(
      pass.pages, [&](const Weight& part) { pass.ops.gemm(pass.stream, x, part, bias, activation, out); }, release);
}

// Columns of x [M, in/tp] that belong to a K slice of `columns` of them, in workspace.k_slice.
Activations slice_of(Pass& pass, Activations x, int k_slice, int columns) {
  const Activations own = pass.work.k_slice(x.rows, columns, x.dtype);
  pass.ops.copy_columns(pass.stream, x, k_slice * columns, own);
  return own;
}

// x [M, hidden] f32 or `dtype`, as `dtype`; a copy is in workspace.gathered.
Activations as_input(Pass& pass, Activations x, DType dtype) {
  if (x.dtype == dtype) return x;
  const Activations own = pass.work.gathered(x.rows, x.columns, dtype);
  pass.ops.convert(pass.stream, x, own);
  return own;
}

// `in` itself where `out` has its type, otherwise `out`, filled with it.
Activations converted(Pass& pass, Activations in, Activations out) {
  if (in.dtype == out.dtype) return in;
  pass.ops.convert(pass.stream, in, out);
  return out;
}

}  // namespace

Linear::Linear(const ShardLayout& layout, const std::string& prefix, Activation activation)
    : activation_(activation),
      weight_(TensorRef::find(layout, prefix + ".weight")),
      bias_(TensorRef::find(layout, prefix + ".bias")),
      adapter_(layout, prefix + ".weight") {}

void Linear::forward(Pass& pass, Activations x, Activations out, const Vector& bias) {
  const Vector added = bias_.present() ? own_bias(pass) : bias;
  if (!adapter_.changes(pass)) return multiply_parts(pass, x, weight_, added, activation_, out);
  const bool in_place = activation_ == Activation::kNone && out.dtype == DType::kF32;
  const Activations sum = in_place ? out : pass.work.fused(x.rows, this->out());
  multiply_parts(pass, x, weight_, added, Activation::kNone, sum);
  adapter_.add(pass, x, sum);
  if (!in_place) pass.ops.activate(pass.stream, activation_, sum, out);
}

// Where it lies, if it stays there until the weight goes, whose pages come behind its own; else a copy.
Vector Linear::own_bias(Pass& pass) {
  if (pass.pages.at_rest()) return bias_.vector(pass.pages);
  const Activations copy = pass.work.bias(out());
  pass.ops.copy_vector(pass.stream, bias_.vector(pass.pages), copy);
  bias_.release(pass.pages);
  return {reinterpret_cast<const float*>(copy.data), /*ready=*/nullptr, copy.columns};
}

RowParallelLinear::RowParallelLinear(const ShardLayout& layout, const std::string& prefix)
    : bias_(TensorRef::find(layout, prefix + ".bias")) {
  const int k_slices = layout.plan.k_slices;
  for (int k_slice = 0; k_slice < k_slices; ++k_slice) {
    const std::string ending = k_slices > 1 ? fmt::format(".{}", k_slice) : "", weight = prefix + ".weight";
    weights_.push_back(TensorRef::find(layout, weight + ending));
    adapters_.emplace_back(layout, weight, ending);
    ensure(weights_.back().present(), "linear layer without a weight");
  }
}

BranchOutput RowParallelLinear::forward(Pass& pass, Activations x) {
  const Activations partial = pass.work.partial(x.rows, weights_.front().rows());  // [M, hidden]
  TreeSum sum(pass, partial);
  for (int k_slice = 0; k_slice < k_slices(); ++k_slice) {
    multiply(pass, x, k_slice, sum.next());
    sum.add();
  }
  sum_over_ranks(pass, partial);
  return {.sum = partial, .bias = &bias_};
}

void RowParallelLinear::multiply(Pass& pass, Activations x, int k_slice, Activations out, const Vector& bias) {
  TensorRef& weight = weights_[static_cast<std::size_t>(k_slice)];
  if (k_slices() > 1) x = slice_of(pass, x, k_slice, weight.columns());
  multiply_parts(pass, x, weight, bias, Activation::kNone, out);
  if (adapter(k_slice).changes(pass)) adapter(k_slice).add(pass, x, out);
}

TokenEmbedding::TokenEmbedding(const ShardLayout& layout, int t)
    : first_token_(layout.plan.first_token(t)),
      scale_(layout.plan.config.embedding_scale),
      tokens_(TensorRef::find(layout, "embedding.tokens.weight")),
      projection_(layout, "embedding.projection") {}

void TokenEmbedding::forward(Pass& pass, Activations hidden) {
  projection_.present() ? look_up_projected(pass, hidden) : look_up(pass, hidden);
  if (scale_ != 1) pass.ops.scale(pass.stream, scale_, hidden);
}

void TokenEmbedding::look_up_projected(Pass& pass, Activations hidden) {
  const Activations narrow = pass.work.partial(hidden.rows, tokens_.columns());                      // [M, width]
  const Activations x = pass.work.input(hidden.rows, tokens_.columns(), projection_.input_dtype());  // [M, width]
  look_up(pass, narrow);
  pass.ops.convert(pass.stream, narrow, x);
  projection_.forward(pass, x, hidden);
}

void TokenEmbedding::look_up(Pass& pass, Activations out) {
  tokens_.for_each_weight(
      pass.pages, [&](const Weight& part) { pass.ops.embed(pass.stream, pass.batch.tokens, first_token_, part, out); });
  sum_over_ranks(pass, out);
}

PatchEmbedding::PatchEmbedding(const ShardLayout& layout)
    : patch_values_(layout.plan.config.patch_values()),
      patches_(layout, "embedding.patches"),
      class_token_(TensorRef::find(layout, "embedding.class_token")) {}

void PatchEmbedding::forward(Pass& pass, Activations hidden) {
  const Activations values = pass.work.fused(hidden.rows, patch_values_);                     // [M, patch_values]
  const Activations x = pass.work.input(hidden.rows, patch_values_, patches_.input_dtype());  // [M, patch_values]
  pass.ops.copy_from_host(pass.stream, pass.batch.patches.data(), values);
  pass.ops.convert(pass.stream, values, x);
  patches_.forward(pass, x, hidden);
  const Vector class_token = class_token_.vector(pass.pages);
  for (const SequenceRows& sequence : pass.batch.sequences) {
    pass.ops.copy_vector(pass.stream, class_token, hidden.row_range(sequence.row, 1));
  }
  class_token_.release(pass.pages);
}

Embedding::Embedding(const ShardLayout& layout, int t)
    : position_offset_(layout.plan.config.position_offset),
      token_types_(TensorRef::find(layout, "embedding.types.weight")),
      positions_(TensorRef::find(layout, "embedding.positions.weight")),
      norm_(layout, "embedding.norm") {
  if (layout.plan.config.takes_images()) {
    patches_.emplace(layout);
  } else {
    tokens_.emplace(layout, t);
  }
}

void Embedding::forward(Pass& pass, Activations hidden) {
  patches_ ? patches_->forward(pass, hidden) : tokens_->forward(pass, hidden);
  if (token_types_.present()) add(pass, token_types_, pass.batch.token_type_ids, /*offset=*/0, hidden);
  if (positions_.present()) add(pass, positions_, pass.batch.positions, position_offset_, hidden);
  if (norm_.present()) norm_.forward(pass, hidden, hidden);
}

void Embedding::add(Pass& pass, TensorRef& table, std::span<const std::int32_t> rows, int offset, Activations hidden) {
  table.for_each_table(pass.pages,
                       [&](const Table& part) { pass.ops.add_rows(pass.stream, rows, offset, part, hidden); });
}

HeadsNorm::HeadsNorm(const ShardLayout& layout, const std::string& prefix, int t)
    : kind_(layout.plan.config.norm),
      epsilon_(layout.plan.config.norm_epsilon),
      query_heads_(layout.plan.config.heads),
      weight_(TensorRef::find(layout, prefix + ".query_key_norm.weight")) {
  const ShardPlan& plan = layout.plan;
  if (plan.config.query_key_norm != QueryKeyNorm::kWidth) return;
  const auto own = [](int head, int first, int count) { return head >= first && head < first + count; };
  for (int head = 0; head < plan.config.heads; ++head) {
    const int first = t * plan.heads;
    columns_.push_back(own(head, first, plan.heads) ? head - first : -1);
  }
  for (int head = 0; head < plan.config.kv_heads; ++head) {  // of copies the first one counts
    const int copy = head * plan.kv_copies, first = t * plan.kv_heads;
    columns_.push_back(own(copy, first, plan.kv_heads) ? plan.heads + copy - first : -1);
  }
}

void HeadsNorm::forward(Pass& pass, const AttentionShape& shape, Activations qkv) {
  if (!weight_.present()) return;
  if (columns_.empty()) {
    pass.ops.norm_heads(pass.stream, kind_, shape, weight_.vector(pass.pages), epsilon_, qkv);
  } else {
    const Activations of_heads = squares(pass, shape, qkv);
    pass.ops.norm_width(pass.stream, kind_, shape, of_heads, query_heads_, weight_.vector(pass.pages), epsilon_, qkv);
  }
  weight_.release(pass.pages);
}

Activations HeadsNorm::squares(Pass& pass, const AttentionShape& shape, Activations qkv) {
  const Activations squares = pass.work.partial(qkv.rows, static_cast<int>(columns_.size()));
  pass.ops.square_heads(pass.stream, shape, qkv, columns_, squares);
  sum_over_ranks(pass, squares);
  return squares;
}

SelfAttention::SelfAttention(const ShardLayout& layout, const std::string& prefix, int layer_in_stage, int t)
    : shape_(attention_shape(layout.plan, layout.plan.first_layer + layer_in_stage)),
      rotated_(layout.plan.config.positions == PositionKind::kRotary ? layout.plan.config.rotated() : 0),
      window_rotation_(layout.plan.config.layer(layout.plan.first_layer + layer_in_stage).window_rotation),
      layer_(layer_in_stage),
      qkv_(layout, prefix + ".qkv"),
      norm_(layout, prefix, t),
      sinks_(TensorRef::find(layout, prefix + ".sinks")),
      output_(layout, prefix + ".output") {}

Activations SelfAttention::angles(Pass& pass, int rows) const {
  return window_rotation_ ? pass.work.window_angles(rows, rotated_) : pass.work.angles(rows, rotated_);
}

BranchOutput SelfAttention::forward(Pass& pass, Activations x) {
  // [M, (heads + 2 kv_heads) × head_dim / tp]
  const Activations qkv = pass.work.fused(x.rows, qkv_.out());
  // [M, heads × head_dim / tp]
  const Activations mixed = pass.work.inner(x.rows, shape_.heads * shape_.head_dim, output_.input_dtype());
  qkv_.forward(pass, x, qkv);
  norm_.forward(pass, shape_, qkv);
  if (rotated_ > 0) pass.ops.apply_rope(pass.stream, shape_, angles(pass, x.rows), qkv);
  attend(pass, qkv, mixed);
  return output_.forward(pass, mixed);
}

void SelfAttention::attend(Pass& pass, Activations qkv, Activations mixed) const {
  const std::span<const SequenceRows> sequences(pass.batch.sequences);
  const Vector sinks = sinks_.vector(pass.pages);
  const std::size_t own = pass.riders.empty() ? sequences.size() : pass.riders.front().first_sequence;
  pass.ops.attention(pass.stream, shape_, qkv, sequences.first(own), pass.cache, layer_, sinks, mixed);
  for (const Rider& rider : pass.riders) {
    pass.ops.attention(pass.stream, shape_, qkv, sequences.subspan(rider.first_sequence, rider.sequences), *rider.cache,
                       layer_, sinks, mixed);
  }
  sinks_.release(pass.pages);
}

Mlp::Mlp(const ShardLayout& layout, const std::string& prefix)
    : gated_(layout.plan.config.gated_mlp),
      gate_(layout.plan.config.gate()),
      up_(layout, prefix + (gated_ ? ".gate_up" : ".up"), gated_ ? Activation::kNone : gate_.activation),
      down_(layout, prefix + ".down") {}

BranchOutput Mlp::forward(Pass& pass, Activations x) { return down_.forward(pass, inner(pass, x)); }

Activations Mlp::inner(Pass& pass, Activations x, const Vector& bias) {
  const Activations inner = pass.work.inner(x.rows, up_.out() / (gated_ ? 2 : 1), down_.input_dtype());  // [M, ffn/tp]
  if (gated_) {
    const Activations gate_up = pass.work.fused(x.rows, up_.out(), gate_dtype(pass, x.rows));  // [M, 2 ffn/tp]
    up_.forward(pass, x, gate_up, bias);
    pass.ops.activate_gate(pass.stream, gate_, gate_up, inner);
  } else {
    up_.forward(pass, x, inner, bias);
  }
  return inner;
}

// Narrow where the device wants it, unless something is still to be added or the gate is written in another type.
DType Mlp::gate_dtype(const Pass& pass, int rows) {
  const DType dtype = pass.ops.gate_dtype(rows, up_.weight().type());
  return dtype == down_.input_dtype() && !up_.adapter().changes(pass) ? dtype : DType::kF32;
}

SharedExpert::SharedExpert(const ShardLayout& layout, const std::string& prefix)
    : gate_(layout, prefix + ".shared_gate"), mlp_(layout, prefix + ".shared") {}

void SharedExpert::add(Pass& pass, Activations x) {
  const Activations gates = pass.work.gates(x.rows);                  // [M, 1]
  const Activations out = pass.work.gathered_out(x.rows, x.columns);  // [M, hidden]
  gate_.forward(pass, as_input(pass, x, gate_.input_dtype()), gates);
  const Activations inner = mlp_.inner(pass, as_input(pass, x, mlp_.input_dtype()));
  for (int k_slice = 0; k_slice < mlp_.down().k_slices(); ++k_slice) {
    mlp_.down().multiply(pass, inner, k_slice, out);
    pass.ops.add_gated_rows(pass.stream, out, gates, pass.work.mixture(k_slice, x.rows, x.columns));
  }
}

ExpertBiases::ExpertBiases(const ShardLayout& layout, const std::string& prefix)
    : experts_(layout.plan.config.experts),
      up_(TensorRef::find(layout, prefix + (layout.plan.config.gated_mlp ? ".gate_up.bias" : ".up.bias"))),
      down_(TensorRef::find(layout, prefix + ".down.bias")) {}

void ExpertBiases::copy(Pass& pass) {
  if (!up_.present()) return;
  const Activations all = pass.work.bias(up_.rows() + down_.rows());
  float* next = reinterpret_cast<float*>(all.data);
  const auto copied = [&](TensorRef& vector) -> Vector {
    const Activations copy{reinterpret_cast<std::byte*>(next), 1, vector.rows(), DType::kF32};
    pass.ops.copy_vector(pass.stream, vector.vector(pass.pages), copy);
    vector.release(pass.pages);
    return {std::exchange(next, next + vector.rows()), /*ready=*/nullptr, vector.rows()};
  };
  up_copy_ = copied(up_);
  down_copy_ = copied(down_);
}

Vector ExpertBiases::part(const Vector& all, std::size_t expert) const {
  if (all.data == nullptr) return {};
  const int length = all.length / experts_;
  return {all.data + expert * static_cast<std::size_t>(length), /*ready=*/nullptr, length};
}

Experts::Experts(const ShardLayout& layout, const std::string& prefix, int t)
    : rule_(layout.plan.config.routing()),
      adds_down_bias_(t == 0),
      router_(layout, prefix + ".router"),
      biases_(layout, prefix + ".experts") {
  for (int expert = 0; expert < rule_.experts; ++expert) {
    experts_.emplace_back(layout, fmt::format("{}.experts.{}", prefix, expert));
  }
  if (layout.plan.config.shared_ffn > 0) shared_.emplace(layout, prefix);
}

BranchOutput Experts::forward(Pass& pass, Activations x) {
  const auto mixture = [&](int k_slice) { return pass.work.mixture(k_slice, x.rows, x.columns); };
  for (int k_slice = 0; k_slice < k_slices(); ++k_slice) pass.ops.zero(pass.stream, mixture(k_slice));
  pass.ops.routes_experts() ? add_chosen_by_device(pass, x) : add_chosen_by_host(pass, x);
  if (shared_) shared_->add(pass, x);
  for (int half = 1; half < k_slices(); half *= 2) {  // the tree of TreeSum, all terms being there
    for (int k_slice = 0; k_slice < k_slices(); k_slice += 2 * half) {
      pass.ops.add_residual(pass.stream, mixture(k_slice + half), /*bias=*/{}, mixture(k_slice));
    }
  }
  sum_over_ranks(pass, mixture(0));
  return {.sum = mixture(0)};
}

Activations Experts::router_logits(Pass& pass, Activations x) {
  const Activations logits = pass.work.fused(x.rows, router_.out());  // [M, experts]
  router_.forward(pass, as_input(pass, x, router_.input_dtype()), logits);
  return logits;
}

void Experts::add_chosen_by_host(Pass& pass, Activations x) {
  const Activations logits = router_logits(pass, x);
  logits_.resize(static_cast<std::size_t>(logits.rows) * logits.columns);
  pass.ops.copy_to_host(pass.stream, logits, logits_.data());
  pass.stream.synchronize();
  choices_ = choose(logits_, rule_);
  biases_.copy(pass);
  for (std::size_t expert = 0; expert < experts_.size(); ++expert) add_expert(pass, x, expert);
}

void Experts::add_expert(Pass& pass, Activations x, std::size_t expert) {
  const auto& [rows, weights] = choices_[expert];
  if (rows.empty()) return pass_over(pass, expert);
  const Activations own = pass.work.gathered(static_cast<int>(rows.size()), x.columns,
                                             experts_[expert].input_dtype());  // [its rows, hidden]
  const Activations out = pass.work.gathered_out(own.rows, x.columns);         // [its rows, hidden]
  pass.ops.gather_rows(pass.stream, x, rows, own);
  const Activations inner = experts_[expert].inner(pass, own, biases_.up(expert));
  for (int k_slice = 0; k_slice < k_slices(); ++k_slice) {
    experts_[expert].down().multiply(pass, inner, k_slice, out, down_bias(biases_.down(expert), k_slice));
    pass.ops.scatter_add(pass.stream, out, rows, weights, pass.work.mixture(k_slice, x.rows, x.columns));
  }
}

void Experts::pass_over(Pass& pass, std::size_t expert) {
  const auto wait = [&pass](const auto& part) {  // what gets their frames next must come behind them
    for (const auto& panel : part.panels) {
      if (panel.ready != nullptr && !panel.ready->query()) pass.stream.wait(*panel.ready);
    }
  };
  Mlp& mlp = experts_[expert];
  mlp.up().weight().for_each_weight(pass.pages, wait);
  mlp.up().adapter().pass_over(pass, wait);
  for (int k_slice = 0; k_slice < k_slices(); ++k_slice) {
    mlp.down().weight(k_slice).for_each_weight(pass.pages, wait);
    mlp.down().adapter(k_slice).pass_over(pass, wait);
  }
}

void Experts::add_chosen_by_device(Pass& pass, Activations x) {
  const auto count = static_cast<int>(experts_.size());
  const ExpertRoutes routes = pass.work.routes(x.rows, rule_);
  pass.ops.route(pass.stream, router_logits(pass, x), pass.batch.real_rows, routes);
  biases_.copy(pass);
  if (pass.pages.at_rest() && alike()) {
    add_experts(pass, x, routes, {0, count}, /*keep=*/true);
    release(pass);
  } else {
    for (int expert = 0; expert < count; ++expert) add_experts(pass, x, routes, {expert, expert + 1}, /*keep=*/false);
  }
}

// By position: P = M × experts_per_token of them.
void Experts::add_experts(Pass& pass, Activations x, const ExpertRoutes& routes, ExpertRange range, bool keep) {
  Mlp& first = experts_[static_cast<std::size_t>(range.first)];
  const int positions = routes.positions(), up = first.up().out(), ffn = first.gated() ? up / 2 : up;
  const Activations own = as_input(pass, x, first.input_dtype());                         // [M, hidden]
  const Activations inner = pass.work.inner(positions, ffn, first.down().input_dtype());  // [P, ffn/tp]
  const Activations fused = first.gated() ? pass.work.fused(positions, up) : inner;       // [P, 2 ffn/tp]
  const auto up_of = [](Mlp& expert) -> TensorRef& { return expert.up().weight(); };
  multiply_experts(pass, own, /*by_row=*/true, routes, range, keep, up_of, biases_.up(),
                   first.gated() ? Activation::kNone : first.gate().activation, fused);
  if (first.gated()) pass.ops.activate_expert_gates(pass.stream, first.gate(), fused, routes, range, inner);
  const Activations out = pass.work.gathered_out(positions, x.columns);  // [P, hidden]
  for (int k_slice = 0; k_slice < k_slices(); ++k_slice) {
    const auto down_of = [k_slice](Mlp& expert) -> TensorRef& { return expert.down().weight(k_slice); };
    const Activations part = k_slices() > 1 ? slice_of(pass, inner, k_slice, down_of(first).columns()) : inner;
    multiply_experts(pass, part, /*by_row=*/false, routes, range, keep, down_of, down_bias(biases_.down(), k_slice),
                     Activation::kNone, out);
    pass.ops.mix_experts(pass.stream, out, routes, range, pass.work.mixture(k_slice, x.rows, x.columns));
  }
}

// A group of panels at a time, or, where their pages are kept, all panels of all experts.
template <class TensorOf>
void Experts::multiply_experts(Pass& pass, Activations x, bool by_row, const ExpertRoutes& routes, ExpertRange range,
                               bool keep, const TensorOf& tensor_of, const Vector& biases, Activation activation,
                               Activations out) {
  std::vector<ExpertWeight> weights;
  const auto multiply = [&] {
    pass.ops.expert_gemm(pass.stream, x, by_row, weights, biases, routes, activation, out);
    weights.clear();
  };
  for (int expert = range.first; expert < range.end; ++expert) {
    const auto add = [&](const Weight& part) {
      weights.push_back({expert, part});
      if (!keep) multiply();
    };
    tensor_of(experts_[static_cast<std::size_t>(expert)]).for_each_weight(pass.pages, add, /*release=*/!keep);
  }
  if (keep) multiply();
}

void Experts::release(Pass& pass) {
  for (Mlp& expert : experts_) {
    expert.up().weight().release(pass.pages);
    for (int k_slice = 0; k_slice < k_slices(); ++k_slice) expert.down().weight(k_slice).release(pass.pages);
  }
}

DType Experts::input_dtype() const {
  const DType router = router_.input_dtype();
  const auto takes_the_same = [router](const Mlp& expert) { return expert.input_dtype() == router; };
  const bool all = std::ranges::all_of(experts_, takes_the_same) && (!shared_ || shared_->takes(router));
  return all ? router : DType::kF32;
}

bool Experts::alike() {
  Mlp& first = experts_.front();
  return std::ranges::all_of(experts_, [&](Mlp& expert) {
    bool same = expert.up().weight().type() == first.up().weight().type();
    for (int k_slice = 0; k_slice < k_slices(); ++k_slice) {
      same &= expert.down().weight(k_slice).type() == first.down().weight(k_slice).type();
    }
    return same;
  });
}

std::vector<Experts::Choice> Experts::choose(std::span<const float> logits, const RoutingRule& rule) {
  std::vector<Choice> choices(static_cast<std::size_t>(rule.experts));
  std::vector<int> order(choices.size());
  for (std::size_t row = 0; row * choices.size() < logits.size(); ++row) {
    const std::span<const float> own = logits.subspan(row * choices.size(), choices.size());
    std::iota(order.begin(), order.end(), 0);
    const auto end = order.begin() + rule.per_token;
    std::partial_sort(order.begin(), end, order.end(),
                      [&own](int a, int b) { return own[a] != own[b] ? own[a] > own[b] : a < b; });
    const float largest = own[order.front()];
    float sum = 0;
    if (rule.softmax == RouterSoftmax::kAll) {
      for (const float logit : own) sum += std::exp(logit - largest);
    } else {  // over all, made to sum to one: its own sum cancels
      for (auto i = order.begin(); i != end; ++i) sum += std::exp(own[*i] - largest);
    }
    for (auto i = order.begin(); i != end; ++i) {
      choices[*i].rows.push_back(static_cast<std::int32_t>(row));
      choices[*i].weights.push_back(std::exp(own[*i] - largest) / sum);
    }
  }
  return choices;
}

TransformerBlock::TransformerBlock(const ShardLayout& layout, int layer_in_stage, int t)
    : TransformerBlock(layout, fmt::format("layers.{}.", layout.plan.first_layer + layer_in_stage), layer_in_stage, t) {
}

TransformerBlock::TransformerBlock(const ShardLayout& layout, const std::string& prefix, int layer_in_stage, int t)
    : norm_position_(layout.plan.config.norm_position),
      parallel_(layout.plan.config.parallel_residual),
      residual_scale_(layout.plan.config.residual_scale),
      attention_norm_(layout, prefix + "attention_norm"),
      attention_(layout, prefix + "attention", layer_in_stage, t),
      attention_output_norm_(layout, prefix + "attention_output_norm"),
      mlp_norm_(layout, prefix + "mlp_norm"),
      mlp_(make_mlp(layout, prefix + "mlp", layer_in_stage, t)),
      mlp_output_norm_(layout, prefix + "mlp_output_norm") {}

// Pre-norm:   h = h + attention(norm(h));        h = h + mlp(norm(h))          (Radford et al. 2019)
// Output:     h = h + norm(attention(h));        h = h + norm(mlp(h))          (OLMo 2: Walsh et al. 2024)
// Sandwich:   h = h + norm(attention(norm(h)));  h = h + norm(mlp(norm(h)))    (Gemma 2: Riviere et al. 2024)
// Parallel:   h = h + attention(norm(h)) + mlp(norm(h))                        (Wang and Komatsuzaki 2021)
// Post-norm:  h = norm(h + attention(h));        h = norm(h + mlp(h))          (Vaswani et al. 2017)
//
// h [M, hidden] f32; x [M, hidden] is what a branch reads, in the type that the weights are multiplied with.
void TransformerBlock::forward(Pass& pass, ResidualStream& h) {
  const auto x = [&](DType dtype) { return pass.work.input(h.hidden().rows, h.hidden().columns, dtype); };
  const Activations to_attention = x(attention_.input_dtype()), to_mlp = x(mlp_input_dtype());
  if (norm_position_ == NormPosition::kPost) return forward_post_norm(pass, h, to_attention, to_mlp);
  h.normalise(pass, attention_norm_, to_attention);
  const BranchOutput attended = attention_.forward(pass, to_attention);
  if (parallel_) h.normalise(pass, mlp_norm_, to_mlp);
  h.add(as_added(pass, attended, attention_output_norm_));
  parallel_ ? h.settle(pass) : h.normalise(pass, mlp_norm_, to_mlp);
  h.add(as_added(pass, mlp(pass, to_mlp), mlp_output_norm_));
}

void TransformerBlock::forward_post_norm(Pass& pass, ResidualStream& h, Activations to_attention, Activations to_mlp) {
  h.add(attention_.forward(pass, converted(pass, h.hidden(), to_attention)));
  h.normalise(pass, attention_norm_, h.hidden());
  h.add(mlp(pass, converted(pass, h.hidden(), to_mlp)));
  h.normalise(pass, mlp_norm_, h.hidden());
}

BranchOutput TransformerBlock::as_added(Pass& pass, const BranchOutput& branch, Norm& output_norm) const {
  if (output_norm.present()) output_norm.forward(pass, branch.sum, branch.sum);
  if (residual_scale_ != 1) pass.ops.scale(pass.stream, residual_scale_, branch.sum);
  return branch;
}

DType TransformerBlock::mlp_input_dtype() const {
  return std::visit([](const auto& layer) { return layer.input_dtype(); }, mlp_);
}

BranchOutput TransformerBlock::mlp(Pass& pass, Activations x) {
  return std::visit([&](auto& layer) { return layer.forward(pass, x); }, mlp_);
}

Head::Head(const ShardLayout& layout, int t)
    : first_token_(layout.plan.first_token(t)),
      real_vocab_(layout.plan.real_vocab(t)),
      slices_(layout.plan.k_slices),
      logits_scale_(layout.plan.config.logits_scale),
      soft_cap_(layout.plan.config.logits_soft_cap),
      projection_(layout, "head.projection"),
      weight_(TensorRef::find(layout, "head.weight")) {
  ensure(weight_.present(), "output head without a weight");
}

void Head::add_to(PassArrays& arrays, const Batch& batch, const Outputs& out) const {
  const std::size_t count = batch.output_rows.size(), slices = static_cast<std::size_t>(slices_);
  arrays.logits = {out.logits, count * slices};
  arrays.logit_columns = weight_.rows();
  arrays.logit_slices = slices_;
  if (batch.sampling.empty()) return;
  arrays.samples = {out.samples, count * slices};
  for (std::size_t first = 0; first < count; first += Workspace::kLogitRows) {
    const std::size_t rows = std::min<std::size_t>(Workspace::kLogitRows, count - first);
    arrays.sampling.push_back(std::span(batch.sampling).subspan(first, rows));
  }
}

void Head::forward(Pass& pass, Activations hidden, const Outputs& out) {
  const Activations projected = projection_.present() ? project(pass, hidden) : Activations{};
  const std::span<const std::int32_t> wanted(pass.batch.output_rows);
  const int count = pass.batch.output_count();
  const int rounds = std::max(1, ceil_div(count, Workspace::kLogitRows));  // pages are visited though no row is wanted
  for (int round = 0; round < rounds; ++round) {
    const int first = round * Workspace::kLogitRows;
    const int rows = std::min(Workspace::kLogitRows, count - first);
    const Activations x = pass.work.input(rows, weight_.columns(), weight_.input_dtype());  // [rows, width]
    if (projection_.present()) {
      pass.ops.convert(pass.stream, projected.row_range(first, rows), x);
    } else {
      pass.ops.gather_rows(pass.stream, hidden, wanted.subspan(first, rows), x);
    }
    finish_rows(pass, x, first, out, round + 1 == rounds);
  }
}

Activations Head::project(Pass& pass, Activations hidden) {
  const int count = pass.batch.output_count();
  const Activations x = pass.work.input(count, hidden.columns, projection_.input_dtype());  // [R, hidden]
  const Activations projected = pass.work.partial(count, projection_.out());                // [R, width]
  pass.ops.gather_rows(pass.stream, hidden, pass.batch.output_rows, x);
  projection_.forward(pass, x, projected);
  return projected;
}

void Head::finish_rows(Pass& pass, Activations x, int first, const Outputs& out, bool last_round) {
  const Batch& batch = pass.batch;
  const Activations logits = pass.work.logits(x.rows, weight_.rows());  // [rows, vocab/tp]
  multiply_parts(pass, x, weight_, /*bias=*/{}, Activation::kNone, logits, /*release=*/last_round);
  scale_and_cap(pass, logits);
  const LogitColumns columns{.first_token = first_token_, .real = real_vocab_, .slices = slices_};
  pass.ops.top_k_log_sum_exp(pass.stream, logits, columns, std::span(batch.top).subspan(first, x.rows),
                             std::span(batch.targets).subspan(first, x.rows), out.logits + first * slices_);
  if (batch.sampling.empty()) return;
  pass.ops.sample(pass.stream, logits, columns, std::span(batch.sampling).subspan(first, x.rows),
                  out.samples + first * slices_);
}

void Head::scale_and_cap(Pass& pass, Activations logits) const {
  if (logits_scale_ != 1) pass.ops.scale(pass.stream, logits_scale_, logits);
  if (soft_cap_ > 0) pass.ops.soft_cap(pass.stream, soft_cap_, logits);
}

}  // namespace computron
