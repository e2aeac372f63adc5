// DistilBERT (Sanh et al. 2019): BERT of half the layers, without token types and pooler, transformers'
// DistilBertConfig, DistilBertModel and DistilBertForSequenceClassification.
#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {
namespace {

ModelConfig read(const HfKeys& keys) {
  const std::string architecture =
      keys.architecture({"DistilBertModel", "DistilBertForSequenceClassification", "DistilBertForMaskedLM"});
  ModelConfig c;
  c.layers = keys.value("n_layers", 6);
  c.hidden = keys.value("dim", 768);
  c.heads = c.kv_heads = keys.value("n_heads", 12);
  c.head_dim = HfKeys::head_dim(c.hidden, c.heads);
  c.ffn = keys.value("hidden_dim", 3072);
  c.vocab = keys.value("vocab_size", 30522);
  c.max_positions = keys.value("max_position_embeddings", 512);
  c.embedding_norm = true;
  c.norm_position = NormPosition::kPost;
  c.norm_epsilon = 1e-12f;
  c.final_norm = false;
  c.causal = false;
  c.tied_head = false;
  c.activation = keys.activation("activation", "gelu");
  if (architecture == "DistilBertForSequenceClassification") {
    keys.read_classes(c);
    c.class_dense = true;
    c.class_activation = Activation::kRelu;
  }
  return c;
}

constexpr NameRule kNames[] = {
    {"embedding.tokens", "embeddings.word_embeddings"},
    {"embedding.positions", "embeddings.position_embeddings"},
    {"embedding.norm", "embeddings.LayerNorm"},
    {"layers.{}.attention.query", "transformer.layer.{}.attention.q_lin"},
    {"layers.{}.attention.key", "transformer.layer.{}.attention.k_lin"},
    {"layers.{}.attention.value", "transformer.layer.{}.attention.v_lin"},
    {"layers.{}.attention.output", "transformer.layer.{}.attention.out_lin"},
    {"layers.{}.attention_norm", "transformer.layer.{}.sa_layer_norm"},
    {"layers.{}.mlp.up", "transformer.layer.{}.ffn.lin1"},
    {"layers.{}.mlp.down", "transformer.layer.{}.ffn.lin2"},
    {"layers.{}.mlp_norm", "transformer.layer.{}.output_layer_norm"},
    {"classifier.dense", "pre_classifier"},
    {"classifier", "classifier"},
};

// The head of pre-training.
constexpr std::string_view kIgnored[] = {"vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*"};

constexpr PublishedSize kSizes[] = {{"base", R"({})"}};

}  // namespace

const Family kDistilBert{.model_type = "distilbert",
                         .read = read,
                         .names = kNames,
                         .prefix = "distilbert.",
                         .ignored = kIgnored,
                         .sizes = kSizes};

}  // namespace computron
