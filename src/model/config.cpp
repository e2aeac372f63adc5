#include "computron/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "computron/base/join.h"
#include "src/model/config_json.h"

namespace computron {
namespace {

using computron::read_value;

constexpr char kAdapterRanks[] = "adapter_ranks";

// Names of enumerators in the stored JSON.
template <class Enum>
using EnumNames = std::span<const std::pair<Enum, const char*>>;

EnumNames<NormKind> names_of(NormKind) {
  static constexpr std::pair<NormKind, const char*> kNames[] = {{NormKind::kLayerNorm, "layer_norm"},
                                                                {NormKind::kRmsNorm, "rms_norm"},
                                                                {NormKind::kRmsNormPlusOne, "rms_norm_plus_one"}};
  return kNames;
}
EnumNames<NormPosition> names_of(NormPosition) {
  static constexpr std::pair<NormPosition, const char*> kNames[] = {{NormPosition::kPre, "pre"},
                                                                    {NormPosition::kPost, "post"},
                                                                    {NormPosition::kOutput, "output"},
                                                                    {NormPosition::kSandwich, "sandwich"}};
  return kNames;
}
EnumNames<QueryKeyNorm> names_of(QueryKeyNorm) {
  static constexpr std::pair<QueryKeyNorm, const char*> kNames[] = {
      {QueryKeyNorm::kNone, "none"}, {QueryKeyNorm::kHeads, "heads"}, {QueryKeyNorm::kWidth, "width"}};
  return kNames;
}
EnumNames<PositionKind> names_of(PositionKind) {
  static constexpr std::pair<PositionKind, const char*> kNames[] = {{PositionKind::kLearned, "learned"},
                                                                    {PositionKind::kRotary, "rotary"}};
  return kNames;
}
EnumNames<RopeScaling> names_of(RopeScaling) {
  static constexpr std::pair<RopeScaling, const char*> kNames[] = {{RopeScaling::kNone, "none"},
                                                                   {RopeScaling::kLinear, "linear"},
                                                                   {RopeScaling::kLlama3, "llama3"},
                                                                   {RopeScaling::kYarn, "yarn"},
                                                                   {RopeScaling::kLongRope, "longrope"}};
  return kNames;
}
EnumNames<Resampling> names_of(Resampling) {
  static constexpr std::pair<Resampling, const char*> kNames[] = {{Resampling::kBilinear, "bilinear"},
                                                                  {Resampling::kBicubic, "bicubic"}};
  return kNames;
}
EnumNames<Pooling> names_of(Pooling) {
  static constexpr std::pair<Pooling, const char*> kNames[] = {
      {Pooling::kFirst, "first"}, {Pooling::kMean, "mean"}, {Pooling::kLast, "last"}};
  return kNames;
}
EnumNames<ClassScores> names_of(ClassScores) {
  static constexpr std::pair<ClassScores, const char*> kNames[] = {
      {ClassScores::kSoftmax, "softmax"}, {ClassScores::kSigmoid, "sigmoid"}, {ClassScores::kRaw, "raw"}};
  return kNames;
}
EnumNames<RouterSoftmax> names_of(RouterSoftmax) {
  static constexpr std::pair<RouterSoftmax, const char*> kNames[] = {{RouterSoftmax::kChosen, "chosen"},
                                                                     {RouterSoftmax::kAll, "all"}};
  return kNames;
}
EnumNames<Activation> names_of(Activation) {
  static constexpr std::pair<Activation, const char*> kNames[] = {
      {Activation::kNone, "none"},           {Activation::kRelu, "relu"}, {Activation::kGeluTanh, "gelu_tanh"},
      {Activation::kGeluErf, "gelu_erf"},    {Activation::kSilu, "silu"}, {Activation::kTanh, "tanh"},
      {Activation::kQuickGelu, "quick_gelu"}};
  return kNames;
}

template <class Enum>
requires std::is_enum_v<Enum>
void read_value(const std::string& key, const nlohmann::json& value, Enum& out) {
  for (const auto& [enumerator, name] : names_of(Enum{})) {
    if (value != name) continue;
    out = enumerator;
    return;
  }
  fail_value(key, value, "one of the known names");
}

// Calls visit(name, field) for the fields of a dense layer.
template <class Layer, class Visitor>
void for_each_field(Layer& layer, Visitor&& visit) {
  visit("in", layer.in);
  visit("out", layer.out);
  visit("bias", layer.bias);
  visit("activation", layer.activation);
}

void read_value(const std::string& key, const nlohmann::json& value, std::vector<DenseLayer>& out) {
  static constexpr const char* kWanted = "a list of objects of in, out, bias and activation";
  if (!value.is_array()) fail_value(key, value, kWanted);
  out.clear();
  for (const nlohmann::json& entry : value) {
    if (!entry.is_object() || entry.size() != 4) fail_value(key, value, kWanted);
    for_each_field(out.emplace_back(), [&](const char* name, auto& field) {
      if (!entry.contains(name)) fail_value(key, value, kWanted);
      read_value(fmt::format("{}.{}", key, name), entry[name], field);
    });
  }
}

void read_value(const std::string& key, const nlohmann::json& value, std::map<std::string, std::string>& out) {
  if (!value.is_object()) fail_value(key, value, "an object");
  out.clear();
  for (const auto& [name, text] : value.items()) read_value(fmt::format("{}.{}", key, name), text, out[name]);
}

void read_value(const std::string& key, const nlohmann::json& value, std::map<std::string, int>& out) {
  if (!value.is_object()) fail_value(key, value, "an object");
  out.clear();
  for (const auto& [name, number] : value.items()) read_value(fmt::format("{}.{}", key, name), number, out[name]);
}

template <class Value>
nlohmann::json json_of(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    for (const auto& [enumerator, name] : names_of(value)) {
      if (enumerator == value) return name;
    }
    throw Error(ExitCode::kInternal, "internal: enumerator without a name");
  } else if constexpr (std::is_same_v<Value, float>) {
    return std::stod(fmt::format("{}", value));  // the shortest digits that read as this float: 1e-05
  } else if constexpr (std::is_same_v<Value, std::vector<float>>) {
    nlohmann::json list = nlohmann::json::array();
    for (const float element : value) list.push_back(json_of(element));
    return list;
  } else if constexpr (std::is_same_v<Value, std::vector<DenseLayer>>) {
    nlohmann::json list = nlohmann::json::array();
    for (const DenseLayer& layer : value) {
      for_each_field(layer, [&, entry = &list.emplace_back()](const char* name, const auto& field) {
        (*entry)[name] = json_of(field);
      });
    }
    return list;
  } else {
    return value;
  }
}

// Calls visit(name, field) for the fields that every checkpoint has, and for those that came later: the one list that
// is written, read and checked against.
template <class Config, class Visitor>
void for_each_first_field(Config& config, Visitor&& visit) {
  visit("architecture", config.architecture);
  visit("layers", config.layers);
  visit("hidden", config.hidden);
  visit("heads", config.heads);
  visit("kv_heads", config.kv_heads);
  visit("head_dim", config.head_dim);
  visit("ffn", config.ffn);
  visit("max_positions", config.max_positions);
  visit("vocab", config.vocab);
  visit("embedding_width", config.embedding_width);
  visit("token_types", config.token_types);
  visit("embedding_norm", config.embedding_norm);
  visit("image_size", config.image_size);
  visit("patch_size", config.patch_size);
  visit("channels", config.channels);
  visit("image_resampling", config.image_resampling);
  visit("image_mean", config.image_mean);
  visit("image_std", config.image_std);
  visit("positions", config.positions);
  visit("position_offset", config.position_offset);
  visit("rope_theta", config.rope_theta);
  visit("rope_scaling", config.rope_scaling);
  visit("rope_factor", config.rope_factor);
  visit("rope_low_frequency_factor", config.rope_low_frequency_factor);
  visit("rope_high_frequency_factor", config.rope_high_frequency_factor);
  visit("rope_original_positions", config.rope_original_positions);
  visit("norm", config.norm);
  visit("norm_position", config.norm_position);
  visit("norm_epsilon", config.norm_epsilon);
  visit("norm_bias", config.norm_bias);
  visit("final_norm", config.final_norm);
  visit("causal", config.causal);
  visit("sliding_window", config.sliding_window);
  visit("attention_bias", config.attention_bias);
  visit("attention_output_bias", config.attention_output_bias);
  visit("activation", config.activation);
  visit("mlp_bias", config.mlp_bias);
  visit("gated_mlp", config.gated_mlp);
  visit("experts", config.experts);
  visit("experts_per_token", config.experts_per_token);
  visit("tied_head", config.tied_head);
  visit("pooler", config.pooler);
  visit("classes", config.classes);
  visit("class_names", config.class_names);
  visit("eos_tokens", config.eos_tokens);
  visit("bos_token", config.bos_token);
}

template <class Config, class Visitor>
void for_each_later_field(Config& config, Visitor&& visit) {
  visit("rotary_dims", config.rotary_dims);
  visit("rope_window_theta", config.rope_window_theta);
  visit("rope_beta_fast", config.rope_beta_fast);
  visit("rope_beta_slow", config.rope_beta_slow);
  visit("rope_whole_dims", config.rope_whole_dims);
  visit("rope_attention_factor", config.rope_attention_factor);
  visit("rope_short_factors", config.rope_short_factors);
  visit("rope_long_factors", config.rope_long_factors);
  visit("parallel_residual", config.parallel_residual);
  visit("residual_scale", config.residual_scale);
  visit("embedding_scale", config.embedding_scale);
  visit("window_layers", config.window_layers);
  visit("query_key_norm", config.query_key_norm);
  visit("attention_scale", config.attention_scale);
  visit("attention_soft_cap", config.attention_soft_cap);
  visit("attention_sinks", config.attention_sinks);
  visit("gate_limit", config.gate_limit);
  visit("gate_offset", config.gate_offset);
  visit("expert_ffn", config.expert_ffn);
  visit("shared_ffn", config.shared_ffn);
  visit("expert_layers", config.expert_layers);
  visit("router_softmax", config.router_softmax);
  visit("router_bias", config.router_bias);
  visit("logits_scale", config.logits_scale);
  visit("logits_soft_cap", config.logits_soft_cap);
  visit("first_attention_norm", config.first_attention_norm);
  visit("embeds", config.embeds);
  visit("pooling", config.pooling);
  visit("dense", config.dense);
  visit("normalize_embedding", config.normalize_embedding);
  visit("class_scores", config.class_scores);
  visit("class_dense", config.class_dense);
  visit("class_dense_bias", config.class_dense_bias);
  visit("class_activation", config.class_activation);
  visit("class_norm", config.class_norm);
  visit("max_input_tokens", config.max_input_tokens);
  visit("lower_case", config.lower_case);
  visit("prompts", config.prompts);
  visit("default_prompt", config.default_prompt);
}

void require(bool condition, const std::string& what) {
  if (!condition) throw ConfigError("model configuration: " + what);
}

// Bounds far above any model and low enough that no product of two of them overflows.
constexpr int kMost = 1 << 24;

void check_range(const char* name, int value, int least, int most) {
  require(value >= least && value <= most, fmt::format("'{}' is {}, expected {} to {}", name, value, least, most));
}

void check_positive(const char* name, float value) {
  require(std::isfinite(value) && value > 0, fmt::format("'{}' is {}, expected a positive number", name, value));
}

void check_not_negative(const char* name, float value) {
  require(std::isfinite(value) && value >= 0, fmt::format("'{}' is {}, expected a number of at least 0", name, value));
}

void check_sizes(const ModelConfig& c) {
  check_range("layers", c.layers, 1, 1 << 14);
  check_range("hidden", c.hidden, 1, kMost);
  check_range("heads", c.heads, 1, 1 << 16);
  check_range("kv_heads", c.kv_heads, 1, c.heads);
  check_range("head_dim", c.head_dim, 1, 1 << 12);
  check_range("ffn", c.ffn, 1, kMost);
  check_range("max_positions", c.max_positions, 1, kMost);
  check_range("sliding_window", c.sliding_window, 0, kMost);
  check_positive("norm_epsilon", c.norm_epsilon);
}

void check_expert_layers(const ModelConfig& c) {
  require(c.expert_layers.empty() || std::cmp_equal(c.expert_layers.size(), c.layers),
          fmt::format("'expert_layers' has {} entries of {} layers", c.expert_layers.size(), c.layers));
  for (const int entry : c.expert_layers) {
    check_range("expert_layers", entry, 0, 1);
    require(entry == 0 || c.experts > 0, "'expert_layers' has a layer with experts, but 'experts' is 0");
  }
}

void check_experts(const ModelConfig& c) {
  check_range("experts", c.experts, 0, 1 << 12);
  require(static_cast<long>(c.layers) * c.experts <= 1 << 16,
          fmt::format("{} 'layers' of {} 'experts' are more than 65536 experts", c.layers, c.experts));
  check_range("experts_per_token", c.experts_per_token, c.experts > 0 ? 1 : 0, c.experts);
  check_range("expert_ffn", c.expert_ffn, 0, c.experts > 0 ? kMost : 0);
  check_range("shared_ffn", c.shared_ffn, 0, c.experts > 0 ? kMost : 0);
  check_expert_layers(c);
  require(!c.router_bias || c.experts > 0, "'router_bias' is true, but 'experts' is 0");
  if (!c.mlp_bias) return;
  require(c.shared_ffn == 0, "'mlp_bias' is true, but what is beside experts ('shared_ffn') has no biases");
  require(c.experts * (2L * c.ffn_of_expert() + c.hidden) <= 1 << 28,
          fmt::format("{} 'experts' of {} units have more than {} biases", c.experts, c.ffn_of_expert(), 1 << 28));
}

void check_gate(const ModelConfig& c) {
  check_not_negative("gate_limit", c.gate_limit);
  require(std::isfinite(c.gate_offset), fmt::format("'gate_offset' is {}, expected a number", c.gate_offset));
  require(c.gated_mlp || (c.gate_limit == 0 && c.gate_offset == 0),
          "'gate_limit' or 'gate_offset' is there, but 'gated_mlp' is false");
}

void check_inputs(const ModelConfig& c) {
  check_range("vocab", c.vocab, c.takes_images() ? 0 : 1, c.takes_images() ? 0 : kMost);
  check_range("embedding_width", c.embedding_width, 0, kMost);
  check_range("token_types", c.token_types, 0, 1 << 8);
  check_range("image_size", c.image_size, 0, 1 << 12);
  if (!c.takes_images()) return;
  check_range("channels", c.channels, 1, 16);
  check_range("patch_size", c.patch_size, 1, c.image_size);
  require(c.max_positions == c.patches() + 1,
          fmt::format("'max_positions' is {}, not {} patches and a class token", c.max_positions, c.patches()));
  require(!c.causal, "images are taken by encoders only");
  for (const auto* list : {&c.image_mean, &c.image_std}) {
    require(list->empty() || static_cast<int>(list->size()) == c.channels,
            fmt::format("'image_mean' or 'image_std' has {} values of {} channels", list->size(), c.channels));
  }
  for (const float deviation : c.image_std) check_positive("image_std", deviation);
}

void check_dense(const ModelConfig& c) {
  int in = c.hidden;
  for (const DenseLayer& layer : c.dense) {
    check_range("dense.out", layer.out, 1, kMost);
    require(layer.in == in, fmt::format("'dense' has a layer of {} inputs behind one of {} outputs", layer.in, in));
    in = layer.out;
  }
}

void check_outputs(const ModelConfig& c) {
  check_range("classes", c.classes, 0, kMost);
  require(c.pools() || (c.classes == 0 && !c.pooler && c.dense.empty() && !c.normalize_embedding),
          "'pooler', 'dense', 'normalize_embedding' and 'classes' are for encoders and embedders");
  require(!c.embeds || c.causal, "'embeds' is of decoders; an encoder embeds anyway");
  require(!c.pools() || !c.tied_head, "an encoder or embedder has no output head to tie");
  require(c.class_names.empty() || static_cast<int>(c.class_names.size()) == c.classes,
          fmt::format("'class_names' has {} names of {} classes", c.class_names.size(), c.classes));
  require(c.dense.empty() || c.classes == 0, "'dense' is of embedders, but 'classes' is not 0");
  require(!c.embeds || c.pooling != Pooling::kFirst,
          "'pooling' is first, but the first row of a decoder sees no other");
  require(!c.class_dense || c.classes > 0, "'class_dense' is true, but 'classes' is 0");
  require(!c.class_norm || c.class_dense, "'class_norm' is true, but 'class_dense' is false");
  check_dense(c);
}

void check_texts(const ModelConfig& c) {
  check_range("max_input_tokens", c.max_input_tokens, 0, c.max_positions);
  require(c.default_prompt.empty() || c.prompts.contains(c.default_prompt),
          fmt::format("'default_prompt' is \"{}\", which is none of 'prompts'", c.default_prompt));
}

void check_heads(const ModelConfig& c) {
  require(c.heads % c.kv_heads == 0, fmt::format("'heads' {} is not a multiple of 'kv_heads' {}", c.heads, c.kv_heads));
}

void check_attention(const ModelConfig& c) {
  check_not_negative("attention_scale", c.attention_scale);
  check_not_negative("attention_soft_cap", c.attention_soft_cap);
  require(c.window_layers.empty() || std::cmp_equal(c.window_layers.size(), c.layers),
          fmt::format("'window_layers' has {} entries of {} layers", c.window_layers.size(), c.layers));
  for (const int entry : c.window_layers) {
    check_range("window_layers", entry, 0, 1);
    require(entry == 0 || c.sliding_window > 0, "'window_layers' has a layer with a window, but 'sliding_window' is 0");
  }
  require(c.query_key_norm == QueryKeyNorm::kNone || c.norm != NormKind::kLayerNorm,
          "'query_key_norm' is there, but 'norm' is layer_norm; queries and keys are normalised by RMSNorm only");
}

void check_residual(const ModelConfig& c) {
  check_positive("residual_scale", c.residual_scale);
  check_positive("embedding_scale", c.embedding_scale);
  check_positive("logits_scale", c.logits_scale);
  check_not_negative("logits_soft_cap", c.logits_soft_cap);
  require(!c.parallel_residual || c.norm_position == NormPosition::kPre,
          "'parallel_residual' is true, but 'norm_position' is not pre");
  const bool biases = c.attention_output_bias || c.mlp_bias;
  require(!biases || !c.has_output_norms(), "a branch whose output is normalised has no bias at its end");
  require(!biases || c.residual_scale == 1, "a branch whose output is scaled has no bias at its end");
}

void check_llama3(const ModelConfig& c) {
  check_positive("rope_low_frequency_factor", c.rope_low_frequency_factor);
  require(std::isfinite(c.rope_high_frequency_factor) && c.rope_high_frequency_factor > c.rope_low_frequency_factor,
          fmt::format("'rope_high_frequency_factor' {} is not above 'rope_low_frequency_factor' {}",
                      c.rope_high_frequency_factor, c.rope_low_frequency_factor));
}

void check_yarn(const ModelConfig& c) {
  check_positive("rope_beta_fast", c.rope_beta_fast);
  check_positive("rope_beta_slow", c.rope_beta_slow);
  require(c.rope_theta > 1, fmt::format("'rope_theta' is {}, yarn needs more than 1", c.rope_theta));
}

void check_long_rope(const ModelConfig& c) {
  const std::pair<const char*, const std::vector<float>*> lists[] = {{"rope_short_factors", &c.rope_short_factors},
                                                                     {"rope_long_factors", &c.rope_long_factors}};
  for (const auto& [name, list] : lists) {
    require(std::cmp_equal(list->size(), c.rotated() / 2),
            fmt::format("'{}' has {} factors of {} pairs", name, list->size(), c.rotated() / 2));
    for (const float factor : *list) check_positive(name, factor);
  }
}

void check_positions(const ModelConfig& c) {
  check_range("position_offset", c.position_offset, 0, 1 << 16);
  if (c.positions != PositionKind::kRotary) return;
  check_range("rotary_dims", c.rotary_dims, 0, c.head_dim);
  require(c.rotated() % 2 == 0, fmt::format("'{}' {} is odd, rotary positions need pairs",
                                            c.rotary_dims > 0 ? "rotary_dims" : "head_dim", c.rotated()));
  check_positive("rope_theta", c.rope_theta);
  check_not_negative("rope_window_theta", c.rope_window_theta);
  check_positive("rope_factor", c.rope_factor);
  check_positive("rope_attention_factor", c.rope_attention_factor);
  if (c.rope_scaling == RopeScaling::kLlama3) check_llama3(c);
  if (c.rope_scaling == RopeScaling::kYarn) check_yarn(c);
  if (c.rope_scaling == RopeScaling::kLongRope) check_long_rope(c);
  if (c.rope_scaling == RopeScaling::kNone || c.rope_scaling == RopeScaling::kLinear) return;
  check_range("rope_original_positions", c.rope_original_positions, 1, kMost);
}

void check_adapter_ranks(const ModelConfig& c) {
  for (const auto& [module, rank] : c.adapter_ranks) {
    check_range(fmt::format("adapter_ranks.{}", module).c_str(), rank, 1, static_cast<int>(kMaxAdapterRank));
  }
}

void check_tokens(const ModelConfig& c) {
  check_range("bos_token", c.bos_token, -1, c.vocab - 1);
  for (const TokenId token : c.eos_tokens) check_range("eos_tokens", token, 0, c.vocab - 1);
}

}  // namespace

std::string ModelConfig::to_json() const {
  nlohmann::ordered_json json;
  const auto write = [&](const char* name, const auto& field) { json[name] = json_of(field); };
  for_each_first_field(*this, write);
  for_each_later_field(*this, write);
  if (!adapter_ranks.empty()) json[kAdapterRanks] = adapter_ranks;
  return json.dump();
}

ModelConfig ModelConfig::from_json(const std::string& json_text) {
  nlohmann::json json = parse_json_object(json_text);
  require(!json.contains("adapter"), "it is an adapter's, and no model by itself (convert --merge makes one)");
  ModelConfig config;
  const auto read = [&](const char* name, auto& field) {
    read_value(name, json[name], field);
    json.erase(name);
  };
  for_each_first_field(config, [&](const char* name, auto& field) {
    require(json.contains(name), fmt::format("'{}' is missing", name));
    read(name, field);
  });
  for_each_later_field(config, [&](const char* name, auto& field) {
    if (json.contains(name)) read(name, field);
  });
  if (json.contains(kAdapterRanks)) read(kAdapterRanks, config.adapter_ranks);
  require(json.empty(), fmt::format("'{}' is not a known key", json.empty() ? "" : json.begin().key()));
  config.validate();
  return config;
}

std::string ModelConfig::class_name(int index) const {
  return class_names.empty() ? fmt::format("LABEL_{}", index) : class_names[static_cast<std::size_t>(index)];
}

LayerConfig ModelConfig::layer(int index) const {
  const bool has_window = window_layers.empty() || window_layers[static_cast<std::size_t>(index)] != 0;
  const int window = has_window ? sliding_window : 0;
  return {.window = window,
          .window_rotation = window > 0 && rope_window_theta > 0,
          .experts = experts > 0 && (expert_layers.empty() || expert_layers[static_cast<std::size_t>(index)] != 0)};
}

bool ModelConfig::has_layers_without_experts() const {
  return experts == 0 || std::ranges::find(expert_layers, 0) != expert_layers.end();
}

bool ModelConfig::takes_long_factors(std::size_t tokens) const {
  return rope_scaling == RopeScaling::kLongRope && std::cmp_greater(tokens, rope_original_positions);
}

void ModelConfig::validate() const {
  require(!architecture.empty(), "'architecture' is empty");
  check_sizes(*this);
  check_experts(*this);
  check_gate(*this);
  check_inputs(*this);
  check_outputs(*this);
  check_texts(*this);
  check_heads(*this);
  check_attention(*this);
  check_residual(*this);
  check_positions(*this);
  check_tokens(*this);
  check_adapter_ranks(*this);
}

}  // namespace computron
