// gpt-oss (OpenAI 2025), transformers' GptOssConfig: experts with biases and a gate that is clamped, windows in every
// second layer, attention with sinks. The experts of a layer are one tensor, the rows of gate and up in turn.
#include "src/model/families/llama_like.h"

namespace computron {
namespace {

// Where no key says otherwise.
void read_usual_rotary(const HfKeys& keys, ModelConfig& c, float default_theta) {
  const nlohmann::json usual = {{"rope_parameters",
                                 {{"rope_theta", keys.value("rope_theta", default_theta)},
                                  {"rope_type", "yarn"},
                                  {"factor", 32},
                                  {"truncate", false},
                                  {"original_max_position_embeddings", 4096}}}};
  HfKeys(usual).read_rotary(c, default_theta);
}

void read_gate(const HfKeys& keys, ModelConfig& c) {
  keys.require("hidden_act", std::string("silu"), std::string("silu"));
  keys.require("swiglu_alpha", 1.702f, 1.702f);
  c.activation = Activation::kQuickGelu;
  c.gate_limit = keys.value("swiglu_limit", 7.0f);
  c.gate_offset = 1;
}

ModelConfig read(const HfKeys& keys) {
  keys.architecture({"GptOssForCausalLM", "GptOssModel"});
  ModelConfig c = read_llama_like(keys, {.ffn = 2880,
                                         .kv_heads = 8,
                                         .max_positions = 131072,
                                         .norm_epsilon = 1e-5f,
                                         .vocab = 201088,
                                         .hidden = 2880,
                                         .layers = 36,
                                         .heads = 64,
                                         .head_dim = 64});
  c.attention_bias = c.attention_output_bias = keys.value("attention_bias", true);
  c.attention_sinks = c.mlp_bias = c.router_bias = true;
  const std::vector<int> layers = keys.window_layers();
  set_windows(c, keys.value_or_none("sliding_window", 128, 0), layers.empty() ? windows_but_each(2, c) : layers);
  c.experts = keys.value("num_local_experts", keys.value("num_experts", 128));
  c.experts_per_token = keys.value("num_experts_per_tok", keys.value("experts_per_token", 4));
  read_gate(keys, c);
  const bool has_rope = keys.has("rope_scaling") || keys.has("rope_parameters");
  has_rope ? keys.read_rotary(c, 150000) : read_usual_rotary(keys, c, 150000);
  keys.read_tokens(c, {}, {});
  return c;
}

// Of one part of two, by turns; of all experts.
constexpr NameRule of_gate_up(std::string_view ours, std::string_view theirs, int part) {
  return {.ours = ours,
          .theirs = theirs,
          .part = part,
          .parts = 2,
          .transposed = true,
          .interleaved = true,
          .stacked = true};
}
constexpr NameRule of_down(std::string_view ours, std::string_view theirs) {
  return {.ours = ours, .theirs = theirs, .transposed = true, .stacked = true};
}

constexpr std::array kOwnNames = {
    NameRule{"layers.{}.attention.sinks", "layers.{}.self_attn.sinks"},
    NameRule{"layers.{}.mlp.router", "layers.{}.mlp.router"},
    of_gate_up("layers.{}.mlp.experts.{}.gate.weight", "layers.{}.mlp.experts.gate_up_proj", 0),
    of_gate_up("layers.{}.mlp.experts.{}.gate.bias", "layers.{}.mlp.experts.gate_up_proj_bias", 0),
    of_gate_up("layers.{}.mlp.experts.{}.up.weight", "layers.{}.mlp.experts.gate_up_proj", 1),
    of_gate_up("layers.{}.mlp.experts.{}.up.bias", "layers.{}.mlp.experts.gate_up_proj_bias", 1),
    of_down("layers.{}.mlp.experts.{}.down.weight", "layers.{}.mlp.experts.down_proj"),
    of_down("layers.{}.mlp.experts.{}.down.bias", "layers.{}.mlp.experts.down_proj_bias"),
};
constexpr std::array kNames = joined(kOwnNames, kPreNormLlamaNames);

constexpr PublishedSize kSizes[] = {
    {"20b", R"({"num_hidden_layers": 24, "num_local_experts": 32, "eos_token_id": 200002})"},
    {"120b", R"({"eos_token_id": 200002})"},
};

}  // namespace

const Family kGptOss{
    .model_type = "gpt_oss", .read = read, .names = kNames, .prefix = "model.", .ignored = {}, .sizes = kSizes};

}  // namespace computron
