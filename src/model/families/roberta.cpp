// RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2019): BERT whose positions are counted behind the padding token,
// transformers' RobertaConfig, XLMRobertaConfig and the models of these.
#include <algorithm>

#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {
namespace {

// The token that has no position of its own: the others' are counted from the one behind its row on.
int padding(const HfKeys& keys) {
  const int token = keys.value("pad_token_id", 1);
  if (token < 0 || token >= 1 << 16) HfKeys::refuse("pad_token_id", token, "a token below 65536");
  return token;
}

ModelConfig read(const HfKeys& keys, const std::string& architecture, int default_vocab) {
  keys.require("position_embedding_type", std::string("absolute"), std::string("absolute"));
  keys.require("is_decoder", false, false);
  ModelConfig c;
  c.layers = keys.value("num_hidden_layers", 12);
  c.hidden = keys.value("hidden_size", 768);
  c.heads = c.kv_heads = keys.value("num_attention_heads", 12);
  c.head_dim = HfKeys::head_dim(c.hidden, c.heads);
  c.ffn = keys.value("intermediate_size", 3072);
  c.vocab = keys.value("vocab_size", default_vocab);
  c.position_offset = padding(keys) + 1;
  c.max_positions = std::max(keys.value("max_position_embeddings", 512), 0) - c.position_offset;
  c.token_types = keys.value("type_vocab_size", 2);
  c.embedding_norm = true;
  c.norm_position = NormPosition::kPost;
  c.norm_epsilon = keys.value("layer_norm_eps", 1e-12f);
  c.final_norm = false;
  c.causal = false;
  c.tied_head = false;
  c.activation = keys.activation("hidden_act", "gelu");
  if (architecture.ends_with("ForSequenceClassification")) {
    keys.read_classes(c);
    c.class_dense = true;
  } else {
    c.pooler = architecture.ends_with("Model");
  }
  return c;
}

ModelConfig read_roberta(const HfKeys& keys) {
  return read(keys, keys.architecture({"RobertaModel", "RobertaForSequenceClassification", "RobertaForMaskedLM"}),
              50265);
}

ModelConfig read_xlm_roberta(const HfKeys& keys) {
  return read(keys,
              keys.architecture({"XLMRobertaModel", "XLMRobertaForSequenceClassification", "XLMRobertaForMaskedLM"}),
              250002);
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
    {"classifier.dense", "classifier.dense"},
    {"classifier", "classifier.out_proj"},
};

// The head of pre-training and the pooler beside it, and a table 0, 1, 2, ... in old files.
constexpr std::string_view kIgnored[] = {"lm_head.*", "pooler.*", "embeddings.position_ids"};

constexpr PublishedSize kRobertaSizes[] = {
    {"base", R"({"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5})"},
    {"large", R"({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
                  "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5})"},
};

}  // namespace

const Family kRoberta{.model_type = "roberta",
                      .read = read_roberta,
                      .names = kNames,
                      .prefix = "roberta.",
                      .ignored = kIgnored,
                      .sizes = kRobertaSizes};
const Family kXlmRoberta{.model_type = "xlm-roberta",
                         .read = read_xlm_roberta,
                         .names = kNames,
                         .prefix = "roberta.",
                         .ignored = kIgnored,
                         .sizes = kRobertaSizes};

}  // namespace computron
