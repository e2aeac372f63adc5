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

Weight ImageTensorRef::weight(PageSource& pages) {
  for (std::size_t i = 0; i < weight_panels_.size(); ++i) {
    const PanelPlace& place = placed().panels[i];
    const ResidentPage page = pages.acquire(place.use);
    weight_panels_[i] = {page.data + place.offset, page.ready, place.row_begin, place.rows};
  }
  return {weight_panels_, rows(), columns(), image_->weight_dtype};
}

Vector ImageTensorRef::vector(PageSource& pages) {
  if (!present()) return {};
  const PanelPlace& place = placed().panels.front();
  const ResidentPage page = pages.acquire(place.use);
  return {reinterpret_cast<const float*>(page.data + place.offset), page.ready, rows()};
}

std::span<const TablePanel> ImageTensorRef::table(PageSource& pages) {
  for (std::size_t i = 0; i < table_panels_.size(); ++i) {
    const PanelPlace& place = placed().panels[i];
    const ResidentPage page = pages.acquire(place.use);
    table_panels_[i] = {page.data + place.offset, page.ready, place.row_begin, place.rows};
  }
  return table_panels_;
}

void ImageTensorRef::done(PageSource& pages) const {
  if (present() && placed().uses_over >= 0) pages.uses_over(static_cast<PageUse>(placed().uses_over));
}

Embedding::Embedding(const Image& image, int t)
    : first_token_(image.plan.first_token(t)),
      position_offset_(image.plan.config.position_offset),
      tokens_(ImageTensorRef::find(image, "embedding.tokens.weight")),
      positions_(ImageTensorRef::find(image, "embedding.positions.weight")) {}

void Embedding::forward(Pass& pass, Activations hidden) {
  pass.ops.embed(pass.stream, pass.batch.tokens, first_token_, tokens_.weight(pass.pages), hidden);
  tokens_.done(pass.pages);
  pass.all_reduce.sum(pass.stream, reinterpret_cast<float*>(hidden.data),
                      static_cast<std::size_t>(hidden.rows) * hidden.columns);
  if (!positions_.present()) return;
  pass.ops.add_rows(pass.stream, pass.batch.positions, position_offset_, positions_.table(pass.pages), hidden);
  positions_.done(pass.pages);
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
  const Weight weight = weight_.weight(pass.pages);
  const Vector bias = bias_.vector(pass.pages);
  pass.ops.gemm(pass.stream, x, weight, bias, activation_, out);
  weight_.done(pass.pages);
  bias_.done(pass.pages);
}

RowParallelLinear::RowParallelLinear(const Image& image, const std::string& prefix)
    : weight_(ImageTensorRef::find(image, prefix + ".weight")), bias_(ImageTensorRef::find(image, prefix + ".bias")) {
  ensure(weight_.present(), "linear layer without a weight");
}

void RowParallelLinear::forward(Pass& pass, Activations x, Activations hidden) {
  const Activations partial = pass.work.partial(hidden.rows, hidden.columns);
  pass.ops.gemm(pass.stream, x, weight_.weight(pass.pages), /*bias=*/{}, Activation::kNone, partial);
  weight_.done(pass.pages);
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
  const Weight weight = weight_.weight(pass.pages);
  const Batch& batch = pass.batch;
  for (int first = 0; first < batch.logit_count(); first += Workspace::kLogitRows) {
    const int rows = std::min(Workspace::kLogitRows, batch.logit_count() - first);
    const Activations x = pass.work.input(rows, hidden.columns, dtype_);
    const Activations logits = pass.work.logits(rows, weight.out);
    pass.ops.gather_rows(pass.stream, hidden, std::span(batch.logit_rows).subspan(first, rows), x);
    pass.ops.gemm(pass.stream, x, weight, /*bias=*/{}, Activation::kNone, logits);
    pass.ops.summarize(pass.stream, logits, first_token_, real_vocab_, std::span(batch.top).subspan(first, rows),
                       std::span(batch.targets).subspan(first, rows), out + first);
  }
  weight_.done(pass.pages);
}

}  // namespace computron
