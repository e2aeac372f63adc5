// Decoders with many small experts a layer, of which a token takes several: Qwen2-MoE (Yang et al. 2024) with another
// MLP beside them that all tokens take, Qwen3-MoE (Yang et al. 2025), OLMoE (Muennighoff et al. 2024), transformers'
// Qwen2MoeConfig, Qwen3MoeConfig and OlmoeConfig.
#include <algorithm>
#include <utility>

#include "src/model/families/llama_like.h"

namespace computron {
namespace {

void read_routing(const HfKeys& keys, ModelConfig& c, int default_experts, int default_per_token) {
  c.experts = keys.value("num_experts", keys.value("num_local_experts", default_experts));
  c.experts_per_token = keys.value("num_experts_per_tok", default_per_token);
  c.router_softmax = keys.value("norm_topk_prob", false) ? RouterSoftmax::kChosen : RouterSoftmax::kAll;
}

// Each decoder_sparse_step-th layer has experts, but for mlp_only_layers.
void read_expert_layers(const HfKeys& keys, ModelConfig& c) {
  const int step = keys.value("decoder_sparse_step", 1);
  const auto plain = keys.value("mlp_only_layers", std::vector<int>{});
  if (step < 1) HfKeys::refuse("decoder_sparse_step", step, "1 or more");
  std::vector<int> layers;
  for (int layer = 0; layer < most_layers(c); ++layer) {
    const bool experts = (layer + 1) % step == 0 && std::ranges::find(plain, layer) == plain.end();
    layers.push_back(experts ? 1 : 0);
  }
  if (std::ranges::find(layers, 0) != layers.end()) c.expert_layers = std::move(layers);
}

ModelConfig read_qwen_moe(const HfKeys& keys, const LlamaDefaults& defaults, int default_expert_ffn) {
  ModelConfig c = read_llama_like(keys, defaults);
  keys.require("use_sliding_window", false, false);
  c.expert_ffn = keys.value("moe_intermediate_size", default_expert_ffn);
  read_expert_layers(keys, c);
  keys.read_rotary(c, 10000);
  keys.read_tokens(c, {}, {});
  return c;
}

ModelConfig read_qwen2_moe(const HfKeys& keys) {
  keys.architecture({"Qwen2MoeForCausalLM", "Qwen2MoeModel"});
  ModelConfig c = read_qwen_moe(keys,
                                {.ffn = 5632,
                                 .kv_heads = 16,
                                 .max_positions = 32768,
                                 .norm_epsilon = 1e-6f,
                                 .vocab = 151936,
                                 .hidden = 2048,
                                 .layers = 24,
                                 .heads = 16},
                                1408);
  c.attention_bias = keys.value("qkv_bias", true);
  read_routing(keys, c, 60, 4);
  c.shared_ffn = keys.value("shared_expert_intermediate_size", 5632);
  return c;
}

ModelConfig read_qwen3_moe(const HfKeys& keys) {
  keys.architecture({"Qwen3MoeForCausalLM", "Qwen3MoeModel"});
  ModelConfig c = read_qwen_moe(keys,
                                {.ffn = 6144,
                                 .kv_heads = 4,
                                 .max_positions = 32768,
                                 .norm_epsilon = 1e-6f,
                                 .vocab = 151936,
                                 .hidden = 2048,
                                 .layers = 24,
                                 .heads = 32},
                                768);
  read_attention_bias(keys, c);
  c.query_key_norm = QueryKeyNorm::kHeads;
  read_routing(keys, c, 128, 8);
  return c;
}

ModelConfig read_olmoe(const HfKeys& keys) {
  keys.architecture({"OlmoeForCausalLM", "OlmoeModel"});
  ModelConfig c = read_llama_like(keys, {.ffn = 2048,
                                         .kv_heads = 0,
                                         .max_positions = 4096,
                                         .norm_epsilon = 1e-5f,
                                         .vocab = 50304,
                                         .hidden = 2048,
                                         .layers = 16,
                                         .heads = 16});
  read_attention_bias(keys, c);
  if (keys.has("clip_qkv")) HfKeys::refuse("clip_qkv", keys.value("clip_qkv", 0.0f), "null");
  c.query_key_norm = QueryKeyNorm::kWidth;
  read_routing(keys, c, 64, 8);
  keys.read_rotary(c, 10000);
  keys.read_tokens(c, {}, {50279});
  return c;
}

constexpr std::array kExpertNames = {
    NameRule{"layers.{}.mlp.router", "layers.{}.mlp.gate"},
    NameRule{"layers.{}.mlp.experts.{}.gate", "layers.{}.mlp.experts.{}.gate_proj"},
    NameRule{"layers.{}.mlp.experts.{}.up", "layers.{}.mlp.experts.{}.up_proj"},
    NameRule{"layers.{}.mlp.experts.{}.down", "layers.{}.mlp.experts.{}.down_proj"},
};
constexpr std::array kSharedNames = {
    NameRule{"layers.{}.mlp.shared_gate", "layers.{}.mlp.shared_expert_gate"},
    NameRule{"layers.{}.mlp.shared.gate", "layers.{}.mlp.shared_expert.gate_proj"},
    NameRule{"layers.{}.mlp.shared.up", "layers.{}.mlp.shared_expert.up_proj"},
    NameRule{"layers.{}.mlp.shared.down", "layers.{}.mlp.shared_expert.down_proj"},
};
constexpr std::array kNames = joined(kExpertNames, kPreNormLlamaNames);
constexpr std::array kNamesWithShared = joined(kSharedNames, kNames);

constexpr PublishedSize kQwen2MoeSizes[] = {
    {"1.5-a2.7b", R"({"max_position_embeddings": 8192, "rope_theta": 1000000, "bos_token_id": 151643,
                      "eos_token_id": 151643})"},
    {"57b-a14b", R"({"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                     "num_attention_heads": 28, "num_key_value_heads": 4, "moe_intermediate_size": 2560,
                     "shared_expert_intermediate_size": 20480, "num_experts": 64, "num_experts_per_tok": 8,
                     "max_position_embeddings": 131072, "rope_theta": 1000000, "bos_token_id": 151643,
                     "eos_token_id": 151643})"},
};

constexpr PublishedSize kQwen3MoeSizes[] = {
    {"30b-a3b", R"({"num_hidden_layers": 48, "head_dim": 128, "norm_topk_prob": true,
                    "max_position_embeddings": 40960, "rope_theta": 1000000, "bos_token_id": 151643,
                    "eos_token_id": [151645, 151643]})"},
    {"235b-a22b", R"({"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 94,
                      "num_attention_heads": 64, "head_dim": 128, "moe_intermediate_size": 1536,
                      "norm_topk_prob": true, "max_position_embeddings": 40960, "rope_theta": 1000000,
                      "bos_token_id": 151643, "eos_token_id": [151645, 151643]})"},
};

constexpr PublishedSize kOlmoeSizes[] = {{"1b-7b", R"({"intermediate_size": 1024})"}};

}  // namespace

const Family kQwen2Moe{.model_type = "qwen2_moe",
                       .read = read_qwen2_moe,
                       .names = kNamesWithShared,
                       .prefix = "model.",
                       .ignored = kRotaryTables,
                       .sizes = kQwen2MoeSizes};
const Family kQwen3Moe{.model_type = "qwen3_moe",
                       .read = read_qwen3_moe,
                       .names = kNames,
                       .prefix = "model.",
                       .ignored = kRotaryTables,
                       .sizes = kQwen3MoeSizes};
const Family kOlmoe{.model_type = "olmoe",
                    .read = read_olmoe,
                    .names = kNames,
                    .prefix = "model.",
                    .ignored = {},
                    .sizes = kOlmoeSizes};

}  // namespace computron
