// The configuration of a transformer: one struct of numbers and flags that every family is a setting of.
// Decoders (causal) end in logits over the vocabulary; encoders, and decoders that are embedders, in a pooled embedding
// and the scores of classes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "computron/base/types.h"
#include "computron/ops/ops.h"

namespace computron {

// Before a branch (attention, MLP); behind its residual add; of what the branch gives, before the add; or before the
// branch and of what it gives.
enum class NormPosition : std::uint8_t { kPre, kPost, kOutput, kSandwich };
// What of queries and keys is normalised before they are rotated: each head by itself, or the width of all heads.
enum class QueryKeyNorm : std::uint8_t { kNone, kHeads, kWidth };
enum class PositionKind : std::uint8_t { kLearned, kRotary };
enum class RopeScaling : std::uint8_t { kNone, kLinear, kLlama3, kYarn, kLongRope };
enum class Resampling : std::uint8_t { kBilinear, kBicubic };
// Which of a sequence's rows its embedding is made of.
enum class Pooling : std::uint8_t { kFirst, kMean, kLast };
// What becomes of the scores of classes: probabilities that sum to one, one of each class by itself, or the scores.
enum class ClassScores : std::uint8_t { kSoftmax, kSigmoid, kRaw };

// What one layer has that others of the model may have otherwise.
struct LayerConfig {
  int window = 0;                // of its attention, as ModelConfig::sliding_window
  bool window_rotation = false;  // rotates with ModelConfig::rope_window_theta
  bool experts = false;          // a mixture of experts instead of one MLP
};

// activation(W x + b) of a pooled embedding: a Dense module of sentence-transformers.
struct DenseLayer {
  int in = 0;
  int out = 0;
  bool bias = true;
  Activation activation = Activation::kNone;
  bool operator==(const DenseLayer&) const = default;
};

inline constexpr std::size_t kMaxAdapterRank = 256;

struct ModelConfig {
  std::string architecture;  // model_type of a Hugging Face config.json: "opt", "llama", ...
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  int max_positions = 0;  // longest sequence, prompt and completion together

  // What goes in: tokens, or square images cut into square patches behind a class token.
  int vocab = 0;            // 0: images
  int embedding_width = 0;  // of a token's row, projected to `hidden` and back (OPT 350m); 0: hidden
  int token_types = 0;      // rows of the table of token types, which tell segments apart (BERT)
  bool embedding_norm = false;
  int image_size = 0;  // pixels a side
  int patch_size = 0;  // pixels a side
  int channels = 0;
  // From an image file to values: resized to image_size a side, 0..1 a channel, less the mean, over the deviation.
  Resampling image_resampling = Resampling::kBilinear;
  std::vector<float> image_mean = {};  // [channels], or empty: 0.5
  std::vector<float> image_std = {};   // [channels], or empty: 0.5

  PositionKind positions = PositionKind::kLearned;
  int position_offset = 0;  // row p + position_offset of the position table is position p (OPT: 2)
  int rotary_dims = 0;      // elements of a head that are rotated, its first ones; 0: all
  float rope_theta = 10000;
  float rope_window_theta = 0;  // base, without any scaling, of the layers with a window; 0: as the others
  RopeScaling rope_scaling = RopeScaling::kNone;
  float rope_factor = 1;                 // linear, llama3, yarn
  float rope_low_frequency_factor = 1;   // llama3
  float rope_high_frequency_factor = 4;  // llama3
  int rope_original_positions = 0;       // llama3, yarn, longrope
  float rope_beta_fast = 32;             // yarn: turns within the original positions from which a frequency stays
  float rope_beta_slow = 1;              // yarn: turns up to which a frequency is divided by the factor
  bool rope_whole_dims = true;           // yarn: the range between the two is rounded to whole dimensions
  float rope_attention_factor = 1;       // yarn, longrope: cosines and sines are multiplied by it
  // longrope: [rotary dimensions / 2] divisors of the frequencies, for sequences that will stay within the original
  // positions and for those that may not.
  std::vector<float> rope_short_factors = {};
  std::vector<float> rope_long_factors = {};

  NormKind norm = NormKind::kLayerNorm;
  NormPosition norm_position = NormPosition::kPre;
  float norm_epsilon = 1e-5f;
  bool norm_bias = true;
  bool final_norm = true;
  bool first_attention_norm = true;  // false: layer 0 has no norm before its attention (ModernBERT)
  bool parallel_residual = false;    // h + attention(norm(h)) + mlp(norm(h)), both norms of the same h
  float residual_scale = 1;          // of what a branch gives, before it is added
  float embedding_scale = 1;         // of the embeddings of tokens

  bool causal = true;                   // false: an encoder, every token sees every other
  int sliding_window = 0;               // key j is visible to query i iff i - j < window, of encoders |i - j|; 0: all
  std::vector<int> window_layers = {};  // [layers] 1 where a layer has the window, 0 where it sees all; empty: all have
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  float attention_scale = 0;     // multiplies q·k; 0: 1 / sqrt(head_dim)
  float attention_soft_cap = 0;  // scores s are cap × tanh(s / cap); 0: as they are
  bool attention_sinks = false;  // a score a query head that belongs to no key (Xiao et al. 2024)
  bool attention_bias = true;    // q, k, v
  bool attention_output_bias = true;

  Activation activation = Activation::kRelu;
  bool mlp_bias = true;
  bool gated_mlp = false;  // down(act(gate(x)) · up(x)) instead of down(act(up(x)))
  float gate_limit = 0;    // Gate::limit
  float gate_offset = 0;   // Gate::offset
  int experts = 0;         // MLPs of which a router chooses for each token; 0: one MLP for all
  int experts_per_token = 0;
  int expert_ffn = 0;                   // of each expert; 0: ffn
  int shared_ffn = 0;                   // of an MLP beside the experts, for all tokens, that a gate weighs; 0: none
  std::vector<int> expert_layers = {};  // [layers] 1 where a layer has experts, 0 where it has one MLP; empty: all have
  RouterSoftmax router_softmax = RouterSoftmax::kChosen;
  bool router_bias = false;

  // What comes out of decoders: logits of the next token.
  bool tied_head = true;      // the output head is the token embedding; false where there is no head
  float logits_scale = 1;     // multiplies them
  float logits_soft_cap = 0;  // logits l are cap × tanh(l / cap), once scaled; 0: as they are

  // Of encoders, and of decoders that are embedders, one embedding a sequence: its rows are pooled to one, which goes
  // through the pooler, then through the dense layers, and is divided by its length at last.
  bool embeds = false;  // a decoder without output head, an embedder
  Pooling pooling = Pooling::kFirst;
  bool pooler = false;                 // tanh(W x + b)
  std::vector<DenseLayer> dense = {};  // from `hidden` inputs to the embedding's size
  bool normalize_embedding = false;

  // The scores of classes are classifier(x) of the pooled row x, behind the pooler, or, where a classifier has a layer
  // of its own before its last, classifier(norm(activation(W x + b))).
  int classes = 0;                       // 0: no scores
  std::vector<std::string> class_names;  // [classes], or empty: LABEL_0, LABEL_1, ...
  ClassScores class_scores = ClassScores::kSoftmax;
  bool class_dense = false;
  bool class_dense_bias = true;
  Activation class_activation = Activation::kTanh;
  bool class_norm = false;

  // What requests of embeddings and scores go by.
  int max_input_tokens = 0;  // longer texts are cut, tokens around them counted; 0: max_positions
  bool lower_case = false;   // texts are put into lower case before they become tokens
  std::map<std::string, std::string> prompts = {};  // by name, what is put before a text
  std::string default_prompt = {};  // the name of the one that is used where none is asked for; or empty

  std::vector<TokenId> eos_tokens;
  TokenId bos_token = -1;

  // Of a base with an adapter beside it (adapter.h): the rank by module ("layers.3.attention.query").
  std::map<std::string, int> adapter_ranks = {};

  bool takes_images() const { return image_size > 0; }
  int patches() const { return patch_size > 0 ? (image_size / patch_size) * (image_size / patch_size) : 0; }
  int patch_values() const { return channels * patch_size * patch_size; }
  int token_columns() const { return embedding_width > 0 ? embedding_width : hidden; }
  bool projects_embedding() const { return token_columns() != hidden; }
  LayerConfig layer(int index) const;
  RoutingRule routing() const { return {experts, experts_per_token, router_softmax}; }
  Gate gate() const { return {activation, gate_limit, gate_offset}; }
  int ffn_of_expert() const { return expert_ffn > 0 ? expert_ffn : ffn; }
  bool has_layers_without_experts() const;
  int rotated() const { return rotary_dims > 0 ? rotary_dims : head_dim; }
  bool has_pre_norms() const { return norm_position == NormPosition::kPre || norm_position == NormPosition::kSandwich; }
  bool has_output_norms() const {
    return norm_position == NormPosition::kOutput || norm_position == NormPosition::kSandwich;
  }
  // Whether a sequence of so many tokens, prompt and completion together, is rotated with the long factors.
  bool takes_long_factors(std::size_t tokens) const;
  std::string class_name(int index) const;
  // A sequence comes to an embedding (and scores) instead of logits.
  bool pools() const { return !causal || embeds; }
  int embedding_size() const { return dense.empty() ? hidden : dense.back().out; }
  // Tokens of a text that is embedded or classified, at most.
  int longest_input() const { return max_input_tokens > 0 ? max_input_tokens : max_positions; }

  // Keys of a Hugging Face config.json, of the generation_config.json beside it, whose tokens count instead, and of
  // preprocessor_config.json. Which families there are: family.h. ConfigError naming the key or the unsupported value.
  static ModelConfig from_hf_json(const std::string& config,
                                  const std::optional<std::string>& generation_config = std::nullopt,
                                  const std::optional<std::string>& preprocessor_config = std::nullopt);
  // The JSON stored in checkpoints: every field of this struct by its name. from_json(to_json()) is the identity. What
  // checkpoints of before a field was there lack has its initial value.
  std::string to_json() const;
  static ModelConfig from_json(const std::string& json_text);
  // `--arch opt --size 125m`; Error{kUsage} listing the known families or sizes.
  static ModelConfig named(std::string_view arch, std::string_view size);

  // Throws ConfigError when numbers contradict each other (zero sizes, heads × head_dim, ...).
  void validate() const;
};

// How tensor parallelism cuts a canonical weight. All cuts are along dimension 0 *as stored*.
enum class Split : std::uint8_t {
  kNone,     // replicated
  kVocab,    // embedding and head: rows are tokens
  kHeads,    // rows are query heads × head_dim (column-parallel)
  kKvHeads,  // rows are kv heads × head_dim
  kSinks,    // rows are query heads
  kFfn,      // rows are ffn units
};

enum class TensorRole : std::uint8_t { kGemmWeight, kTable, kVector };

// A tensor that a model of this configuration has, by canonical name.
struct TensorSpec {
  std::string name;  // "layers.3.attention.query.weight"
  TensorRole role = TensorRole::kVector;
  Split split = Split::kNone;
  std::vector<std::size_t> shape;  // as stored; row-parallel weights as [in][out]
  bool transposed = false;         // stored as [in][out]
};

// Every tensor, in execution order. A tied head has no tensor of its own. Which of them a model has, its flags say.
//   embedding.tokens.weight [vocab, width]         embedding.projection.weight [hidden, width]
//   embedding.types.weight [token_types, hidden]   embedding.positions.weight [positions + offset, hidden]
//   embedding.patches.{weight [hidden, channels × patch × patch],bias}     embedding.class_token [hidden]
//   embedding.norm.{weight,bias}
//   layers.N.attention_norm.{weight,bias}          layers.N.attention.{query,key,value}.{weight,bias}
//   layers.N.attention.{query,key}_norm.weight [head_dim, or that of all heads]
//   layers.N.attention.sinks [heads]
//   layers.N.attention.output.{weight,bias}        layers.N.attention_output_norm.weight
//   layers.N.mlp_norm.{weight,bias}                layers.N.mlp_output_norm.weight
//   layers.N.mlp.{gate,}up.{weight,bias}           layers.N.mlp.down.{weight,bias}
//   layers.N.mlp.router.{weight [experts, hidden],bias}     layers.N.mlp.experts.E.{gate,up,down}.{weight,bias}
//   layers.N.mlp.shared_gate.weight [1, hidden]    layers.N.mlp.shared.{gate,up,down}.weight
//   final_norm.{weight,bias}
//   head.projection.weight [width, hidden]         head.weight [vocab, width]
//   pooler.{weight,bias} [hidden, hidden]          dense.N.{weight [out, in],bias}
//   classifier.dense.{weight [hidden, hidden],bias}         classifier.norm.{weight,bias}
//   classifier.{weight,bias} [classes, hidden]
// And of an adapter, behind the weight of each module that it changes:
//   MODULE.lora_a [in, rank]     MODULE.lora_scale [1]     MODULE.lora_b [out, rank]
std::vector<TensorSpec> tensor_specs(const ModelConfig& config);

}  // namespace computron
