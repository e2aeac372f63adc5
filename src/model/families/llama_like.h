// What the decoders that were built after Llama have in common: RMSNorm, rotary positions, grouped queries, a gated
// MLP, no biases; and how transformers calls their tensors. Private to src/model.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {

// Where the families' configuration classes differ.
struct LlamaDefaults {
  int ffn, kv_heads;  // kv_heads 0: as many as heads
  int max_positions;
  float norm_epsilon;
  int vocab = 32000;
  int hidden = 4096, layers = 32, heads = 32;
  int head_dim = 0;  // 0: hidden / heads
  bool tied_head = false;
};

// All but the rotary positions and the tokens that begin and end texts.
ModelConfig read_llama_like(const HfKeys& keys, const LlamaDefaults& defaults);

// How many layers there are, or more than there may be.
inline int most_layers(const ModelConfig& config) { return std::min(config.layers, 1 << 15); }
// The layers that `layers` (ModelConfig::window_layers) says have a window of this size.
void set_windows(ModelConfig& config, int window, std::vector<int> layers);
// All have, but for each `period`-th, which sees all.
std::vector<int> windows_but_each(int period, const ModelConfig& config);

// For what attention_bias gives biases: q, k, v and the output.
void read_attention_bias(const HfKeys& keys, ModelConfig& config);

// Modules that all of them have.
inline constexpr std::array kLlamaLikeNames = {
    NameRule{"embedding.tokens", "embed_tokens"},
    NameRule{"layers.{}.attention.query", "layers.{}.self_attn.q_proj"},
    NameRule{"layers.{}.attention.key", "layers.{}.self_attn.k_proj"},
    NameRule{"layers.{}.attention.value", "layers.{}.self_attn.v_proj"},
    NameRule{"layers.{}.attention.query_norm", "layers.{}.self_attn.q_norm"},
    NameRule{"layers.{}.attention.key_norm", "layers.{}.self_attn.k_norm"},
    NameRule{"layers.{}.attention.output", "layers.{}.self_attn.o_proj"},
    NameRule{"layers.{}.mlp.gate", "layers.{}.mlp.gate_proj"},
    NameRule{"layers.{}.mlp.up", "layers.{}.mlp.up_proj"},
    NameRule{"layers.{}.mlp.down", "layers.{}.mlp.down_proj"},
    NameRule{"final_norm", "norm"},
    NameRule{"head", "lm_head"},
};

// The norms of those that normalise what a branch reads.
inline constexpr std::array kPreNormNames = {
    NameRule{"layers.{}.attention_norm", "layers.{}.input_layernorm"},
    NameRule{"layers.{}.mlp_norm", "layers.{}.post_attention_layernorm"},
};

// One list after the other; of two rules for a module the first counts.
template <std::size_t kFirst, std::size_t kSecond>
constexpr std::array<NameRule, kFirst + kSecond> joined(const std::array<NameRule, kFirst>& first,
                                                        const std::array<NameRule, kSecond>& second) {
  std::array<NameRule, kFirst + kSecond> all;
  for (std::size_t i = 0; i < kFirst; ++i) all[i] = first[i];
  for (std::size_t i = 0; i < kSecond; ++i) all[kFirst + i] = second[i];
  return all;
}

inline constexpr std::array kPreNormLlamaNames = joined(kPreNormNames, kLlamaLikeNames);

// Tables of angles, which old files have.
inline constexpr std::string_view kRotaryTables[] = {"layers.*.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"};

}  // namespace computron
