// OLMo 2 (Walsh et al. 2024) and OLMo 3, transformers' Olmo2Config and Olmo3Config: norms of what a branch gives, and
// of queries and keys over their whole width. OLMo 3 has layers with a window between those that see all, which alone
// are scaled for longer texts.
#include "src/model/families/llama_like.h"

namespace computron {
namespace {

ModelConfig read_common(const HfKeys& keys, int max_positions) {
  ModelConfig c = read_llama_like(
      keys, {.ffn = 11008, .kv_heads = 0, .max_positions = max_positions, .norm_epsilon = 1e-5f, .vocab = 50304});
  keys.require("attention_bias", false, false);
  c.norm_position = NormPosition::kOutput;
  c.query_key_norm = QueryKeyNorm::kWidth;
  keys.read_tokens(c, {}, {50279});
  return c;
}

ModelConfig read_olmo2(const HfKeys& keys) {
  keys.architecture({"Olmo2ForCausalLM", "Olmo2Model"});
  ModelConfig c = read_common(keys, 2048);
  keys.read_rotary(c, 10000);
  return c;
}

ModelConfig read_olmo3(const HfKeys& keys) {
  keys.architecture({"Olmo3ForCausalLM", "Olmo3Model"});
  ModelConfig c = read_common(keys, 2048);
  const std::vector<int> layers = keys.window_layers();
  set_windows(c, keys.value_or_none("sliding_window", 4096, 0), layers.empty() ? windows_but_each(4, c) : layers);
  keys.read_rotary_by_layer(c, 10000, /*window_key=*/"rope_theta", /*default_window_theta=*/std::nullopt);
  return c;
}

constexpr std::array kNorms = {
    NameRule{"layers.{}.attention_output_norm", "layers.{}.post_attention_layernorm"},
    NameRule{"layers.{}.mlp_output_norm", "layers.{}.post_feedforward_layernorm"},
};
constexpr std::array kNames = joined(kNorms, kLlamaLikeNames);

constexpr PublishedSize kOlmo2Sizes[] = {
    {"1b", R"({"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 16,
               "vocab_size": 100352, "max_position_embeddings": 4096, "rope_theta": 500000, "rms_norm_eps": 1e-6,
               "eos_token_id": 100257})"},
    {"7b", R"({"vocab_size": 100352, "max_position_embeddings": 4096, "rope_theta": 500000, "rms_norm_eps": 1e-6,
               "eos_token_id": 100257})"},
    {"13b", R"({"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
                "vocab_size": 100352, "max_position_embeddings": 4096, "rope_theta": 500000, "rms_norm_eps": 1e-6,
                "eos_token_id": 100257})"},
    {"32b", R"({"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
                "num_key_value_heads": 8, "vocab_size": 100352, "max_position_embeddings": 4096, "rope_theta": 500000,
                "rms_norm_eps": 1e-6, "eos_token_id": 100257})"},
};

constexpr PublishedSize kOlmo3Sizes[] = {
    {"7b", R"({"vocab_size": 100278, "max_position_embeddings": 65536, "rope_theta": 500000, "rms_norm_eps": 1e-6,
               "eos_token_id": 100257,
               "rope_scaling": {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 8192,
                                "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1}})"},
    {"32b", R"({"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
                "num_key_value_heads": 8, "vocab_size": 100278, "max_position_embeddings": 65536, "rope_theta": 500000,
                "rms_norm_eps": 1e-6, "eos_token_id": 100257,
                "rope_scaling": {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 8192,
                                 "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1}})"},
};

}  // namespace

const Family kOlmo2{.model_type = "olmo2",
                    .read = read_olmo2,
                    .names = kNames,
                    .prefix = "model.",
                    .ignored = {},
                    .sizes = kOlmo2Sizes};
const Family kOlmo3{.model_type = "olmo3",
                    .read = read_olmo3,
                    .names = kNames,
                    .prefix = "model.",
                    .ignored = {},
                    .sizes = kOlmo3Sizes};

}  // namespace computron
