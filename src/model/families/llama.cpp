// Llama (Touvron et al. 2023) and what was built after it: Qwen2, Mistral, Mixtral. Their blocks differ in biases, in
// how far attention looks back, and in whether there is one MLP or a choice of experts.
#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {
namespace {

// Where the families' configuration classes differ.
struct Defaults {
  int ffn, kv_heads, max_positions;
  float norm_epsilon, rope_theta;
  int vocab = 32000;
};

ModelConfig read_common(const HfKeys& keys, const Defaults& defaults) {
  ModelConfig c;
  c.layers = keys.value("num_hidden_layers", 32);
  c.hidden = keys.value("hidden_size", 4096);
  c.heads = keys.value("num_attention_heads", 32);
  c.kv_heads = keys.value_or_none("num_key_value_heads", defaults.kv_heads > 0 ? defaults.kv_heads : c.heads, c.heads);
  c.head_dim = keys.has("head_dim") ? keys.value("head_dim", 0) : HfKeys::head_dim(c.hidden, c.heads);
  c.ffn = keys.value("intermediate_size", defaults.ffn);
  c.vocab = keys.value("vocab_size", defaults.vocab);
  c.max_positions = keys.value("max_position_embeddings", defaults.max_positions);
  c.norm = NormKind::kRmsNorm;
  c.norm_bias = false;
  c.norm_epsilon = keys.value("rms_norm_eps", defaults.norm_epsilon);
  c.attention_bias = c.attention_output_bias = c.mlp_bias = false;
  c.activation = keys.activation("hidden_act", "silu");
  c.gated_mlp = true;
  c.tied_head = keys.value("tie_word_embeddings", false);
  keys.read_rotary(c, defaults.rope_theta);
  return c;
}

ModelConfig read_llama(const HfKeys& keys) {
  keys.architecture({"LlamaForCausalLM", "LlamaModel"});
  ModelConfig c = read_common(
      keys, {.ffn = 11008, .kv_heads = 0, .max_positions = 2048, .norm_epsilon = 1e-6f, .rope_theta = 10000});
  c.attention_bias = c.attention_output_bias = keys.value("attention_bias", false);
  c.mlp_bias = keys.value("mlp_bias", false);
  keys.read_tokens(c, {1}, {2});
  return c;
}

// Layers from max_window_layers on have a window, if any has, and layer_types does not say it for each.
int qwen2_window(const HfKeys& keys, int layers) {
  const int window = keys.value_or_none("sliding_window", 4096, 0);
  if (const auto slide = keys.all_layers("layer_types", "sliding_attention", "full_attention")) {
    return *slide && keys.value("use_sliding_window", false) ? window : 0;
  }
  const int first = keys.value("max_window_layers", 28);
  if (!keys.value("use_sliding_window", false) || first >= layers) return 0;
  if (first > 0) HfKeys::refuse("max_window_layers", first, "0 or at least the number of layers");
  return window;
}

ModelConfig read_qwen2(const HfKeys& keys) {
  keys.architecture({"Qwen2ForCausalLM", "Qwen2Model"});
  ModelConfig c = read_common(keys, {.ffn = 22016,
                                     .kv_heads = 32,
                                     .max_positions = 32768,
                                     .norm_epsilon = 1e-6f,
                                     .rope_theta = 10000,
                                     .vocab = 151936});
  c.attention_bias = true;
  c.sliding_window = qwen2_window(keys, c.layers);
  keys.read_tokens(c, {}, {});
  return c;
}

ModelConfig read_mistral(const HfKeys& keys) {
  keys.architecture({"MistralForCausalLM", "MistralModel"});
  ModelConfig c = read_common(
      keys, {.ffn = 14336, .kv_heads = 8, .max_positions = 131072, .norm_epsilon = 1e-6f, .rope_theta = 10000});
  c.sliding_window = keys.value_or_none("sliding_window", 4096, 0);
  keys.read_tokens(c, {1}, {2});
  return c;
}

ModelConfig read_mixtral(const HfKeys& keys) {
  keys.architecture({"MixtralForCausalLM", "MixtralModel"});
  ModelConfig c = read_common(
      keys, {.ffn = 14336, .kv_heads = 8, .max_positions = 131072, .norm_epsilon = 1e-5f, .rope_theta = 1e6f});
  c.sliding_window = keys.value_or_none("sliding_window", 0, 0);
  c.experts = keys.value("num_local_experts", keys.value("num_experts", 8));
  c.experts_per_token = keys.value("num_experts_per_tok", 2);
  keys.read_tokens(c, {1}, {2});
  return c;
}

constexpr NameRule kNames[] = {
    {"embedding.tokens", "embed_tokens"},
    {"layers.{}.attention_norm", "layers.{}.input_layernorm"},
    {"layers.{}.attention.query", "layers.{}.self_attn.q_proj"},
    {"layers.{}.attention.key", "layers.{}.self_attn.k_proj"},
    {"layers.{}.attention.value", "layers.{}.self_attn.v_proj"},
    {"layers.{}.attention.output", "layers.{}.self_attn.o_proj"},
    {"layers.{}.mlp_norm", "layers.{}.post_attention_layernorm"},
    {"layers.{}.mlp.gate", "layers.{}.mlp.gate_proj"},
    {"layers.{}.mlp.up", "layers.{}.mlp.up_proj"},
    {"layers.{}.mlp.down", "layers.{}.mlp.down_proj"},
    {"layers.{}.mlp.router", "layers.{}.block_sparse_moe.gate"},
    {"layers.{}.mlp.experts.{}.gate", "layers.{}.block_sparse_moe.experts.{}.w1"},
    {"layers.{}.mlp.experts.{}.up", "layers.{}.block_sparse_moe.experts.{}.w3"},
    {"layers.{}.mlp.experts.{}.down", "layers.{}.block_sparse_moe.experts.{}.w2"},
    {"final_norm", "norm"},
    {"head", "lm_head"},
};

constexpr std::string_view kIgnored[] = {"layers.*.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"};

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

constexpr PublishedSize kMistralSizes[] = {
    {"7b-v0.1", R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": 4096})"},
    {"7b-v0.3", R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": null,
                    "vocab_size": 32768, "rope_theta": 1000000})"},
};

constexpr PublishedSize kMixtralSizes[] = {
    {"8x7b", R"({"max_position_embeddings": 32768})"},
    {"8x22b", R"({"hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56, "num_attention_heads": 48,
                  "max_position_embeddings": 65536})"},
};

}  // namespace

const Family kLlama{.model_type = "llama",
                    .read = read_llama,
                    .names = kNames,
                    .prefix = "model.",
                    .ignored = kIgnored,
                    .sizes = kLlamaSizes};
const Family kQwen2{.model_type = "qwen2",
                    .read = read_qwen2,
                    .names = kNames,
                    .prefix = "model.",
                    .ignored = kIgnored,
                    .sizes = kQwen2Sizes};
const Family kMistral{.model_type = "mistral",
                      .read = read_mistral,
                      .names = kNames,
                      .prefix = "model.",
                      .ignored = kIgnored,
                      .sizes = kMistralSizes};
const Family kMixtral{.model_type = "mixtral",
                      .read = read_mixtral,
                      .names = kNames,
                      .prefix = "model.",
                      .ignored = kIgnored,
                      .sizes = kMixtralSizes};

}  // namespace computron
