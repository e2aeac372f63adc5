#include <fmt/format.h>

#include "computron/model/adapter.h"
#include "computron/model/config.h"

namespace computron {
namespace {

// Collects the tensors of one configuration in the order in which a forward pass reads them.
class SpecList {
 public:
  explicit SpecList(const ModelConfig& config) : c_(config) {}

  std::vector<TensorSpec> all() {
    embedding();
    for (int layer = 0; layer < c_.layers; ++layer) block(layer);
    if (c_.final_norm) norm("final_norm");
    c_.pools() ? pooled() : head();
    return std::move(specs_);
  }

 private:
  void embedding() {
    c_.takes_images() ? patches() : tokens();
    if (c_.token_types > 0) table("embedding.types.weight", static_cast<std::size_t>(c_.token_types));
    if (c_.positions == PositionKind::kLearned) {
      table("embedding.positions.weight", static_cast<std::size_t>(c_.max_positions) + c_.position_offset);
    }
    if (c_.embedding_norm) norm("embedding.norm");
  }

  void tokens() {
    add("embedding.tokens.weight", TensorRole::kGemmWeight, Split::kVocab, {vocab_, width_});
    if (c_.projects_embedding()) replicated("embedding.projection", hidden_, width_, /*bias=*/false);
  }

  void patches() {
    replicated("embedding.patches", hidden_, static_cast<std::size_t>(c_.patch_values()), /*bias=*/true);
    add("embedding.class_token", TensorRole::kVector, Split::kNone, {hidden_});
  }

  void head() {
    if (c_.projects_embedding()) replicated("head.projection", width_, hidden_, /*bias=*/false);
    if (!c_.tied_head) add("head.weight", TensorRole::kGemmWeight, Split::kVocab, {vocab_, width_});
  }

  void pooled() {
    if (c_.pooler) replicated("pooler", hidden_, hidden_, /*bias=*/true);
    for (std::size_t i = 0; i < c_.dense.size(); ++i) {
      const DenseLayer& layer = c_.dense[i];
      replicated(fmt::format("dense.{}", i), static_cast<std::size_t>(layer.out), static_cast<std::size_t>(layer.in),
                 layer.bias);
    }
    if (c_.class_dense) replicated("classifier.dense", hidden_, hidden_, c_.class_dense_bias);
    if (c_.class_norm) norm("classifier.norm");
    if (c_.classes > 0) replicated("classifier", static_cast<std::size_t>(c_.classes), hidden_, /*bias=*/true);
  }

  void block(int index) {
    const std::string layer = fmt::format("layers.{}", index);
    const bool experts_here = c_.layer(index).experts;
    sublayer(layer + ".attention", index > 0 || c_.first_attention_norm, [&] { attention(layer + ".attention"); });
    sublayer(layer + ".mlp", /*pre_norm=*/true,
             [&] { experts_here ? experts(layer + ".mlp") : mlp(layer + ".mlp", c_.ffn); });
  }

  template <class Body>
  void sublayer(const std::string& name, bool pre_norm, Body&& body) {
    if (c_.has_pre_norms() && pre_norm) norm(name + "_norm");
    body();
    if (c_.has_output_norms()) norm(name + "_output_norm");
    if (c_.norm_position == NormPosition::kPost) norm(name + "_norm");
  }

  void attention(const std::string& name) {
    column_parallel(name + ".query", Split::kHeads, query_rows_, c_.attention_bias);
    column_parallel(name + ".key", Split::kKvHeads, kv_rows_, c_.attention_bias);
    column_parallel(name + ".value", Split::kKvHeads, kv_rows_, c_.attention_bias);
    query_key_norm(name);
    if (c_.attention_sinks) {
      add(name + ".sinks", TensorRole::kVector, Split::kSinks, {static_cast<std::size_t>(c_.heads)});
    }
    row_parallel(name + ".output", Split::kHeads, query_rows_, c_.attention_output_bias);
  }

  void query_key_norm(const std::string& name) {
    const std::string query = name + ".query_norm.weight", key = name + ".key_norm.weight";
    if (c_.query_key_norm == QueryKeyNorm::kHeads) {
      for (const auto& norm : {query, key}) {
        add(norm, TensorRole::kVector, Split::kNone, {static_cast<std::size_t>(c_.head_dim)});
      }
    } else if (c_.query_key_norm == QueryKeyNorm::kWidth) {
      add(query, TensorRole::kVector, Split::kHeads, {query_rows_});
      add(key, TensorRole::kVector, Split::kKvHeads, {kv_rows_});
    }
  }

  void mlp(const std::string& name, int ffn) {
    const auto units = static_cast<std::size_t>(ffn);
    if (c_.gated_mlp) column_parallel(name + ".gate", Split::kFfn, units, c_.mlp_bias);
    column_parallel(name + ".up", Split::kFfn, units, c_.mlp_bias);
    row_parallel(name + ".down", Split::kFfn, units, c_.mlp_bias);
  }

  void experts(const std::string& name) {
    replicated(name + ".router", static_cast<std::size_t>(c_.experts), hidden_, c_.router_bias);
    for (int expert = 0; expert < c_.experts; ++expert) {
      mlp(fmt::format("{}.experts.{}", name, expert), c_.ffn_of_expert());
    }
    if (c_.shared_ffn == 0) return;
    replicated(name + ".shared_gate", 1, hidden_, /*bias=*/false);
    mlp(name + ".shared", c_.shared_ffn);
  }

  // [out, in], the whole of it on every rank.
  void replicated(const std::string& name, std::size_t out, std::size_t in, bool bias) {
    add(name + ".weight", TensorRole::kGemmWeight, Split::kNone, {out, in});
    if (bias) add(name + ".bias", TensorRole::kVector, Split::kNone, {out});
  }

  void table(const std::string& name, std::size_t rows) {
    add(name, TensorRole::kTable, Split::kNone, {rows, hidden_});
  }

  void norm(const std::string& name) {
    add(name + ".weight", TensorRole::kVector, Split::kNone, {hidden_});
    if (c_.norm_bias) add(name + ".bias", TensorRole::kVector, Split::kNone, {hidden_});
  }

  // [out, hidden], cut along out; the bias is cut alike.
  void column_parallel(const std::string& name, Split split, std::size_t out, bool bias) {
    add(name + ".weight", TensorRole::kGemmWeight, split, {out, hidden_});
    if (bias) add(name + ".bias", TensorRole::kVector, split, {out});
  }

  // Canonically [hidden, in], cut along in: stored as [in, hidden]. The bias is added once, after the all-reduce.
  void row_parallel(const std::string& name, Split split, std::size_t in, bool bias) {
    add(name + ".weight", TensorRole::kGemmWeight, split, {in, hidden_}, /*transposed=*/true);
    if (bias) add(name + ".bias", TensorRole::kVector, Split::kNone, {hidden_});
  }

  void add(std::string name, TensorRole role, Split split, std::vector<std::size_t> shape, bool transposed = false) {
    specs_.push_back(
        {.name = std::move(name), .role = role, .split = split, .shape = std::move(shape), .transposed = transposed});
    if (c_.adapter_ranks.empty() || !takes_adapter(specs_.back())) return;
    const TensorSpec weight = specs_.back();
    const auto rank = c_.adapter_ranks.find(module_of(weight.name));
    if (rank != c_.adapter_ranks.end()) add_adapter(weight, static_cast<std::size_t>(rank->second));
  }

  void add_adapter(const TensorSpec& weight, std::size_t rank) {
    specs_.push_back(lora_a_of(weight, rank));
    specs_.push_back({.name = LoraNames(weight.name).scale, .shape = {1}});
    specs_.push_back(lora_b_of(weight, rank));
  }

  const ModelConfig& c_;
  const std::size_t hidden_ = static_cast<std::size_t>(c_.hidden);
  const std::size_t width_ = static_cast<std::size_t>(c_.token_columns());
  const std::size_t vocab_ = static_cast<std::size_t>(c_.vocab);
  const std::size_t query_rows_ = static_cast<std::size_t>(c_.heads) * c_.head_dim;
  const std::size_t kv_rows_ = static_cast<std::size_t>(c_.kv_heads) * c_.head_dim;
  std::vector<TensorSpec> specs_;
};

}  // namespace

std::vector<TensorSpec> tensor_specs(const ModelConfig& config) { return SpecList(config).all(); }

}  // namespace computron
