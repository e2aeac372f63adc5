// The configuration of a transformer: one struct of numbers and flags that every family is a setting of.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "computron/base/types.h"
#include "computron/ops/ops.h"

namespace computron {

enum class NormPosition : std::uint8_t { kPre, kPost };
enum class PositionKind : std::uint8_t { kLearned, kRotary };

struct ModelConfig {
  std::string architecture;  // "opt"
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  int vocab = 0;
  int max_positions = 0;    // longest sequence, prompt and completion together
  int position_offset = 0;  // row p + position_offset of the position table is position p (OPT: 2)

  NormKind norm = NormKind::kLayerNorm;
  NormPosition norm_position = NormPosition::kPre;
  PositionKind positions = PositionKind::kLearned;
  Activation activation = Activation::kRelu;
  float norm_epsilon = 1e-5f;
  bool norm_bias = true;
  bool attention_bias = true;  // q, k, v, out
  bool mlp_bias = true;
  bool gated_mlp = false;      // down(act(gate(x)) · up(x)) instead of down(act(up(x)))
  bool final_norm = true;
  bool tied_head = true;       // the output head is the token embedding

  std::vector<TokenId> eos_tokens;
  TokenId bos_token = -1;

  // Keys of a Hugging Face config.json. ConfigError naming the key or the unsupported value.
  static ModelConfig from_hf_json(const std::string& json_text);
  // The JSON stored in checkpoints: every field of this struct by its name. from_json(to_json()) is the identity.
  std::string to_json() const;
  static ModelConfig from_json(const std::string& json_text);
  // `--arch opt --size 125m`; Error{kUsage} listing the known sizes.
  static ModelConfig named(std::string_view arch, std::string_view size);

  // Throws ConfigError when numbers contradict each other (zero sizes, heads × head_dim, ...).
  void validate() const;
};

// How tensor parallelism cuts a canonical weight. All cuts are along dimension 0 *as stored*.
enum class Split : std::uint8_t {
  kNone,    // replicated
  kVocab,   // embedding and head: rows are tokens
  kHeads,   // rows are query heads × head_dim (column-parallel)
  kKvHeads, // rows are kv heads × head_dim
  kFfn,     // rows are ffn units
};

enum class TensorRole : std::uint8_t { kGemmWeight, kTable, kVector };

// A tensor that a model of this configuration has, by canonical name.
struct TensorSpec {
  std::string name;                // "layers.3.attention.query.weight"
  TensorRole role = TensorRole::kVector;
  Split split = Split::kNone;
  std::vector<std::size_t> shape;  // as stored; row-parallel weights as [in][out]
  bool transposed = false;         // stored as [in][out]
};

// Every tensor, in execution order. A tied head has no tensor of its own.
//   embedding.tokens.weight [vocab, hidden]        embedding.positions.weight [positions + offset, hidden]
//   layers.N.attention_norm.{weight,bias}          layers.N.attention.{query,key,value}.{weight,bias}
//   layers.N.attention.output.{weight,bias}        layers.N.mlp_norm.{weight,bias}
//   layers.N.mlp.{gate,}up.{weight,bias}           layers.N.mlp.down.{weight,bias}
//   final_norm.{weight,bias}                       head.weight [vocab, hidden]
std::vector<TensorSpec> tensor_specs(const ModelConfig& config);

}  // namespace computron
