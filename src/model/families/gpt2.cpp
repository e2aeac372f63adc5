// GPT-2 (Radford et al. 2019), transformers' GPT2Config and GPT2LMHeadModel. Its Conv1D layers store [in, out], and
// one of them holds q, k and v.
#include <algorithm>

#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {
namespace {

ModelConfig read(const HfKeys& keys) {
  keys.architecture({"GPT2LMHeadModel", "GPT2Model"});
  keys.require("scale_attn_weights", true, true);
  keys.require("scale_attn_by_inverse_layer_idx", false, false);
  keys.require("add_cross_attention", false, false);
  ModelConfig c;
  // Its own names, or those of the others (transformers' attribute_map).
  c.layers = keys.value("n_layer", keys.value("num_hidden_layers", 12));
  c.hidden = keys.value("n_embd", keys.value("hidden_size", 768));
  c.heads = c.kv_heads = keys.value("n_head", keys.value("num_attention_heads", 12));
  c.head_dim = HfKeys::head_dim(c.hidden, c.heads);
  c.ffn = keys.value("n_inner", 4 * std::min(c.hidden, 1 << 24));
  c.vocab = keys.value("vocab_size", 50257);
  c.max_positions = keys.value("n_positions", keys.value("max_position_embeddings", 1024));
  c.activation = keys.activation("activation_function", "gelu_new");
  c.norm_epsilon = keys.value("layer_norm_epsilon", 1e-5f);
  c.tied_head = keys.value("tie_word_embeddings", true);
  keys.read_tokens(c, {50256}, {50256});
  return c;
}

constexpr bool kConv1D = true;
constexpr NameRule kNames[] = {
    {"embedding.tokens", "wte"},
    {"embedding.positions", "wpe"},
    {"layers.{}.attention_norm", "h.{}.ln_1"},
    {"layers.{}.attention.query", "h.{}.attn.c_attn", 0, 3, kConv1D},
    {"layers.{}.attention.key", "h.{}.attn.c_attn", 1, 3, kConv1D},
    {"layers.{}.attention.value", "h.{}.attn.c_attn", 2, 3, kConv1D},
    {"layers.{}.attention.output", "h.{}.attn.c_proj", 0, 1, kConv1D},
    {"layers.{}.mlp_norm", "h.{}.ln_2"},
    {"layers.{}.mlp.up", "h.{}.mlp.c_fc", 0, 1, kConv1D},
    {"layers.{}.mlp.down", "h.{}.mlp.c_proj", 0, 1, kConv1D},
    {"final_norm", "ln_f"},
    {"head", "lm_head"},
};

constexpr std::string_view kIgnored[] = {"h.*.attn.bias", "h.*.attn.masked_bias"};  // masks in old files

constexpr PublishedSize kSizes[] = {
    {"small", R"({"n_layer": 12, "n_embd": 768, "n_head": 12})"},
    {"medium", R"({"n_layer": 24, "n_embd": 1024, "n_head": 16})"},
    {"large", R"({"n_layer": 36, "n_embd": 1280, "n_head": 20})"},
    {"xl", R"({"n_layer": 48, "n_embd": 1600, "n_head": 25})"},
};

}  // namespace

const Family kGpt2{.model_type = "gpt2",
                   .read = read,
                   .names = kNames,
                   .prefix = "transformer.",
                   .ignored = kIgnored,
                   .sizes = kSizes};

}  // namespace computron
