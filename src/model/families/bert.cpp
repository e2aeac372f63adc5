// BERT (Devlin et al. 2018), transformers' BertConfig, BertModel and BertForSequenceClassification.
#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {
namespace {

ModelConfig read(const HfKeys& keys) {
  const std::string architecture = keys.architecture(
      {"BertModel", "BertForSequenceClassification", "BertForMaskedLM", "BertForPreTraining", "BertLMHeadModel"});
  keys.require("position_embedding_type", std::string("absolute"), std::string("absolute"));
  keys.require("is_decoder", false, false);
  ModelConfig c;
  c.layers = keys.value("num_hidden_layers", 12);
  c.hidden = keys.value("hidden_size", 768);
  c.heads = c.kv_heads = keys.value("num_attention_heads", 12);
  c.head_dim = HfKeys::head_dim(c.hidden, c.heads);
  c.ffn = keys.value("intermediate_size", 3072);
  c.vocab = keys.value("vocab_size", 30522);
  c.max_positions = keys.value("max_position_embeddings", 512);
  c.token_types = keys.value("type_vocab_size", 2);
  c.embedding_norm = true;
  c.norm_position = NormPosition::kPost;
  c.norm_epsilon = keys.value("layer_norm_eps", 1e-12f);
  c.final_norm = false;
  c.causal = false;
  c.tied_head = false;
  c.activation = keys.activation("hidden_act", "gelu");
  c.pooler = architecture != "BertForMaskedLM" && architecture != "BertLMHeadModel";
  if (architecture == "BertForSequenceClassification") keys.read_classes(c);
  return c;
}

constexpr NameRule kNames[] = {
    {"embedding.tokens", "embeddings.word_embeddings"},
    {"embedding.types", "embeddings.token_type_embeddings"},
    {"embedding.positions", "embeddings.position_embeddings"},
    {"embedding.norm", "embeddings.LayerNorm"},
    {"layers.{}.attention.query", "encoder.layer.{}.attention.self.query"},
    {"layers.{}.attention.key", "encoder.layer.{}.attention.self.key"},
    {"layers.{}.attention.value", "encoder.layer.{}.attention.self.value"},
    {"layers.{}.attention.output", "encoder.layer.{}.attention.output.dense"},
    {"layers.{}.attention_norm", "encoder.layer.{}.attention.output.LayerNorm"},
    {"layers.{}.mlp.up", "encoder.layer.{}.intermediate.dense"},
    {"layers.{}.mlp.down", "encoder.layer.{}.output.dense"},
    {"layers.{}.mlp_norm", "encoder.layer.{}.output.LayerNorm"},
    {"pooler", "pooler.dense"},
    {"classifier", "classifier"},
};

// Heads of pre-training, and a table 0, 1, 2, ... in old files.
constexpr std::string_view kIgnored[] = {"cls.*", "embeddings.position_ids"};

constexpr PublishedSize kSizes[] = {
    {"tiny", R"({"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512})"},
    {"base", R"({})"},
    {"large", R"({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                  "intermediate_size": 4096})"},
};

}  // namespace

// bert-base-uncased names BertForMaskedLM and holds the pooler, with which transformers' AutoModel loads it.
const Family kBert{.model_type = "bert",
                   .read = read,
                   .names = kNames,
                   .prefix = "bert.",
                   .ignored = kIgnored,
                   .sizes = kSizes,
                   .pooler_of_files = true};

}  // namespace computron
