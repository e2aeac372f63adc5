// GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023), transformers' GPTNeoXConfig: attention and MLP read
// the same residual stream, a part of each head is rotated, and q, k and v are one tensor, head by head.
#include "src/model/families/hf_keys.h"
#include "src/model/families/table.h"

namespace computron {
namespace {

ModelConfig read(const HfKeys& keys) {
  keys.architecture({"GPTNeoXForCausalLM", "GPTNeoXModel"});
  ModelConfig c;
  c.layers = keys.value("num_hidden_layers", 44);
  c.hidden = keys.value("hidden_size", 6144);
  c.heads = c.kv_heads = keys.value("num_attention_heads", 64);
  c.head_dim = HfKeys::head_dim(c.hidden, c.heads);
  c.ffn = keys.value("intermediate_size", 24576);
  c.vocab = keys.value("vocab_size", 50432);
  c.max_positions = keys.value("max_position_embeddings", 2048);
  c.norm_epsilon = keys.value("layer_norm_eps", 1e-5f);
  c.parallel_residual = keys.value("use_parallel_residual", true);
  c.attention_bias = c.attention_output_bias = keys.value("attention_bias", true);
  c.activation = keys.activation("hidden_act", "gelu");
  c.tied_head = keys.value("tie_word_embeddings", false);
  keys.read_partial_rotary(c, keys.value("rotary_emb_base", 10000.0f), "rotary_pct", 0.25f);
  keys.read_tokens(c, {0}, {2});
  return c;
}

FusedRows fused(const ModelConfig& c, std::string_view module) {
  const auto head = static_cast<std::size_t>(c.head_dim), total = 3 * head * static_cast<std::size_t>(c.heads);
  if (module == "layers.{}.attention.query") return {.first = 0, .block = head, .stride = 3 * head, .total = total};
  if (module == "layers.{}.attention.key") return {.first = head, .block = head, .stride = 3 * head, .total = total};
  if (module == "layers.{}.attention.value") {
    return {.first = 2 * head, .block = head, .stride = 3 * head, .total = total};
  }
  return {};
}

constexpr NameRule kNames[] = {
    {"embedding.tokens", "embed_in"},
    {"layers.{}.attention_norm", "layers.{}.input_layernorm"},
    {"layers.{}.attention.query", "layers.{}.attention.query_key_value"},
    {"layers.{}.attention.key", "layers.{}.attention.query_key_value"},
    {"layers.{}.attention.value", "layers.{}.attention.query_key_value"},
    {"layers.{}.attention.output", "layers.{}.attention.dense"},
    {"layers.{}.mlp_norm", "layers.{}.post_attention_layernorm"},
    {"layers.{}.mlp.up", "layers.{}.mlp.dense_h_to_4h"},
    {"layers.{}.mlp.down", "layers.{}.mlp.dense_4h_to_h"},
    {"final_norm", "final_layer_norm"},
    {"head", "embed_out"},
};

// Masks and tables of angles in old files.
constexpr std::string_view kIgnored[] = {"layers.*.attention.bias", "layers.*.attention.masked_bias",
                                         "layers.*.attention.rotary_emb.inv_freq"};

constexpr PublishedSize kSizes[] = {
    {"pythia-70m", R"({"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
                       "num_attention_heads": 8, "vocab_size": 50304, "eos_token_id": 0})"},
    {"pythia-160m", R"({"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                        "num_attention_heads": 12, "vocab_size": 50304, "eos_token_id": 0})"},
    {"pythia-410m", R"({"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
                        "num_attention_heads": 16, "vocab_size": 50304, "eos_token_id": 0})"},
    {"pythia-1b", R"({"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                      "num_attention_heads": 8, "vocab_size": 50304, "eos_token_id": 0})"},
    {"pythia-1.4b", R"({"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
                        "num_attention_heads": 16, "vocab_size": 50304, "eos_token_id": 0})"},
    {"pythia-2.8b", R"({"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32,
                        "num_attention_heads": 32, "vocab_size": 50304, "eos_token_id": 0})"},
    {"pythia-6.9b", R"({"hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
                        "num_attention_heads": 32, "vocab_size": 50432, "eos_token_id": 0})"},
    {"pythia-12b", R"({"hidden_size": 5120, "intermediate_size": 20480, "num_hidden_layers": 36,
                       "num_attention_heads": 40, "vocab_size": 50688, "eos_token_id": 0})"},
    {"20b", R"({"eos_token_id": 0})"},
};

}  // namespace

const Family kGptNeox{.model_type = "gpt_neox",
                      .read = read,
                      .names = kNames,
                      .prefix = "gpt_neox.",
                      .ignored = kIgnored,
                      .sizes = kSizes,
                      .fused = fused};

}  // namespace computron
