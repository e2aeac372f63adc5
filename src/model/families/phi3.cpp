// Phi-3 (Abdin et al. 2024) and Phi-4, transformers' Phi3Config: Llama with q | k | v and gate | up as one tensor each,
// some sizes with a part of each head rotated, and longrope.
#include "src/model/families/llama_like.h"

namespace computron {
namespace {

ModelConfig read(const HfKeys& keys) {
  keys.architecture({"Phi3ForCausalLM", "Phi3Model"});
  ModelConfig c = read_llama_like(
      keys, {.ffn = 8192, .kv_heads = 0, .max_positions = 4096, .norm_epsilon = 1e-5f, .vocab = 32064, .hidden = 3072});
  c.sliding_window = keys.value_or_none("sliding_window", 0, 0);
  keys.read_partial_rotary(c, 10000, "partial_rotary_factor", 1);
  keys.read_tokens(c, {1}, {32000});
  return c;
}

FusedRows fused(const ModelConfig& c, std::string_view module) {
  const auto queries = static_cast<std::size_t>(c.heads) * c.head_dim;
  const auto keys = static_cast<std::size_t>(c.kv_heads) * c.head_dim, all = queries + 2 * keys;
  if (module == "layers.{}.attention.query") return {.first = 0, .block = queries, .stride = queries, .total = all};
  if (module == "layers.{}.attention.key") return {.first = queries, .block = keys, .stride = keys, .total = all};
  if (module == "layers.{}.attention.value") {
    return {.first = queries + keys, .block = keys, .stride = keys, .total = all};
  }
  return {};
}

constexpr std::array kFusedNames = {
    NameRule{"layers.{}.attention.query", "layers.{}.self_attn.qkv_proj"},
    NameRule{"layers.{}.attention.key", "layers.{}.self_attn.qkv_proj"},
    NameRule{"layers.{}.attention.value", "layers.{}.self_attn.qkv_proj"},
    NameRule{"layers.{}.mlp.gate", "layers.{}.mlp.gate_up_proj", 0, 2},
    NameRule{"layers.{}.mlp.up", "layers.{}.mlp.gate_up_proj", 1, 2},
};
constexpr std::array kNames = joined(kFusedNames, kPreNormLlamaNames);

// Without the lists of longrope's factors: Phi-4-mini within its original 4096 positions.
constexpr PublishedSize kSizes[] = {
    {"3-mini-4k", R"({"sliding_window": 2047})"},
    {"3-medium-4k", R"({"hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
                        "num_attention_heads": 40, "num_key_value_heads": 10, "sliding_window": 2047})"},
    {"4-mini", R"({"num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200064,
                   "partial_rotary_factor": 0.75, "tie_word_embeddings": true, "bos_token_id": 199999,
                   "eos_token_id": 199999})"},
    {"4", R"({"hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40, "num_attention_heads": 40,
              "num_key_value_heads": 10, "vocab_size": 100352, "max_position_embeddings": 16384, "rope_theta": 250000,
              "bos_token_id": 100257, "eos_token_id": 100265})"},
};

}  // namespace

const Family kPhi3{.model_type = "phi3",
                   .read = read,
                   .names = kNames,
                   .prefix = "model.",
                   .ignored = {},
                   .sizes = kSizes,
                   .fused = fused};

}  // namespace computron
