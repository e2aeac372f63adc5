// OPT (Zhang et al. 2022), transformers' OPTConfig and OPTForCausalLM.
#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {
namespace {

ModelConfig read(const HfKeys& keys) {
  keys.architecture({"OPTForCausalLM", "OPTModel"});
  keys.require("layer_norm_elementwise_affine", true, true);
  ModelConfig c;
  c.layers = keys.value("num_hidden_layers", 12);
  c.hidden = keys.value("hidden_size", 768);
  c.heads = c.kv_heads = keys.value("num_attention_heads", 12);
  c.head_dim = HfKeys::head_dim(c.hidden, c.heads);
  c.ffn = keys.value("ffn_dim", 3072);
  c.vocab = keys.value("vocab_size", 50272);
  c.max_positions = keys.value("max_position_embeddings", 2048);
  c.position_offset = 2;
  const int width = keys.value("word_embed_proj_dim", c.hidden);
  c.embedding_width = width == c.hidden ? 0 : width;
  c.activation = keys.activation("activation_function", "relu");
  const bool pre = keys.value("do_layer_norm_before", true);
  c.norm_position = pre ? NormPosition::kPre : NormPosition::kPost;
  c.final_norm = pre && !keys.value("_remove_final_layer_norm", false);
  c.attention_bias = c.attention_output_bias = c.mlp_bias = keys.value("enable_bias", true);
  c.tied_head = keys.value("tie_word_embeddings", true);
  keys.read_tokens(c, {2}, {2});
  return c;
}

constexpr NameRule kNames[] = {
    {"embedding.tokens", "decoder.embed_tokens"},
    {"embedding.projection", "decoder.project_in"},
    {"embedding.positions", "decoder.embed_positions"},
    {"layers.{}.attention_norm", "decoder.layers.{}.self_attn_layer_norm"},
    {"layers.{}.attention.query", "decoder.layers.{}.self_attn.q_proj"},
    {"layers.{}.attention.key", "decoder.layers.{}.self_attn.k_proj"},
    {"layers.{}.attention.value", "decoder.layers.{}.self_attn.v_proj"},
    {"layers.{}.attention.output", "decoder.layers.{}.self_attn.out_proj"},
    {"layers.{}.mlp_norm", "decoder.layers.{}.final_layer_norm"},
    {"layers.{}.mlp.up", "decoder.layers.{}.fc1"},
    {"layers.{}.mlp.down", "decoder.layers.{}.fc2"},
    {"final_norm", "decoder.final_layer_norm"},
    {"head.projection", "decoder.project_out"},
    {"head", "lm_head"},
};

constexpr PublishedSize kSizes[] = {
    {"125m", R"({"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "ffn_dim": 3072})"},
    {"350m", R"({"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "ffn_dim": 4096,
                 "do_layer_norm_before": false, "word_embed_proj_dim": 512})"},
    {"1.3b", R"({"num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 32, "ffn_dim": 8192})"},
    {"2.7b", R"({"num_hidden_layers": 32, "hidden_size": 2560, "num_attention_heads": 32, "ffn_dim": 10240})"},
    {"6.7b", R"({"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "ffn_dim": 16384})"},
    {"13b", R"({"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "ffn_dim": 20480})"},
    {"30b", R"({"num_hidden_layers": 48, "hidden_size": 7168, "num_attention_heads": 56, "ffn_dim": 28672})"},
    {"66b", R"({"num_hidden_layers": 64, "hidden_size": 9216, "num_attention_heads": 72, "ffn_dim": 36864})"},
    {"175b", R"({"num_hidden_layers": 96, "hidden_size": 12288, "num_attention_heads": 96, "ffn_dim": 49152})"},
};

}  // namespace

const Family kOpt{
    .model_type = "opt", .read = read, .names = kNames, .prefix = "model.", .ignored = {}, .sizes = kSizes};

}  // namespace computron
