// The parallel layers of a transformer. A layer knows its shapes and which tensors of the layout it uses; bytes, stream
// and scratch memory come with the pass. A layer built on tensors that the layout lacks is absent, where it may be.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "computron/model/pass.h"

namespace computron {

// A tensor of a layout. Binds its panels, part by part, to the frames its pages are in for one pass.
class TensorRef {
 public:
  TensorRef() = default;  // absent
  TensorRef(const ShardLayout& layout, int index);
  // The tensor called `name`, or an absent one.
  static TensorRef find(const ShardLayout& layout, const std::string& name);

  bool present() const { return layout_ != nullptr; }
  int rows() const { return shard().rows; }
  int columns() const { return shard().columns; }

  // How many operations a pass makes of this tensor: one for each group of panels, or one in all.
  int parts(const PageSource& pages) const;

  // The views are valid until the next pass binds this tensor.
  Weight weight(PageSource& pages, int part);
  Table table(PageSource& pages, int part);
  Vector vector(PageSource& pages);
  // To be called when the last operation that uses this part has been enqueued. Vectors have one part.
  void done(PageSource& pages, int part = 0) const;

 private:
  PanelGroup panels_of(const PageSource& pages, int part) const;
  // Fills the views of a part's panels; returns them.
  template <class Panel>
  std::span<const Panel> bind(std::vector<Panel>& views, PageSource& pages, int part) const;
  const ShardTensor& shard() const { return layout_->plan.tensors[index_]; }
  const TensorLayout& placed() const { return layout_->tensors[index_]; }

  const ShardLayout* layout_ = nullptr;
  int index_ = 0;
  std::vector<WeightPanel> weight_panels_;
  std::vector<TablePanel> table_panels_;
};

class Norm {
 public:
  Norm() = default;  // absent
  Norm(const ShardLayout& layout, const std::string& prefix);
  bool present() const { return weight_.present(); }
  void forward(Pass& pass, Activations in, Activations out);

 private:
  NormKind kind_ = NormKind::kLayerNorm;
  float epsilon_ = 0;
  TensorRef weight_, bias_;
};

// out = activation(x Wᵀ + b). Column-parallel where W's rows are split over the ranks: each computes its columns of the
// result. Replicated where they are not. The bias, which every part of W needs, is copied to scratch memory first, so
// that its page goes before W's come.
class Linear {
 public:
  Linear() = default;  // absent
  Linear(const ShardLayout& layout, const std::string& prefix, Activation activation = Activation::kNone);
  bool present() const { return weight_.present(); }
  int out() const { return weight_.rows(); }
  void forward(Pass& pass, Activations x, Activations out);

 private:
  Vector copy_bias(Pass& pass);

  Activation activation_ = Activation::kNone;
  TensorRef weight_, bias_;
};

// W's columns split over the ranks; the bias is added once.
class RowParallelLinear {
 public:
  RowParallelLinear(const ShardLayout& layout, const std::string& prefix);
  // hidden += Σ over ranks of x Wᵀ + b
  void forward(Pass& pass, Activations x, Activations hidden);

  // The terms of this rank's part of that sum: one, or where the plan is reproducible one for each K slice.
  int k_slices() const { return static_cast<int>(weights_.size()); }
  // out = term `k_slice` of x Wᵀ
  void multiply(Pass& pass, Activations x, int k_slice, Activations out);

 private:
  std::vector<TensorRef> weights_;
  TensorRef bias_;
};

// Vocabulary-parallel: tokens → [M, hidden], replicated. Where rows are narrower than `hidden` they are projected.
class TokenEmbedding {
 public:
  TokenEmbedding(const ShardLayout& layout, int t);
  void forward(Pass& pass, Activations hidden);

 private:
  void look_up(Pass& pass, Activations out);

  TokenId first_token_;
  DType dtype_;
  TensorRef tokens_;
  Linear projection_;
};

// A linear layer over flattened patches; the first row of every image is the class token.
class PatchEmbedding {
 public:
  explicit PatchEmbedding(const ShardLayout& layout);
  void forward(Pass& pass, Activations hidden);

 private:
  int patch_values_;
  DType dtype_;
  Linear patches_;
  TensorRef class_token_;
};

// What goes in, plus rows of the tables of segments and positions, normalised where the model says so.
class Embedding {
 public:
  Embedding(const ShardLayout& layout, int t);
  void forward(Pass& pass, Activations hidden);

 private:
  static void add(Pass& pass, TensorRef& table, std::span<const std::int32_t> rows, int offset, Activations hidden);

  std::optional<TokenEmbedding> tokens_;   // either these
  std::optional<PatchEmbedding> patches_;  // or these
  int position_offset_;
  TensorRef token_types_, positions_;
  Norm norm_;
};

// The angles by which every layer of a pass turns its queries and keys, computed once.
class RotaryEmbedding {
 public:
  explicit RotaryEmbedding(const ModelConfig& config);
  void forward(Pass& pass);

  // theta^(-2i/d) for i < d/2 as the configuration scales them. Linear: divided by the factor. Llama 3: with wavelength
  // w = 2π/f and L original positions, f stays for w < L/high, is f/factor for w > L/low, and between the two is
  // (1 - s) f/factor + s f with s = (L/w - low) / (high - low).
  static std::vector<float> frequencies(const ModelConfig& config);

 private:
  std::vector<float> frequencies_;
};

class SelfAttention {
 public:
  SelfAttention(const ShardLayout& layout, const std::string& prefix, int layer_in_stage);
  // hidden += attention(x)
  void forward(Pass& pass, Activations x, Activations hidden);

 private:
  AttentionShape shape_;
  bool rotary_;
  int layer_;
  DType dtype_;
  Linear qkv_;
  RowParallelLinear output_;
};

// down(act(up(x))), or gated: down(act(gate(x)) · up(x)).
class Mlp {
 public:
  Mlp(const ShardLayout& layout, const std::string& prefix);
  // hidden += mlp(x)
  void forward(Pass& pass, Activations x, Activations hidden);
  // The same in two parts: what goes down, and the way down.
  Activations inner(Pass& pass, Activations x);
  RowParallelLinear& down() { return down_; }

 private:
  bool gated_;
  Activation activation_;
  DType dtype_;
  Linear up_;  // gate | up where gated
  RowParallelLinear down_;
};

// A sparse mixture of MLPs (Jiang et al. 2024): every row goes through the few experts that the router gives most
// weight. Softmax over all experts in float32, the chosen ones' weights made to sum to one.
class Experts {
 public:
  Experts(const ShardLayout& layout, const std::string& prefix);
  // hidden += Σ over the chosen experts of weight × mlp(x). Waits for the router, whose choice decides what follows.
  void forward(Pass& pass, Activations x, Activations hidden);

  struct Choice {
    std::vector<std::int32_t> rows;
    std::vector<float> weights;
  };
  // logits [rows, experts] → by expert, its rows in ascending order. Ties go to the expert with the smaller number.
  static std::vector<Choice> choose(std::span<const float> logits, int experts, int experts_per_token);

 private:
  void route(Pass& pass, Activations x);

  int experts_per_token_;
  DType dtype_;
  Linear router_;
  std::vector<Mlp> experts_;
  std::vector<float> logits_;    // of the pass, on the host
  std::vector<Choice> choices_;  // [expert], of the pass
};

class TransformerBlock {
 public:
  TransformerBlock(const ShardLayout& layout, int layer_in_stage);
  void forward(Pass& pass, Activations hidden);

 private:
  TransformerBlock(const ShardLayout& layout, const std::string& prefix, int layer_in_stage);

  NormPosition norm_position_;
  DType dtype_;
  Norm attention_norm_;
  SelfAttention attention_;
  Norm mlp_norm_;
  std::variant<Mlp, Experts> mlp_;
};

// Vocabulary-parallel output head of a decoder: each rank's slice of the logits, summarised row by row.
class Head {
 public:
  Head(const ShardLayout& layout, int t);
  // out.logits[i] and out.samples[i] are of batch row output_rows[i]; host memory, filled when the stream has run.
  // Where the plan cuts the vocabulary into slices there is one of each for each slice, a row's side by side.
  // More than Workspace::kLogitRows rows take several rounds over the weight, whose pages are given up in the last.
  void forward(Pass& pass, Activations hidden, const Outputs& out);

 private:
  // The wanted rows of hidden, projected: [R, width].
  Activations project(Pass& pass, Activations hidden);
  // Rows [first, first + count) of the logits.
  void finish_rows(Pass& pass, Activations x, int first, const Outputs& out, bool last_round);

  TokenId first_token_;
  int real_vocab_;
  int slices_;
  DType dtype_;
  Linear projection_;
  TensorRef weight_;
};

// What an encoder says of a sequence, from its first row: a vector and the scores of classes.
class Classifier {
 public:
  explicit Classifier(const ShardLayout& layout);
  // pooled_embeddings [R, hidden] and, if there are classes, scores [R, classes]; host memory, filled when the stream
  // has run.
  void forward(Pass& pass, Activations hidden, float* pooled_embeddings, float* scores);

 private:
  DType dtype_;
  Linear pooler_, classes_;
};

}  // namespace computron
