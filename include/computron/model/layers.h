// The parallel layers of a transformer. A layer knows its shapes and which tensors of the image it uses; bytes, stream
// and scratch memory come with the pass.
#pragma once

#include <string>
#include <vector>

#include "computron/model/pass.h"

namespace computron {

// A tensor of an image. Binds its panels, part by part, to the frames its pages are in for one pass.
class ImageTensorRef {
 public:
  ImageTensorRef() = default;  // absent
  ImageTensorRef(const Image& image, int index);
  // The tensor called `name`, or an absent one.
  static ImageTensorRef find(const Image& image, const std::string& name);

  bool present() const { return image_ != nullptr; }
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
  const ShardTensor& shard() const { return image_->plan.tensors[index_]; }
  const ImageTensor& placed() const { return image_->tensors[index_]; }

  const Image* image_ = nullptr;
  int index_ = 0;
  std::vector<WeightPanel> weight_panels_;
  std::vector<TablePanel> table_panels_;
};

// Vocabulary-parallel token embedding plus learned positions: tokens → [M, hidden], replicated.
class Embedding {
 public:
  Embedding(const Image& image, int t);
  void forward(Pass& pass, Activations hidden);

 private:
  TokenId first_token_;
  int position_offset_;
  ImageTensorRef tokens_, positions_;
};

class Norm {
 public:
  Norm(const Image& image, const std::string& prefix);
  bool present() const { return weight_.present(); }
  void forward(Pass& pass, Activations in, Activations out);

 private:
  NormKind kind_;
  float epsilon_;
  ImageTensorRef weight_, bias_;
};

// out = activation(x Wᵀ + b), W's rows split over the ranks: each rank computes its columns of the result. The bias,
// which every part of W needs, is copied to scratch memory first, so that its page goes before W's come.
class ColumnParallelLinear {
 public:
  ColumnParallelLinear(const Image& image, const std::string& prefix, Activation activation = Activation::kNone);
  int out() const { return weight_.rows(); }
  void forward(Pass& pass, Activations x, Activations out);

 private:
  Vector copy_bias(Pass& pass);

  Activation activation_;
  ImageTensorRef weight_, bias_;
};

// hidden += Σ over ranks of x Wᵀ + b, W's columns split over the ranks; the bias is added once.
class RowParallelLinear {
 public:
  RowParallelLinear(const Image& image, const std::string& prefix);
  void forward(Pass& pass, Activations x, Activations hidden);

 private:
  ImageTensorRef weight_, bias_;
};

class SelfAttention {
 public:
  SelfAttention(const Image& image, const std::string& prefix, int layer_in_stage);
  // hidden += attention(x)
  void forward(Pass& pass, Activations x, Activations hidden);

 private:
  AttentionShape shape_;
  int layer_;
  DType dtype_;
  ColumnParallelLinear qkv_;
  RowParallelLinear output_;
};

class Mlp {
 public:
  Mlp(const Image& image, const std::string& prefix);
  // hidden += mlp(x)
  void forward(Pass& pass, Activations x, Activations hidden);

 private:
  DType dtype_;
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

class TransformerBlock {
 public:
  TransformerBlock(const Image& image, int layer_in_stage);
  void forward(Pass& pass, Activations hidden);

 private:
  NormPosition norm_position_;
  DType dtype_;
  Norm attention_norm_;
  SelfAttention attention_;
  Norm mlp_norm_;
  Mlp mlp_;
};

// Vocabulary-parallel output head: each rank's slice of the logits, summarised row by row.
class Head {
 public:
  Head(const Image& image, int t);
  // out[i] describes batch row logit_rows[i]; host memory, filled when the stream has run.
  // More than Workspace::kLogitRows rows take several rounds over the weight, whose pages are given up in the last.
  void forward(Pass& pass, Activations hidden, LogitSummary* out);

 private:
  // Rows [first, first + count) of the logits.
  void summarize_rows(Pass& pass, Activations hidden, int first, int count, bool last_round, LogitSummary* out);

  TokenId first_token_;
  int real_vocab_;
  DType dtype_;
  Norm norm_;
  ImageTensorRef weight_;
};

}  // namespace computron
