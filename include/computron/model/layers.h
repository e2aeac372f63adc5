// The parallel layers of a transformer. A layer knows its shapes and which tensors of the layout it uses; bytes, stream
// and scratch memory come with the pass. A layer built on tensors that the layout lacks is absent, where it may be.
//
// Shapes: M rows (tokens, or an image's class token and patches), R of them lead to outputs; tp ranks cut a stage. An
// array is this rank's: [M, ffn/tp] is the rank's own columns, and [M, hidden] is whole, the same on every rank of the
// stage. What holds for every layer:
//
//   * `hidden` [M, hidden] f32, the residual stream, is whole before and after each layer that is handed it.
//   * All ranks of a stage enqueue the same operations in the same order, so that their all-reduces meet.
//   * Pages are acquired in the order of ShardLayout::uses, and released as soon as the last operation that reads them
//     has been enqueued.
//   * A layer keeps nothing from pass to pass; its results lie in the pass's Workspace until a layer writes there next.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "computron/model/pass.h"
#include "computron/model/tensor_ref.h"

namespace computron {

struct BranchOutput;

// LayerNorm or RMSNorm of rows [M, n], weights whole on every rank.
class Norm {
 public:
  Norm() = default;  // absent
  Norm(const ShardLayout& layout, const std::string& prefix);
  bool present() const { return weight_.present(); }
  void forward(Pass& pass, Activations in, Activations out);
  // hidden = hidden + branch, out = norm(hidden); one operation where all pages are at rest. out may be hidden.
  void add_and_forward(Pass& pass, const BranchOutput& branch, Activations hidden, Activations out);

 private:
  NormKind kind_ = NormKind::kLayerNorm;
  float epsilon_ = 0;
  TensorRef weight_, bias_;
};

// What an adapter adds to a product x Wᵀ: scale · (x Aᵀ) Bᵀ for each of the modules that W is made of (adapter.h).
class LowRank {
 public:
  LowRank() = default;  // absent
  // Of the layout's tensor called `weight`; `k_slice`: ".3" of a K slice.
  LowRank(const ShardLayout& layout, const std::string& weight, const std::string& k_slice = "");
  bool present() const { return !modules_.empty(); }
  // Whether any row of the pass has an adapter here: the model's, which is this, or a rider's.
  bool changes(const Pass& pass) const;
  // out [M, n] f32 += what W's modules add, for each row those of its own model; x [M, in] as W's product takes it.
  // Where the pass has riders, the M rows are the batch's.
  void add(Pass& pass, Activations x, Activations out);
  // Visits the pages alone, with wait(part).
  template <class Wait>
  void pass_over(Pass& pass, const Wait& wait) {
    for (Module& module : modules_) {
      module.a.for_each_table(pass.pages, wait);
      module.scale.vector(pass.pages);
      module.scale.release(pass.pages);
      module.b.for_each_table(pass.pages, wait);
    }
  }

 private:
  struct Module {
    TensorRef a, scale, b;  // [in, rank], [1], [outputs, rank]
    int column;             // of W's outputs, where the module's begin
  };
  struct Products;
  // Adds to `products` those of this one's modules with rows [row, row + rows) of the batch.
  void collect(Pass& pass, PageSource& pages, int row, int rows, Products& products);
  void release(PageSource& pages);
  // The same as add() where pages are visited group by group and there are no riders.
  void add_by_groups(Pass& pass, Activations x, Activations out);

  int place_ = -1;  // of the weight: how many of the shard's tensors are before it, an adapter's left out
  std::vector<Module> modules_;
};

// The adapter of a stage's shard by itself, for a pass of another model of its family.
class LowRanks {
 public:
  // Borrows the layout.
  explicit LowRanks(const ShardLayout& layout);
  bool any() const { return any_; }
  // What it adds to the weight at a place, the same in all layouts of a family; null: nothing.
  LowRank* at(int place);

 private:
  std::vector<LowRank> low_ranks_;  // [place]; none where there is no adapter
  bool any_ = false;
};

// out = activation(x Wᵀ + b) for the rows of W that this rank has: what replicated and column-parallel layers share.
class Linear {
 public:
  Linear() = default;  // absent
  Linear(const ShardLayout& layout, const std::string& prefix, Activation activation = Activation::kNone);
  bool present() const { return weight_.present(); }
  int out() const { return weight_.rows(); }
  // What x is to be for the weight to be multiplied with it.
  DType input_dtype() const { return weight_.input_dtype(); }
  // x [M, in] of the input_dtype; out [M, out()], f32 or narrow. `bias`: where the layer has none of its own.
  void forward(Pass& pass, Activations x, Activations out, const Vector& bias = {});
  TensorRef& weight() { return weight_; }
  LowRank& adapter() { return adapter_; }

 private:
  // Every part of W needs the bias: a copy in scratch memory lets its page go before W's pages come.
  Vector own_bias(Pass& pass);

  Activation activation_ = Activation::kNone;
  TensorRef weight_, bias_;
  LowRank adapter_;
};

// W [out, in] whole on every rank: all compute the same [M, out].
class ReplicatedLinear : public Linear {
 public:
  using Linear::Linear;
};

// W [out, in] with its rows split over the tp ranks: each computes its own columns of the result, [M, out/tp], out of
// the whole x. No communication.
class ColumnParallelLinear : public Linear {
 public:
  using Linear::Linear;
};

// What a residual branch, attention or MLP, adds to the residual stream: sum + bias. The bias is still to be added, so
// that both go to the residual stream in one pass over its rows.
struct BranchOutput {
  Activations sum;                  // [M, hidden] f32, whole
  const TensorRef* bias = nullptr;  // [hidden]; null, or absent: none
};

// The residual stream on its way through the blocks of a stage. What a branch gives is not added at once but where the
// stream is read next, in this block or behind it: to add it and to normalise the sum is one operation.
class ResidualStream {
 public:
  // hidden [M, hidden] f32, whole.
  explicit ResidualStream(Activations hidden) : hidden_(hidden) {}
  // The array; whole behind normalise() and settle().
  Activations hidden() const { return hidden_; }

  // hidden = hidden + branch. Until normalise() or settle(), one of which comes before the next branch is computed,
  // branch.sum stays as it is.
  void add(const BranchOutput& branch);
  // out = norm(hidden), or hidden where there is no norm. out may be hidden.
  void normalise(Pass& pass, Norm& norm, Activations out);
  // Makes hidden whole.
  void settle(Pass& pass);

 private:
  Activations hidden_;
  std::optional<BranchOutput> pending_;  // what hidden lacks
};

// W [hidden, in] with its columns split over the tp ranks: each multiplies its own columns of x, [M, in/tp], with its
// own columns of W, and the all-reduce over tp, which the layer ends in, sums the products.
//
// Where the plan is reproducible, a rank's columns are cut into K slices, a tensor each. Their products are summed in a
// fixed tree of which the all-reduce is the top.
class RowParallelLinear {
 public:
  RowParallelLinear(const ShardLayout& layout, const std::string& prefix);
  DType input_dtype() const { return weights_.front().input_dtype(); }
  // Σ over the ranks of x Wᵀ, in workspace.partial; and the bias.
  BranchOutput forward(Pass& pass, Activations x);

  // The terms of this rank's part of the sum: one, or one a K slice.
  int k_slices() const { return static_cast<int>(weights_.size()); }
  // out [M, hidden] f32 = term number `k_slice` of x Wᵀ, and `bias` where it is there. Not reduced.
  void multiply(Pass& pass, Activations x, int k_slice, Activations out, const Vector& bias = {});
  TensorRef& weight(int k_slice) { return weights_[static_cast<std::size_t>(k_slice)]; }
  LowRank& adapter(int k_slice) { return adapters_[static_cast<std::size_t>(k_slice)]; }

 private:
  std::vector<TensorRef> weights_;  // by K slice: [hidden, in/tp/k_slices]
  std::vector<LowRank> adapters_;   // by K slice
  TensorRef bias_;
};

// Vocabulary-parallel: each rank looks up the tokens of its slice of the vocabulary, and an all-reduce over tp makes
// [M, hidden] whole. Where the table's rows are narrower than `hidden` they are projected.
class TokenEmbedding {
 public:
  TokenEmbedding(const ShardLayout& layout, int t);
  void forward(Pass& pass, Activations hidden);

 private:
  void look_up_projected(Pass& pass, Activations hidden);
  void look_up(Pass& pass, Activations out);

  TokenId first_token_;
  float scale_;
  TensorRef tokens_;  // [vocab/tp, width]
  ReplicatedLinear projection_;
};

// A linear layer over flattened patches [M, patch_values]; the first row of every image is the class token.
class PatchEmbedding {
 public:
  explicit PatchEmbedding(const ShardLayout& layout);
  void forward(Pass& pass, Activations hidden);

 private:
  int patch_values_;
  ReplicatedLinear patches_;
  TensorRef class_token_;  // [hidden]
};

// The first layer: hidden = embedding of tokens or patches + rows of the tables of token types (BERT's segments) and
// positions, normalised where the model says so.
class Embedding {
 public:
  Embedding(const ShardLayout& layout, int t);
  void forward(Pass& pass, Activations hidden);

 private:
  // hidden[i, :] += table[rows[i] + offset, :]
  static void add(Pass& pass, TensorRef& table, std::span<const std::int32_t> rows, int offset, Activations hidden);

  std::optional<TokenEmbedding> tokens_;   // either these
  std::optional<PatchEmbedding> patches_;  // or these
  int position_offset_;
  TensorRef token_types_, positions_;  // [token_types, hidden], [positions + offset, hidden]
  Norm norm_;
};

// Of which layers and sequences: those with a window where these have a base of their own; else those that longrope's
// long factors rotate; or all others.
enum class RotaryKind : std::uint8_t { kPlain, kLong, kWindow };

// The rotary angles of every row, [M, rotary dimensions] f32 in workspace.angles and, where layers with a window have
// their own, in workspace.window_angles: computed once a pass, applied by every layer.
class RotaryEmbedding {
 public:
  explicit RotaryEmbedding(const ModelConfig& config);
  // Names what forward() reads of host memory, beside the batch.
  void add_to(PassArrays& arrays) const;
  void forward(Pass& pass);

  // theta^(-2i/d) for i < d/2 as the configuration scales them. Linear: divided by the factor. Llama 3: with wavelength
  // w = 2π/f and L original positions, f stays for w < L/high, is f/factor for w > L/low, and between the two is
  // (1 - s) f/factor + s f with s = (L/w - low) / (high - low). Yarn (Peng et al. 2023): f stays for pairs that turn at
  // least beta_fast times within L, is f/factor for those that turn beta_slow times or less, and goes over from one to
  // the other in equal steps from pair to pair. Longrope (Ding et al. 2024): divided by the pair's own factor.
  static std::vector<float> frequencies(const ModelConfig& config, RotaryKind kind = RotaryKind::kPlain);

 private:
  // Angles of rows [first, end) of the batch.
  void rotate_rows(Pass& pass, int first, int end, const std::vector<float>& frequencies, Activations angles);

  std::vector<float> frequencies_, long_frequencies_, window_frequencies_;  // empty: there are none
  float scale_;                                                             // of cosines and sines
};

// RMSNorm of queries and keys before they are rotated: of each head by itself, or of all heads of all ranks together.
// For the latter each rank gives the squares of its heads, each in a column of its own, and an all-reduce over tp makes
// them whole: so their sum has one order, whatever tp is.
class HeadsNorm {
 public:
  HeadsNorm(const ShardLayout& layout, const std::string& prefix, int t);
  // Names what forward() reads of host memory.
  void add_to(PassArrays& arrays) const { arrays.add_input(std::span(columns_)); }
  // qkv as Ops::attention takes it, in place. Absent: it does nothing.
  void forward(Pass& pass, const AttentionShape& shape, Activations qkv);

 private:
  Activations squares(Pass& pass, const AttentionShape& shape, Activations qkv);

  NormKind kind_;
  float epsilon_;
  int query_heads_;                    // of all ranks
  std::vector<std::int32_t> columns_;  // whole width: [query heads | key heads of all ranks] this rank's head, or -1
  TensorRef weight_;                   // [queries | keys]
};

// Multi-head attention, grouped-query where kv_heads < heads; heads are split over the tp ranks.
class SelfAttention {
 public:
  SelfAttention(const ShardLayout& layout, const std::string& prefix, int layer_in_stage, int t);
  DType input_dtype() const { return qkv_.input_dtype(); }
  void add_to(PassArrays& arrays) const { norm_.add_to(arrays); }
  // x [M, hidden] of the input_dtype.
  BranchOutput forward(Pass& pass, Activations x);

 private:
  Activations angles(Pass& pass, int rows) const;
  // mixed = attention of qkv, every row's over its own model's cache.
  void attend(Pass& pass, Activations qkv, Activations mixed) const;

  AttentionShape shape_;
  int rotated_;           // elements of a head; 0: no rotary positions
  bool window_rotation_;  // by workspace.window_angles
  int layer_;
  ColumnParallelLinear qkv_;  // q | k | v
  HeadsNorm norm_;
  TensorRef sinks_;  // [heads]
  RowParallelLinear output_;
};

// down(act(up(x))), or gated: down(act(gate(x)) · up(x)). The ffn units are split over the tp ranks.
class Mlp {
 public:
  Mlp(const ShardLayout& layout, const std::string& prefix);
  DType input_dtype() const { return up_.input_dtype(); }
  // x [M, hidden] of the input_dtype.
  BranchOutput forward(Pass& pass, Activations x);
  // Its first half: act(up(x)) or act(gate(x)) · up(x), [M, ffn/tp] in workspace.inner. down() is the second. `bias`:
  // of up, or gate | up, where the layer has no bias of its own.
  Activations inner(Pass& pass, Activations x, const Vector& bias = {});
  ColumnParallelLinear& up() { return up_; }
  RowParallelLinear& down() { return down_; }
  bool gated() const { return gated_; }
  const Gate& gate() const { return gate_; }

 private:
  DType gate_dtype(const Pass& pass, int rows);

  bool gated_;
  Gate gate_;
  ColumnParallelLinear up_;  // gate | up where gated
  RowParallelLinear down_;
};

// An MLP beside the experts of a layer that every row goes through, weighed by the logistic function of a product with
// the row (Qwen2-MoE: Yang et al. 2024).
class SharedExpert {
 public:
  // `prefix`: of the layer's MLP.
  SharedExpert(const ShardLayout& layout, const std::string& prefix);
  // Whether x is to be of this type, for both products.
  bool takes(DType dtype) const { return mlp_.input_dtype() == dtype && gate_.input_dtype() == dtype; }
  // mixture(k_slice) += σ(gate(x)) × term `k_slice` of mlp(x). x [M, hidden] f32, or of a type that it takes().
  void add(Pass& pass, Activations x);

 private:
  ReplicatedLinear gate_;  // [1, hidden]
  Mlp mlp_;
};

// The biases of all experts of a layer, stacked. They are copied at the layer's begin: experts' pages come and go.
class ExpertBiases {
 public:
  ExpertBiases(const ShardLayout& layout, const std::string& prefix);
  void copy(Pass& pass);
  // Of all experts, [experts × up] and [experts × hidden], and of one of them; absent where there are none.
  Vector up() const { return up_copy_; }
  Vector down() const { return down_copy_; }
  Vector up(std::size_t expert) const { return part(up_copy_, expert); }
  Vector down(std::size_t expert) const { return part(down_copy_, expert); }

 private:
  Vector part(const Vector& all, std::size_t expert) const;

  int experts_;
  TensorRef up_, down_;
  Vector up_copy_, down_copy_;  // of the pass
};

// A sparse mixture of MLPs (Jiang et al. 2024): every row goes through the few experts that the router gives most
// weight. Softmax in float32 over all experts or over the chosen ones.
class Experts {
 public:
  // `t` is this rank's place in the stage.
  Experts(const ShardLayout& layout, const std::string& prefix, int t);
  // The router's, where all that reads x is multiplied with the same; else f32, of which each has a copy.
  DType input_dtype() const;
  // Σ over the chosen experts of weight × mlp(x), and the shared expert's part, in workspace.mixture(0). x [M, hidden]
  // of the input_dtype.
  BranchOutput forward(Pass& pass, Activations x);

  struct Choice {
    std::vector<std::int32_t> rows;
    std::vector<float> weights;
  };
  // logits [rows, experts] → by expert, its rows in ascending order. Ties go to the expert with the smaller number.
  static std::vector<Choice> choose(std::span<const float> logits, const RoutingRule& rule);

 private:
  // [M, experts]
  Activations router_logits(Pass& pass, Activations x);
  int k_slices() { return experts_.front().down().k_slices(); }
  bool alike();  // all experts have weights of the same types
  // What a K slice's products of this rank begin with: the biases once, in the first of all.
  Vector down_bias(const Vector& of, int k_slice) const { return adds_down_bias_ && k_slice == 0 ? of : Vector{}; }

  // Where the host chooses: waits for the router, whose choice decides which rows an expert is given.
  void add_chosen_by_host(Pass& pass, Activations x);
  // mixture(k_slice) += weight × term `k_slice` of mlp(x), for the rows that chose the expert.
  void add_expert(Pass& pass, Activations x, std::size_t expert);
  // Has the pages of an expert that nobody chose come and go.
  void pass_over(Pass& pass, std::size_t expert);

  // Where the device chooses: nobody waits. Experts that are all there are multiplied together, others one by one.
  void add_chosen_by_device(Pass& pass, Activations x);
  // The same as add_expert(), of all rows that chose one of `range`. What it acquires is released by the caller where
  // `keep`.
  void add_experts(Pass& pass, Activations x, const ExpertRoutes& routes, ExpertRange range, bool keep);
  template <class TensorOf>
  void multiply_experts(Pass& pass, Activations x, bool by_row, const ExpertRoutes& routes, ExpertRange range,
                        bool keep, const TensorOf& tensor_of, const Vector& biases, Activation activation,
                        Activations out);
  void release(Pass& pass);

  RoutingRule rule_;
  bool adds_down_bias_;      // the first rank does, once for all
  ReplicatedLinear router_;  // [experts, hidden]
  ExpertBiases biases_;
  std::vector<Mlp> experts_;
  std::optional<SharedExpert> shared_;
  std::vector<float> logits_;    // [M, experts] of the pass, where the host chooses
  std::vector<Choice> choices_;  // [expert], of the pass, where the host chooses
};

// One layer of the model: attention and an MLP, each with its norms and its residual add.
class TransformerBlock {
 public:
  // `t` is this rank's place in the stage.
  TransformerBlock(const ShardLayout& layout, int layer_in_stage, int t);
  // Names what forward() reads of host memory, beside the batch.
  void add_to(PassArrays& arrays) const { attention_.add_to(arrays); }
  void forward(Pass& pass, ResidualStream& h);

 private:
  TransformerBlock(const ShardLayout& layout, const std::string& prefix, int layer_in_stage, int t);
  void forward_post_norm(Pass& pass, ResidualStream& h, Activations to_attention, Activations to_mlp);
  // scale × norm(branch), in its place.
  BranchOutput as_added(Pass& pass, const BranchOutput& branch, Norm& output_norm) const;
  DType mlp_input_dtype() const;
  BranchOutput mlp(Pass& pass, Activations x);

  NormPosition norm_position_;
  bool parallel_;
  float residual_scale_;
  Norm attention_norm_;
  SelfAttention attention_;
  Norm attention_output_norm_;
  Norm mlp_norm_;
  std::variant<Mlp, Experts> mlp_;
  Norm mlp_output_norm_;
};

// Vocabulary-parallel output head of a decoder: each rank's logits [R, vocab/tp], and of each row their top-k with
// log-sum-exp and, where it samples, its candidates.
class Head {
 public:
  Head(const ShardLayout& layout, int t);
  // Names what forward() reads and writes of host memory, beside the batch.
  void add_to(PassArrays& arrays, const Batch& batch, const Outputs& out) const;
  // out.logits[i] and out.samples[i] are of batch row output_rows[i]; host memory, filled when the stream has run.
  // Where the plan cuts the vocabulary into slices there is one of each for each slice, a row's side by side.
  // More than Workspace::kLogitRows rows take several rounds over the weight, whose pages are released in the last.
  void forward(Pass& pass, Activations hidden, const Outputs& out);

 private:
  // The wanted rows of hidden, projected: [R, width].
  Activations project(Pass& pass, Activations hidden);
  // Logits and what is made of them, for output rows [first, first + x.rows). x [rows, width] of the input_dtype.
  void finish_rows(Pass& pass, Activations x, int first, const Outputs& out, bool last_round);

  // What is made of the products before they are logits.
  void scale_and_cap(Pass& pass, Activations logits) const;

  TokenId first_token_;
  int real_vocab_;
  int slices_;
  float logits_scale_;
  float soft_cap_;  // 0: none
  ReplicatedLinear projection_;
  TensorRef weight_;  // [vocab/tp, width]
};

// Output of an encoder or embedder: a sequence's rows are pooled to one, and that comes to the embedding and to the
// scores of classes.
class PooledHead {
 public:
  explicit PooledHead(const ShardLayout& layout);
  // Fills out.pooled_embeddings, out.scores if there are classes, and out.sums if they are wanted: host memory, f32,
  // filled when the stream has run.
  void forward(Pass& pass, Activations hidden, const Outputs& out);

 private:
  // Both leave what they give in workspace.partial, one row an output.
  Activations pool(Pass& pass, Activations hidden, float* sums) const;  // [R, hidden]
  // [R, hidden]. A sum is one chain over a sequence's rows in their order, whatever passes they are computed in.
  static Activations mean(Pass& pass, Activations hidden, float* sums);
  // layer(x) of x [R, in], in `out` [R, out], which may lie where x does. Returns `out`.
  static Activations multiply(Pass& pass, ReplicatedLinear& layer, Activations x, Activations out);

  Pooling pooling_;
  ReplicatedLinear pooler_;
  std::vector<ReplicatedLinear> dense_;
  ReplicatedLinear class_dense_;
  Norm class_norm_;
  ReplicatedLinear classes_;
};

}  // namespace computron
