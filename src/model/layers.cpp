#include "computron/model/layers.h"

#include <fmt/format.h>

#include <cmath>

namespace computron {

ImageTensorRef::ImageTensorRef(const Image& image, int index) : image_(&image), index_(index) {
  weight_panels_.resize(placed().panels.size());
  table_panels_.resize(placed().panels.size());
}

ImageTensorRef ImageTensorRef::find(const Image& image, const std::string& name) {
  const auto& tensors = image.plan.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return {image, static_cast<int>(i)};
  }
  return {};
}

int ImageTensorRef::parts(const PageSource& pages) const {
  return pages.group_by_group() ? static_cast<int>(placed().groups.size()) : 1;
}

PanelGroup ImageTensorRef::panels_of(const PageSource& pages, int part) const {
  const std::vector<PanelGroup>& groups = placed().groups;
  if (pages.group_by_group()) return groups[static_cast<std::size_t>(part)];
  return {.first = 0, .count = static_cast<int>(placed().panels.size()), .uses_over = groups.back().uses_over};
}

template <class Panel>
std::span<const Panel> ImageTensorRef::bind(std::vector<Panel>& views, PageSource& pages, int part) const {
  const PanelGroup g = panels_of(pages, part);
  for (int i = g.first; i < g.first + g.count; ++i) {
    const PanelPlace& place = placed().panels[i];
    const ResidentPage page = pages.acquire(place.use);
    views[i] = {page.data + place.offset, page.ready, place.row_begin, place.rows};
  }
  return std::span<const Panel>(views).subspan(g.first, g.count);
}

Weight ImageTensorRef::weight(PageSource& pages, int part) {
  return {bind(weight_panels_, pages, part), rows(), columns(), image_->weight_dtype};
}

Table ImageTensorRef::table(PageSource& pages, int part) { return {bind(table_panels_, pages, part), rows()}; }

Vector ImageTensorRef::vector(PageSource& pages) {
  if (!present()) return {};
  const PanelPlace& place = placed().panels.front();
  const ResidentPage page = pages.acquire(place.use);
  return {reinterpret_cast<const float*>(page.data + place.offset), page.ready, rows()};
}

void ImageTensorRef::done(PageSource& pages, int part) const {
  if (!present()) return;
  const std::int64_t over = panels_of(pages, part).uses_over;
  if (over >= 0) pages.uses_over(static_cast<PageUse>(over));
}

Embedding::Embedding(const Image& image, int t)
    : first_token_(image.plan.first_token(t)),
      position_offset_(image.plan.config.position_offset),
      tokens_(ImageTensorRef::find(image, "embedding.tokens.weight")),
      positions_(ImageTensorRef::find(image, "embedding.positions.weight")) {}

void Embedding::forward(Pass& pass, Activations hidden) {
  for (int part = 0; part < tokens_.parts(pass.pages); ++part) {
    pass.ops.embed(pass.stream, pass.batch.tokens, first_token_, tokens_.weight(pass.pages, part), hidden);
    tokens_.done(pass.pages, part);
  }
  pass.all_reduce.sum(pass.stream, reinterpret_cast<float*>(hidden.data),
                      static_cast<std::size_t>(hidden.rows) * hidden.columns);
  if (!positions_.present()) return;
  for (int part = 0; part < positions_.parts(pass.pages); ++part) {
    const Table table = positions_.table(pass.pages, part);
    pass.ops.add_rows(pass.stream, pass.batch.positions, position_offset_, table, hidden);
    positions_.done(pass.pages, part);
  }
}

Norm::Norm(const Image& image, const std::string& prefix)
    : kind_(image.plan.config.norm),
      epsilon_(image.plan.config.norm_epsilon),
      weight_(ImageTensorRef::find(image, prefix + ".weight")),
      bias_(ImageTensorRef::find(image, prefix + ".bias")) {}

void Norm::forward(Pass& pass, Activations in, Activations out) {
  const Vector weight = weight_.vector(pass.pages);  // one by one: pages are asked for in order
  const Vector bias = bias_.vector(pass.pages);
  pass.ops.norm(pass.stream, kind_, in, weight, bias, epsilon_, out);
  weight_.done(pass.pages);
  bias_.done(pass.pages);
}

ColumnParallelLinear::ColumnParallelLinear(const Image& image, const std::string& prefix, Activation activation)
    : activation_(activation),
      weight_(ImageTensorRef::find(image, prefix + ".weight")),
      bias_(ImageTensorRef::find(image, prefix + ".bias")) {
  ensure(weight_.present(), "linear layer without a weight");
}

void ColumnParallelLinear::forward(Pass& pass, Activations x, Activations out) {
  const Vector bias = bias_.present() ? copy_bias(pass) : Vector{};
  for (int part = 0; part < weight_.parts(pass.pages); ++part) {
    pass.ops.gemm(pass.stream, x, weight_.weight(pass.pages, part), bias, activation_, out);
    weight_.done(pass.pages, part);
  }
}

Vector ColumnParallelLinear::copy_bias(Pass& pass) {
  const Activations copy = pass.work.bias(out());
  pass.ops.copy_vector(pass.stream, bias_.vector(pass.pages), copy);
  bias_.done(pass.pages);
  return {reinterpret_cast<const float*>(copy.data), /*ready=*/nullptr, copy.columns};
}

RowParallelLinear::RowParallelLinear(const Image& image, const std::string& prefix)
    : weight_(ImageTensorRef::find(image, prefix + ".weight")), bias_(ImageTensorRef::find(image, prefix + ".bias")) {
  ensure(weight_.present(), "linear layer without a weight");
}

void RowParallelLinear::forward(Pass& pass, Activations x, Activations hidden) {
  const Activations partial = pass.work.partial(hidden.rows, hidden.columns);
  for (int part = 0; part < weight_.parts(pass.pages); ++part) {
    pass.ops.gemm(pass.stream, x, weight_.weight(pass.pages, part), /*bias=*/{}, Activation::kNone, partial);
    weight_.done(pass.pages, part);
  }
  pass.all_reduce.sum(pass.stream, reinterpret_cast<float*>(partial.data),
                      static_cast<std::size_t>(partial.rows) * partial.columns);
  pass.ops.add_residual(pass.stream, partial, bias_.vector(pass.pages), hidden);
  bias_.done(pass.pages);
}

SelfAttention::SelfAttention(const Image& image, const std::string& prefix, int layer_in_stage)
    : shape_{.heads = image.plan.heads,
             .kv_heads = image.plan.kv_heads,
             .head_dim = image.plan.config.head_dim,
             .scale = 1.0f / std::sqrt(static_cast<float>(image.plan.config.head_dim))},
      layer_(layer_in_stage),
      dtype_(image.weight_dtype),
      qkv_(image, prefix + ".qkv"),
      output_(image, prefix + ".output") {}

void SelfAttention::forward(Pass& pass, Activations x, Activations hidden) {
  const Activations qkv = pass.work.fused(x.rows, qkv_.out());
  const Activations mixed = pass.work.inner(x.rows, shape_.heads * shape_.head_dim, dtype_);
  qkv_.forward(pass, x, qkv);
  pass.ops.attention(pass.stream, shape_, qkv, pass.batch.sequences, pass.cache, layer_, mixed);
  output_.forward(pass, mixed, hidden);
}

Mlp::Mlp(const Image& image, const std::string& prefix)
    : dtype_(image.weight_dtype),
      up_(image, prefix + ".up", image.plan.config.activation),
      down_(image, prefix + ".down") {}

void Mlp::forward(Pass& pass, Activations x, Activations hidden) {
  const Activations inner = pass.work.inner(x.rows, up_.out(), dtype_);
  up_.forward(pass, x, inner);
  down_.forward(pass, inner, hidden);
}

TransformerBlock::TransformerBlock(const Image& image, int layer_in_stage)
    : norm_position_(image.plan.config.norm_position),
      dtype_(image.weight_dtype),
      attention_norm_(image, fmt::format("layers.{}.attention_norm", image.plan.first_layer + layer_in_stage)),
      attention_(image, fmt::format("layers.{}.attention", image.plan.first_layer + layer_in_stage), layer_in_stage),
      mlp_norm_(image, fmt::format("layers.{}.mlp_norm", image.plan.first_layer + layer_in_stage)),
      mlp_(image, fmt::format("layers.{}.mlp", image.plan.first_layer + layer_in_stage)) {}

void TransformerBlock::forward(Pass& pass, Activations hidden) {
  const Activations x = pass.work.input(hidden.rows, hidden.columns, dtype_);
  if (norm_position_ == NormPosition::kPre) {
    attention_norm_.forward(pass, hidden, x);
    attention_.forward(pass, x, hidden);
    mlp_norm_.forward(pass, hidden, x);
    mlp_.forward(pass, x, hidden);
  } else {
    pass.ops.convert(pass.stream, hidden, x);
    attention_.forward(pass, x, hidden);
    attention_norm_.forward(pass, hidden, hidden);
    pass.ops.convert(pass.stream, hidden, x);
    mlp_.forward(pass, x, hidden);
    mlp_norm_.forward(pass, hidden, hidden);
  }
}

Head::Head(const Image& image, int t)
    : first_token_(image.plan.first_token(t)),
      real_vocab_(image.plan.real_vocab(t)),
      dtype_(image.weight_dtype),
      norm_(image, "final_norm"),
      weight_(ImageTensorRef::find(image, "head.weight")) {
  ensure(weight_.present(), "output head without a weight");
}

void Head::forward(Pass& pass, Activations hidden, LogitSummary* out) {
  if (norm_.present()) norm_.forward(pass, hidden, hidden);
  const int count = pass.batch.logit_count();
  const int rounds = std::max(1, ceil_div(count, Workspace::kLogitRows));  // pages are visited though no row is wanted
  for (int round = 0; round < rounds; ++round) {
    const int first = round * Workspace::kLogitRows;
    summarize_rows(pass, hidden, first, std::min(Workspace::kLogitRows, count - first), round + 1 == rounds, out);
  }
}

void Head::summarize_rows(Pass& pass, Activations hidden, int first, int count, bool last_round, LogitSummary* out) {
  const Batch& batch = pass.batch;
  const Activations x = pass.work.input(count, hidden.columns, dtype_);
  const Activations logits = pass.work.logits(count, weight_.rows());
  pass.ops.gather_rows(pass.stream, hidden, std::span(batch.logit_rows).subspan(first, count), x);
  for (int part = 0; part < weight_.parts(pass.pages); ++part) {
    pass.ops.gemm(pass.stream, x, weight_.weight(pass.pages, part), /*bias=*/{}, Activation::kNone, logits);
    if (last_round) weight_.done(pass.pages, part);
  }
  pass.ops.summarize(pass.stream, logits, first_token_, real_vocab_, std::span(batch.top).subspan(first, count),
                     std::span(batch.targets).subspan(first, count), out + first);
}

}  // namespace computron
