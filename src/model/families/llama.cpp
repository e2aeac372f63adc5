// Llama (Touvron et al. 2023) and what was built after it: Qwen2, Qwen3, Mistral, Mixtral, Granite. Their blocks differ
// in biases, in norms of queries and keys, in multipliers, in how far attention looks back, and in whether there is one
// MLP or a choice of experts.
#include <utility>

#include "src/model/families/llama_like.h"

namespace computron {
namespace {

ModelConfig read_llama(const HfKeys& keys) {
  keys.architecture({"LlamaForCausalLM", "LlamaModel"});
  ModelConfig c = read_llama_like(keys, {.ffn = 11008, .kv_heads = 0, .max_positions = 2048, .norm_epsilon = 1e-6f});
  read_attention_bias(keys, c);
  c.mlp_bias = keys.value("mlp_bias", false);
  keys.read_rotary(c, 10000);
  keys.read_tokens(c, {1}, {2});
  return c;
}

// Layers from max_window_layers on have a window, if any has, and layer_types does not say it for each.
void read_qwen_windows(const HfKeys& keys, ModelConfig& c) {
  const int window = keys.value_or_none("sliding_window", 4096, 0);
  if (!keys.value("use_sliding_window", false) || window == 0) return;
  std::vector<int> layers = keys.window_layers();
  if (layers.empty()) {
    const int first = keys.value("max_window_layers", 28);
    for (int layer = 0; layer < most_layers(c); ++layer) layers.push_back(layer >= first ? 1 : 0);
  }
  set_windows(c, window, std::move(layers));
}

ModelConfig read_qwen2(const HfKeys& keys) {
  keys.architecture({"Qwen2ForCausalLM", "Qwen2Model"});
  ModelConfig c = read_llama_like(
      keys, {.ffn = 22016, .kv_heads = 32, .max_positions = 32768, .norm_epsilon = 1e-6f, .vocab = 151936});
  c.attention_bias = true;
  read_qwen_windows(keys, c);
  keys.read_rotary(c, 10000);
  keys.read_tokens(c, {}, {});
  return c;
}

ModelConfig read_qwen3(const HfKeys& keys) {
  keys.architecture({"Qwen3ForCausalLM", "Qwen3Model"});
  ModelConfig c = read_llama_like(
      keys,
      {.ffn = 22016, .kv_heads = 32, .max_positions = 32768, .norm_epsilon = 1e-6f, .vocab = 151936, .head_dim = 128});
  read_attention_bias(keys, c);
  c.query_key_norm = QueryKeyNorm::kHeads;
  read_qwen_windows(keys, c);
  keys.read_rotary(c, 10000);
  keys.read_tokens(c, {}, {});
  return c;
}

ModelConfig read_mistral(const HfKeys& keys) {
  keys.architecture({"MistralForCausalLM", "MistralModel"});
  ModelConfig c = read_llama_like(keys, {.ffn = 14336, .kv_heads = 8, .max_positions = 131072, .norm_epsilon = 1e-6f});
  c.sliding_window = keys.value_or_none("sliding_window", 4096, 0);
  keys.read_rotary(c, 10000);
  keys.read_tokens(c, {1}, {2});
  return c;
}

ModelConfig read_mixtral(const HfKeys& keys) {
  keys.architecture({"MixtralForCausalLM", "MixtralModel"});
  ModelConfig c = read_llama_like(keys, {.ffn = 14336, .kv_heads = 8, .max_positions = 131072, .norm_epsilon = 1e-5f});
  c.sliding_window = keys.value_or_none("sliding_window", 0, 0);
  c.experts = keys.value("num_local_experts", keys.value("num_experts", 8));
  c.experts_per_token = keys.value("num_experts_per_tok", 2);
  keys.read_rotary(c, 1e6f);
  keys.read_tokens(c, {1}, {2});
  return c;
}

ModelConfig read_granite(const HfKeys& keys) {
  keys.architecture({"GraniteForCausalLM", "GraniteModel"});
  ModelConfig c = read_llama_like(keys, {.ffn = 11008, .kv_heads = 0, .max_positions = 2048, .norm_epsilon = 1e-6f});
  keys.require("attention_bias", false, false);
  keys.require("mlp_bias", false, false);
  c.embedding_scale = keys.value("embedding_multiplier", 1.0f);
  c.attention_scale = keys.value("attention_multiplier", 1.0f);
  if (!(c.attention_scale > 0)) HfKeys::refuse("attention_multiplier", c.attention_scale, "a number above 0");
  c.residual_scale = keys.value("residual_multiplier", 1.0f);
  c.logits_scale = 1 / keys.value("logits_scaling", 1.0f);
  keys.read_rotary(c, 10000);
  keys.read_tokens(c, {1}, {2});
  return c;
}

constexpr std::array kExpertNames = {
    NameRule{"layers.{}.mlp.router", "layers.{}.block_sparse_moe.gate"},
    NameRule{"layers.{}.mlp.experts.{}.gate", "layers.{}.block_sparse_moe.experts.{}.w1"},
    NameRule{"layers.{}.mlp.experts.{}.up", "layers.{}.block_sparse_moe.experts.{}.w3"},
    NameRule{"layers.{}.mlp.experts.{}.down", "layers.{}.block_sparse_moe.experts.{}.w2"},
};
constexpr std::array kMixtralNames = joined(kExpertNames, kPreNormLlamaNames);

// Of a model that is a part of one that takes pictures, as Mistral Small 3.1 is.
constexpr std::string_view kMistralIgnored[] = {kRotaryTables[0], kRotaryTables[1], "vision_tower.*",
                                                "multi_modal_projector.*"};

constexpr PublishedSize kLlamaSizes[] = {
    {"2-7b", R"({"max_position_embeddings": 4096, "rms_norm_eps": 1e-5})"},
    {"2-13b", R"({"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
                  "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})"},
    {"2-70b", R"({"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
                  "num_key_value_heads": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})"},
    {"3-8b", R"({"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000,
                 "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "bos_token_id": 128000,
                 "eos_token_id": [128001, 128009]})"},
    {"3.1-8b", R"({"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000,
                   "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "bos_token_id": 128000,
                   "eos_token_id": [128001, 128008, 128009],
                   "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                                    "original_max_position_embeddings": 8192}})"},
    {"3.1-70b", R"({"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
                    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000,
                    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "bos_token_id": 128000,
                    "eos_token_id": [128001, 128008, 128009],
                    "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                                     "original_max_position_embeddings": 8192}})"},
    {"3.2-1b", R"({"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_key_value_heads": 8,
                   "head_dim": 64, "vocab_size": 128256, "rope_theta": 500000, "max_position_embeddings": 131072,
                   "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "bos_token_id": 128000,
                   "eos_token_id": [128001, 128008, 128009],
                   "rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4,
                                    "original_max_position_embeddings": 8192}})"},
    {"3.2-3b", R"({"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
                   "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rope_theta": 500000,
                   "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
                   "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
                   "rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4,
                                    "original_max_position_embeddings": 8192}})"},
};

constexpr PublishedSize kQwen2Sizes[] = {
    {"2.5-0.5b", R"({"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                     "num_attention_heads": 14, "num_key_value_heads": 2, "rope_theta": 1000000,
                     "tie_word_embeddings": true, "bos_token_id": 151643, "eos_token_id": 151643})"},
    {"2.5-1.5b", R"({"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
                     "num_attention_heads": 12, "num_key_value_heads": 2, "rope_theta": 1000000,
                     "tie_word_embeddings": true, "bos_token_id": 151643, "eos_token_id": 151643})"},
    {"2.5-3b", R"({"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
                   "num_attention_heads": 16, "num_key_value_heads": 2, "rope_theta": 1000000,
                   "tie_word_embeddings": true, "bos_token_id": 151643, "eos_token_id": 151643})"},
    {"2.5-7b", R"({"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                   "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "rope_theta": 1000000,
                   "max_position_embeddings": 131072, "bos_token_id": 151643, "eos_token_id": 151643})"},
    {"2.5-14b", R"({"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48,
                    "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064, "rope_theta": 1000000,
                    "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "bos_token_id": 151643,
                    "eos_token_id": 151643})"},
};

constexpr PublishedSize kQwen3Sizes[] = {
    {"0.6b", R"({"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
                 "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000,
                 "tie_word_embeddings": true, "bos_token_id": 151643, "eos_token_id": [151645, 151643]})"},
    {"1.7b", R"({"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
                 "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000,
                 "tie_word_embeddings": true, "bos_token_id": 151643, "eos_token_id": [151645, 151643]})"},
    {"4b", R"({"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
               "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000,
               "tie_word_embeddings": true, "bos_token_id": 151643, "eos_token_id": [151645, 151643]})"},
    {"8b", R"({"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
               "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000,
               "bos_token_id": 151643, "eos_token_id": [151645, 151643]})"},
    {"14b", R"({"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40,
                "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000,
                "bos_token_id": 151643, "eos_token_id": [151645, 151643]})"},
    {"32b", R"({"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64,
                "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000,
                "bos_token_id": 151643, "eos_token_id": [151645, 151643]})"},
};

constexpr PublishedSize kMistralSizes[] = {
    {"7b-v0.1", R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": 4096})"},
    {"7b-v0.3", R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": null,
                    "vocab_size": 32768, "rope_theta": 1000000})"},
    {"small-3.1-24b", R"({"hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40, "head_dim": 128,
                          "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "sliding_window": null,
                          "vocab_size": 131072, "rope_theta": 1000000000})"},
};

constexpr PublishedSize kMixtralSizes[] = {
    {"8x7b", R"({"max_position_embeddings": 32768})"},
    {"8x22b", R"({"hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56, "num_attention_heads": 48,
                  "max_position_embeddings": 65536})"},
};

constexpr PublishedSize kGraniteSizes[] = {
    {"3.1-2b", R"({"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40, "num_key_value_heads": 8,
                   "vocab_size": 49155, "max_position_embeddings": 131072, "rope_theta": 5000000, "rms_norm_eps": 1e-5,
                   "tie_word_embeddings": true, "embedding_multiplier": 12, "attention_multiplier": 0.015625,
                   "residual_multiplier": 0.22, "logits_scaling": 8, "bos_token_id": 0, "eos_token_id": 0})"},
    {"3.1-8b", R"({"hidden_size": 4096, "intermediate_size": 12800, "num_hidden_layers": 40, "num_key_value_heads": 8,
                   "vocab_size": 49155, "max_position_embeddings": 131072, "rope_theta": 10000000, "rms_norm_eps": 1e-5,
                   "tie_word_embeddings": true, "embedding_multiplier": 12, "attention_multiplier": 0.0078125,
                   "residual_multiplier": 0.22, "logits_scaling": 16, "bos_token_id": 0, "eos_token_id": 0})"},
};

}  // namespace

const Family kLlama{.model_type = "llama",
                    .read = read_llama,
                    .names = kPreNormLlamaNames,
                    .prefix = "model.",
                    .ignored = kRotaryTables,
                    .sizes = kLlamaSizes};
const Family kQwen2{.model_type = "qwen2",
                    .read = read_qwen2,
                    .names = kPreNormLlamaNames,
                    .prefix = "model.",
                    .ignored = kRotaryTables,
                    .sizes = kQwen2Sizes};
const Family kQwen3{.model_type = "qwen3",
                    .read = read_qwen3,
                    .names = kPreNormLlamaNames,
                    .prefix = "model.",
                    .ignored = kRotaryTables,
                    .sizes = kQwen3Sizes};
const Family kMistral{.model_type = "mistral",
                      .read = read_mistral,
                      .names = kPreNormLlamaNames,
                      .prefix = "model.",
                      .ignored = kMistralIgnored,
                      .sizes = kMistralSizes,
                      .outer_prefix = "language_model."};
const Family kMixtral{.model_type = "mixtral",
                      .read = read_mixtral,
                      .names = kMixtralNames,
                      .prefix = "model.",
                      .ignored = kRotaryTables,
                      .sizes = kMixtralSizes};
const Family kGranite{.model_type = "granite",
                      .read = read_granite,
                      .names = kPreNormLlamaNames,
                      .prefix = "model.",
                      .ignored = kRotaryTables,
                      .sizes = kGraniteSizes};

}  // namespace computron
