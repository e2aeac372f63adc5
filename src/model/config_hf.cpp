// ModelConfig::from_hf_json: what a Hugging Face config.json means, family by family. Absent keys take the defaults of
// the family's configuration class in transformers; a value that this program does not compute is refused by name.
#include "computron/model/config.h"
#include "config_json.h"

namespace computron {
namespace {

using nlohmann::json;

// The key's value, or `fallback` if it is absent. null counts as absent, as in transformers.
template <class Value>
Value value_or(const json& hf, const char* key, Value fallback) {
  const auto found = hf.find(key);
  if (found != hf.end() && !found->is_null()) read_value(key, *found, fallback);
  return fallback;
}

// A setting that must have the one value this program computes.
template <class Value>
void require_value(const json& hf, const char* key, const Value& only, const Value& fallback) {
  const Value value = value_or(hf, key, fallback);
  if (value == only) return;
  throw ConfigError(
      fmt::format("model configuration: '{}' is {}, only {} is supported", key, json(value).dump(), json(only).dump()));
}

// One token or a list of them.
std::vector<TokenId> tokens_or(const json& hf, const char* key, TokenId fallback) {
  const auto found = hf.find(key);
  if (found != hf.end() && found->is_array()) return value_or(hf, key, std::vector<TokenId>{});
  if (found != hf.end() && found->is_null()) return {};
  return {value_or(hf, key, fallback)};
}

Activation opt_activation(const json& hf) {
  const auto name = value_or<std::string>(hf, "activation_function", "relu");
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGeluErf;
  throw ConfigError(fmt::format("model configuration: 'activation_function' is {}, expected \"relu\" or \"gelu\"",
                                json(name).dump()));
}

void refuse_unsupported_opt(const json& hf, int hidden) {
  require_value(hf, "do_layer_norm_before", true, true);
  require_value(hf, "layer_norm_elementwise_affine", true, true);
  require_value(hf, "word_embed_proj_dim", hidden, hidden);
}

int head_dim_of(int hidden, int heads) {
  if (heads > 0 && hidden % heads == 0) return hidden / heads;
  throw ConfigError(fmt::format("model configuration: 'hidden_size' {} is not a multiple of 'num_attention_heads' {}",
                                hidden, heads));
}

// transformers' OPTConfig.
ModelConfig opt_from_hf(const json& hf) {
  ModelConfig config;
  config.architecture = "opt";
  config.layers = value_or(hf, "num_hidden_layers", 12);
  config.hidden = value_or(hf, "hidden_size", 768);
  config.heads = value_or(hf, "num_attention_heads", 12);
  config.kv_heads = config.heads;
  config.head_dim = head_dim_of(config.hidden, config.heads);
  config.ffn = value_or(hf, "ffn_dim", 3072);
  config.vocab = value_or(hf, "vocab_size", 50272);
  config.max_positions = value_or(hf, "max_position_embeddings", 2048);
  config.position_offset = 2;
  config.activation = opt_activation(hf);
  config.attention_bias = config.mlp_bias = value_or(hf, "enable_bias", true);
  config.final_norm = !value_or(hf, "_remove_final_layer_norm", false);
  config.tied_head = value_or(hf, "tie_word_embeddings", true);
  config.eos_tokens = tokens_or(hf, "eos_token_id", 2);
  const std::vector<TokenId> bos = tokens_or(hf, "bos_token_id", 2);
  config.bos_token = bos.empty() ? -1 : bos.front();
  refuse_unsupported_opt(hf, config.hidden);
  return config;
}

}  // namespace

ModelConfig ModelConfig::from_hf_json(const std::string& json_text) {
  const json hf = parse_json_object(json_text);
  const auto quantization = hf.find("quantization_config");
  if (quantization != hf.end() && !quantization->is_null()) {
    throw ConfigError("model configuration: 'quantization_config' is set, quantized weights are not supported");
  }
  const auto family = value_or<std::string>(hf, "model_type", "");
  if (family != "opt") {
    throw ConfigError(fmt::format("model configuration: 'model_type' is {}, expected \"opt\"", json(family).dump()));
  }
  ModelConfig config = opt_from_hf(hf);
  config.validate();
  return config;
}

}  // namespace computron
