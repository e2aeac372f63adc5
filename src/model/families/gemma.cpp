// Gemma 2 (Riviere et al. 2024) and the decoder of Gemma 3 (Kamath et al. 2025), transformers' Gemma2Config and
// Gemma3TextConfig: norms around each branch, whose weights are what is added to one; scaled embeddings; layers with a
// window between those that see all. Gemma 2 caps scores and logits; Gemma 3 normalises queries and keys, and rotates
// with a base of their own in layers with a window.
#include <cmath>

#include "src/model/families/llama_like.h"

namespace computron {
namespace {

ModelConfig read_common(const HfKeys& keys, const LlamaDefaults& defaults) {
  ModelConfig c = read_llama_like(keys, defaults);
  keys.require("attention_bias", false, false);
  keys.require("use_bidirectional_attention", false, false);
  c.norm = NormKind::kRmsNormPlusOne;
  c.norm_position = NormPosition::kSandwich;
  c.activation = keys.activation("hidden_activation", "gelu_pytorch_tanh");
  c.embedding_scale = std::sqrt(static_cast<float>(c.hidden));  // transformers rounds it to the type it computes in
  c.attention_scale = 1 / std::sqrt(keys.value("query_pre_attn_scalar", 256.0f));
  keys.read_tokens(c, {2}, {1});
  return c;
}

ModelConfig read_gemma2(const HfKeys& keys) {
  keys.architecture({"Gemma2ForCausalLM", "Gemma2Model"});
  ModelConfig c = read_common(keys, {.ffn = 9216,
                                     .kv_heads = 4,
                                     .max_positions = 8192,
                                     .norm_epsilon = 1e-6f,
                                     .vocab = 256000,
                                     .hidden = 2304,
                                     .layers = 26,
                                     .heads = 8,
                                     .head_dim = 256,
                                     .tied_head = true});
  c.attention_soft_cap = keys.value_or_none("attn_logit_softcapping", 50.0f, 0.0f);
  c.logits_soft_cap = keys.value_or_none("final_logit_softcapping", 30.0f, 0.0f);
  const std::vector<int> layers = keys.window_layers();
  set_windows(c, keys.value_or_none("sliding_window", 4096, 0), layers.empty() ? windows_but_each(2, c) : layers);
  keys.read_rotary(c, 10000);
  return c;
}

ModelConfig read_gemma3(const HfKeys& keys) {
  keys.architecture({"Gemma3ForCausalLM", "Gemma3TextModel"});
  ModelConfig c = read_common(keys, {.ffn = 9216,
                                     .kv_heads = 4,
                                     .max_positions = 131072,
                                     .norm_epsilon = 1e-6f,
                                     .vocab = 262208,
                                     .hidden = 2304,
                                     .layers = 26,
                                     .heads = 8,
                                     .head_dim = 256,
                                     .tied_head = true});
  c.query_key_norm = QueryKeyNorm::kHeads;
  c.attention_soft_cap = keys.value("attn_logit_softcapping", 0.0f);
  c.logits_soft_cap = keys.value("final_logit_softcapping", 0.0f);
  const int period = keys.value("sliding_window_pattern", 6);
  if (period < 1) HfKeys::refuse("sliding_window_pattern", period, "a number of at least 1");
  const std::vector<int> layers = keys.window_layers();
  set_windows(c, keys.value_or_none("sliding_window", 4096, 0), layers.empty() ? windows_but_each(period, c) : layers);
  const int positions = c.max_positions;
  keys.read_rotary_by_layer(c, 1e6f, "rope_local_base_freq", 10000.0f);
  c.max_positions = positions;  // max_position_embeddings is scaled already (vLLM)
  return c;
}

constexpr std::array kNorms = {
    NameRule{"layers.{}.attention_norm", "layers.{}.input_layernorm"},
    NameRule{"layers.{}.attention_output_norm", "layers.{}.post_attention_layernorm"},
    NameRule{"layers.{}.mlp_norm", "layers.{}.pre_feedforward_layernorm"},
    NameRule{"layers.{}.mlp_output_norm", "layers.{}.post_feedforward_layernorm"},
};
constexpr std::array kNames = joined(kNorms, kLlamaLikeNames);

// Of the models that take pictures.
constexpr std::string_view kIgnored[] = {"vision_tower.*", "multi_modal_projector.*"};

constexpr PublishedSize kGemma2Sizes[] = {
    {"2b", R"({})"},
    {"9b", R"({"hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16,
               "num_key_value_heads": 8})"},
    {"27b", R"({"hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46, "num_attention_heads": 32,
                "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 144})"},
};

constexpr PublishedSize kGemma3Sizes[] = {
    {"270m", R"({"hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4,
                 "num_key_value_heads": 1, "vocab_size": 262144, "max_position_embeddings": 32768,
                 "sliding_window": 512, "eos_token_id": [1, 106]})"},
    {"1b", R"({"hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1,
               "vocab_size": 262144, "max_position_embeddings": 32768, "sliding_window": 512,
               "eos_token_id": [1, 106]})"},
    {"4b", R"({"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
               "rope_scaling": {"rope_type": "linear", "factor": 8}, "eos_token_id": [1, 106]})"},
    {"12b", R"({"hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16,
                "num_key_value_heads": 8, "sliding_window": 1024,
                "rope_scaling": {"rope_type": "linear", "factor": 8}, "eos_token_id": [1, 106]})"},
    {"27b", R"({"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32,
                "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168, "sliding_window": 1024,
                "rope_scaling": {"rope_type": "linear", "factor": 8}, "eos_token_id": [1, 106]})"},
};

}  // namespace

const Family kGemma2{.model_type = "gemma2",
                     .read = read_gemma2,
                     .names = kNames,
                     .prefix = "model.",
                     .ignored = {},
                     .sizes = kGemma2Sizes};
const Family kGemma3{.model_type = "gemma3_text",
                     .read = read_gemma3,
                     .names = kNames,
                     .prefix = "model.",
                     .ignored = kIgnored,
                     .sizes = kGemma3Sizes,
                     .outer_prefix = "language_model."};

}  // namespace computron
