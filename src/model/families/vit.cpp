// ViT (Dosovitskiy et al. 2020), transformers' ViTConfig, ViTForImageClassification and ViTModel.
#include <algorithm>

#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {
namespace {

// Patches and the class token. What is out of range is refused later, by name.
int positions(std::int64_t image_size, std::int64_t patch_size) {
  const std::int64_t side = patch_size > 0 ? std::clamp<std::int64_t>(image_size / patch_size, 0, 1 << 12) : 0;
  return static_cast<int>(side * side + 1);
}

ModelConfig read(const HfKeys& keys) {
  const std::string architecture = keys.architecture({"ViTForImageClassification", "ViTModel"});
  ModelConfig c;
  c.layers = keys.value("num_hidden_layers", 12);
  c.hidden = keys.value("hidden_size", 768);
  c.heads = c.kv_heads = keys.value("num_attention_heads", 12);
  c.head_dim = HfKeys::head_dim(c.hidden, c.heads);
  c.ffn = keys.value("intermediate_size", 3072);
  c.image_size = keys.value("image_size", 224);
  c.patch_size = keys.value("patch_size", 16);
  c.channels = keys.value("num_channels", 3);
  c.max_positions = positions(c.image_size, c.patch_size);
  c.norm_epsilon = keys.value("layer_norm_eps", 1e-12f);
  c.causal = false;
  c.tied_head = false;
  c.activation = keys.activation("hidden_act", "gelu");
  c.attention_bias = keys.value("qkv_bias", true);
  c.pooler = architecture == "ViTModel";
  if (c.pooler) {
    keys.require("pooler_act", std::string("tanh"), std::string("tanh"));
    keys.require("pooler_output_size", c.hidden, c.hidden);
  }
  if (!c.pooler) keys.read_classes(c);
  return c;
}

constexpr NameRule kNames[] = {
    {"embedding.patches", "embeddings.patch_embeddings.projection"},
    {"embedding.class_token", "embeddings.cls_token"},
    {"embedding.positions.weight", "embeddings.position_embeddings"},
    {"layers.{}.attention_norm", "encoder.layer.{}.layernorm_before"},
    {"layers.{}.attention.query", "encoder.layer.{}.attention.attention.query"},
    {"layers.{}.attention.key", "encoder.layer.{}.attention.attention.key"},
    {"layers.{}.attention.value", "encoder.layer.{}.attention.attention.value"},
    {"layers.{}.attention.output", "encoder.layer.{}.attention.output.dense"},
    {"layers.{}.mlp_norm", "encoder.layer.{}.layernorm_after"},
    {"layers.{}.mlp.up", "encoder.layer.{}.intermediate.dense"},
    {"layers.{}.mlp.down", "encoder.layer.{}.output.dense"},
    {"final_norm", "layernorm"},
    {"pooler", "pooler.dense"},
    {"classifier", "classifier"},
};

constexpr PublishedSize kSizes[] = {
    {"base", R"({})"},
    {"large", R"({"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                  "intermediate_size": 4096})"},
    {"huge", R"({"hidden_size": 1280, "num_hidden_layers": 32, "num_attention_heads": 16, "intermediate_size": 5120,
                 "patch_size": 14})"},
};

}  // namespace

const Family kVit{.model_type = "vit", .read = read, .names = kNames, .prefix = "vit.", .ignored = {}, .sizes = kSizes};

}  // namespace computron
