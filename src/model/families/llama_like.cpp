#include "src/model/families/llama_like.h"

#include <utility>

namespace computron {

ModelConfig read_llama_like(const HfKeys& keys, const LlamaDefaults& defaults) {
  ModelConfig c;
  c.layers = keys.value("num_hidden_layers", defaults.layers);
  c.hidden = keys.value("hidden_size", defaults.hidden);
  c.heads = keys.value("num_attention_heads", defaults.heads);
  c.kv_heads = keys.value_or_none("num_key_value_heads", defaults.kv_heads > 0 ? defaults.kv_heads : c.heads, c.heads);
  c.head_dim = keys.value("head_dim", defaults.head_dim);
  if (!keys.has("head_dim") && defaults.head_dim == 0) c.head_dim = HfKeys::head_dim(c.hidden, c.heads);
  c.ffn = keys.value("intermediate_size", defaults.ffn);
  c.vocab = keys.value("vocab_size", defaults.vocab);
  c.max_positions = keys.value("max_position_embeddings", defaults.max_positions);
  c.norm = NormKind::kRmsNorm;
  c.norm_bias = false;
  c.norm_epsilon = keys.value("rms_norm_eps", defaults.norm_epsilon);
  c.attention_bias = c.attention_output_bias = c.mlp_bias = false;
  c.activation = keys.activation("hidden_act", "silu");
  c.gated_mlp = true;
  c.tied_head = keys.value("tie_word_embeddings", defaults.tied_head);
  return c;
}

void set_windows(ModelConfig& config, int window, std::vector<int> layers) {
  if (std::find(layers.begin(), layers.end(), 1) == layers.end()) return;
  config.sliding_window = window;
  const bool all = std::cmp_equal(std::count(layers.begin(), layers.end(), 1), config.layers);
  if (!all) config.window_layers = std::move(layers);
}

std::vector<int> windows_but_each(int period, const ModelConfig& config) {
  std::vector<int> layers;
  for (int layer = 0; layer < most_layers(config); ++layer) layers.push_back((layer + 1) % period != 0 ? 1 : 0);
  return layers;
}

void read_attention_bias(const HfKeys& keys, ModelConfig& config) {
  config.attention_bias = config.attention_output_bias = keys.value("attention_bias", false);
}

}  // namespace computron
