// ModernBERT (Warner et al. 2024), transformers' ModernBertConfig, ModernBertModel and
// ModernBertForSequenceClassification: rotary positions, gated MLPs, no biases, and a symmetric window in two layers of
// three, which rotate with a base of their own.
#include <algorithm>

#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {
namespace {

// Where `layer_types` is absent: 0 every so many layers, from the first one on.
std::vector<int> window_layers(const HfKeys& keys, int layers) {
  std::vector<int> windows = keys.window_layers();
  const int every = keys.value("global_attn_every_n_layers", 3);
  if (every < 1) HfKeys::refuse("global_attn_every_n_layers", every, "1 and more");
  for (int layer = static_cast<int>(windows.size()); layer < std::min(layers, 1 << 14); ++layer) {
    windows.push_back(layer % every == 0 ? 0 : 1);
  }
  return windows;
}

// Tokens at a distance of half of it are seen, too.
int window(const HfKeys& keys) {
  const int both_sides = keys.value("local_attention", 128);
  if (both_sides < 0) HfKeys::refuse("local_attention", both_sides, "0 and more");
  return both_sides / 2 + 1;
}

void read_classifier(const HfKeys& keys, ModelConfig& c) {
  keys.read_classes(c);
  const auto pooling = keys.value("classifier_pooling", "cls");
  if (pooling != "cls" && pooling != "mean") HfKeys::refuse("classifier_pooling", pooling, "cls or mean");
  c.pooling = pooling == "cls" ? Pooling::kFirst : Pooling::kMean;
  c.class_dense = c.class_norm = true;
  c.class_dense_bias = keys.value("classifier_bias", false);
  c.class_activation = keys.activation("classifier_activation", "gelu");
}

ModelConfig read(const HfKeys& keys) {
  const std::string architecture =
      keys.architecture({"ModernBertModel", "ModernBertForSequenceClassification", "ModernBertForMaskedLM"});
  ModelConfig c;
  c.layers = keys.value("num_hidden_layers", 22);
  c.hidden = keys.value("hidden_size", 768);
  c.heads = c.kv_heads = keys.value("num_attention_heads", 12);
  c.head_dim = HfKeys::head_dim(c.hidden, c.heads);
  c.ffn = keys.value("intermediate_size", 1152);
  c.vocab = keys.value("vocab_size", 50368);
  c.max_positions = keys.value("max_position_embeddings", 8192);
  c.embedding_norm = true;
  c.norm_epsilon = keys.value("norm_eps", 1e-5f);
  c.norm_bias = keys.value("norm_bias", false);
  c.first_attention_norm = false;
  c.causal = false;
  c.tied_head = false;
  c.window_layers = window_layers(keys, c.layers);
  c.sliding_window = window(keys);
  c.attention_bias = c.attention_output_bias = keys.value("attention_bias", false);
  c.activation = keys.activation("hidden_activation", "gelu");
  c.gated_mlp = true;
  c.mlp_bias = keys.value("mlp_bias", false);
  keys.read_rotary_by_layer(c, keys.value("global_rope_theta", 160000.0f), "local_rope_theta", 10000.0f);
  if (architecture == "ModernBertForSequenceClassification") read_classifier(keys, c);
  return c;
}

constexpr NameRule kNames[] = {
    {"embedding.tokens", "embeddings.tok_embeddings"},
    {"embedding.norm", "embeddings.norm"},
    {"layers.{}.attention_norm", "layers.{}.attn_norm"},
    {.ours = "layers.{}.attention.query", .theirs = "layers.{}.attn.Wqkv", .part = 0, .parts = 3},
    {.ours = "layers.{}.attention.key", .theirs = "layers.{}.attn.Wqkv", .part = 1, .parts = 3},
    {.ours = "layers.{}.attention.value", .theirs = "layers.{}.attn.Wqkv", .part = 2, .parts = 3},
    {"layers.{}.attention.output", "layers.{}.attn.Wo"},
    {"layers.{}.mlp_norm", "layers.{}.mlp_norm"},
    {.ours = "layers.{}.mlp.gate", .theirs = "layers.{}.mlp.Wi", .part = 0, .parts = 2},
    {.ours = "layers.{}.mlp.up", .theirs = "layers.{}.mlp.Wi", .part = 1, .parts = 2},
    {"layers.{}.mlp.down", "layers.{}.mlp.Wo"},
    {"final_norm", "final_norm"},
    {"classifier.dense", "head.dense"},
    {"classifier.norm", "head.norm"},
    {"classifier", "classifier"},
};

// The head of pre-training.
constexpr std::string_view kIgnored[] = {"head.*", "decoder.*"};

constexpr PublishedSize kSizes[] = {
    {"base", R"({})"},
    {"large", R"({"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
                  "intermediate_size": 2624})"},
};

}  // namespace

const Family kModernBert{.model_type = "modernbert",
                         .read = read,
                         .names = kNames,
                         .prefix = "model.",
                         .ignored = kIgnored,
                         .sizes = kSizes};

}  // namespace computron
