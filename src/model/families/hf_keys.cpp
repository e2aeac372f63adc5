#include "src/model/families/hf_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "computron/base/join.h"

namespace computron {

using nlohmann::json;

namespace {

// Names of classes are kept where a checkpoint's attribute has room for them.
constexpr std::size_t kMostNameBytes = 32768;

std::string shown(const json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace).substr(0, 100);
}

void read_llama3(const HfKeys& rope, ModelConfig& config) {
  config.rope_scaling = RopeScaling::kLlama3;
  config.rope_factor = rope.value("factor", 8.0f);
  config.rope_low_frequency_factor = rope.value("low_freq_factor", 1.0f);
  config.rope_high_frequency_factor = rope.value("high_freq_factor", 4.0f);
}

// Yarn's factor of cosines and sines: how much colder attention is in texts that are `scale` times as long.
float yarn_attention(float scale, float weight) { return scale <= 1 ? 1 : 0.1f * weight * std::log(scale) + 1; }

// The context is the original one times the factor (vLLM's _get_and_verify_max_len): Qwen's max_position_embeddings is
// the original one, that of others, gpt-oss for example, is scaled already.
void lengthen(ModelConfig& config) {
  const double scaled = static_cast<double>(config.rope_factor) * config.rope_original_positions;
  constexpr double kMost = std::numeric_limits<int>::max();
  if (scaled > config.max_positions) config.max_positions = static_cast<int>(std::min(scaled, kMost));
}

}  // namespace

const json* HfKeys::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void HfKeys::refuse(const std::string& key, const json& value, const std::string& supported) {
  throw ConfigError(fmt::format("model configuration: '{}' is {}, only {} is supported", key, shown(value), supported));
}

std::vector<TokenId> HfKeys::tokens(const char* key, std::vector<TokenId> fallback) const {
  if (!object_.contains(key)) return fallback;
  const json* found = find(key);
  if (found == nullptr) return {};
  if (found->is_array()) return value(key, std::vector<TokenId>{});
  return {value(key, TokenId{0})};
}

HfKeys HfKeys::object(const char* key) const {
  static const json kEmpty = json::object();
  const json* found = find(key);
  if (found != nullptr && !found->is_object()) fail_value(key, *found, "an object");
  return HfKeys(found == nullptr ? kEmpty : *found);
}

Activation HfKeys::activation(const char* key, const char* fallback) const {
  static constexpr std::pair<std::string_view, Activation> kNames[] = {
      {"relu", Activation::kRelu},          {"gelu", Activation::kGeluErf},
      {"gelu_new", Activation::kGeluTanh},  {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh}, {"silu", Activation::kSilu},
      {"swish", Activation::kSilu}};
  const auto name = value(key, fallback);
  for (const auto& [known, activation] : kNames) {
    if (name == known) return activation;
  }
  refuse(key, name, "relu, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast or silu");
}

int HfKeys::head_dim(int hidden, int heads) {
  if (heads > 0 && hidden % heads == 0) return hidden / heads;
  throw ConfigError(
      fmt::format("model configuration: hidden size {} is not a multiple of {} attention heads", hidden, heads));
}

std::string HfKeys::architecture(std::initializer_list<std::string_view> known) const {
  const auto names = value("architectures", std::vector<std::string>{});
  if (names.empty()) return "";
  if (std::find(known.begin(), known.end(), names.front()) == known.end()) {
    refuse("architectures", names, join(known, " or "));
  }
  return names.front();
}

std::vector<int> HfKeys::sides(const char* key) const {
  const json* found = find(key);
  if (found == nullptr) return {};
  if (!found->is_object()) return {value(key, 0)};
  std::vector<int> sides;
  for (const auto& [name, side] : found->items()) read_value(std::string(key) + "." + name, side, sides.emplace_back());
  return sides;
}

std::vector<int> HfKeys::window_layers() const {
  std::vector<int> layers;
  for (const std::string& type : value("layer_types", std::vector<std::string>{})) {
    if (type != "sliding_attention" && type != "full_attention") {
      refuse("layer_types", type, "sliding_attention or full_attention");
    }
    layers.push_back(type == "sliding_attention" ? 1 : 0);
  }
  return layers;
}

// id2label maps "0", "1", ... to names.
void HfKeys::read_classes(ModelConfig& config) const {
  config.classes = value("num_labels", 2);
  if (const json* names = find("id2label")) read_class_names(*names, config);
  config.class_scores = class_scores(config.classes);
}

void HfKeys::read_class_names(const json& names, ModelConfig& config) {
  if (!names.is_object()) fail_value("id2label", names, "an object");
  config.classes = static_cast<int>(names.size());
  std::size_t bytes = 0;
  for (int i = 0; i < config.classes; ++i) {
    const auto found = names.find(std::to_string(i));
    if (found == names.end()) fail_value("id2label", names, "names of 0, 1, 2, ... without a gap");
    read_value("id2label", *found, config.class_names.emplace_back());
    bytes += config.class_names.back().size();
  }
  if (bytes > kMostNameBytes) config.class_names.clear();
}

// What sentence-transformers' CrossEncoder says counts first, then the problem that the model was trained for. Where
// neither is said, one class is a probability (CrossEncoder's default, and vLLM's).
ClassScores HfKeys::class_scores(int classes) const {
  constexpr const char* kOld = "sbert_ce_default_activation_function";
  if (const auto scores = object("sentence_transformers").cross_encoder_scores("activation_fn")) return *scores;
  if (const auto scores = cross_encoder_scores(kOld)) return *scores;
  const char* fallback = classes == 1 ? "multi_label_classification" : "single_label_classification";
  const auto problem = value("problem_type", fallback);
  if (problem == "single_label_classification") return ClassScores::kSoftmax;
  if (problem == "multi_label_classification") return ClassScores::kSigmoid;
  if (problem == "regression") return ClassScores::kRaw;
  refuse("problem_type", problem, "single_label_classification, multi_label_classification or regression");
}

std::optional<ClassScores> HfKeys::cross_encoder_scores(const char* key) const {
  const auto name = value(key, "");
  if (name.empty()) return std::nullopt;
  if (name == "torch.nn.modules.linear.Identity") return ClassScores::kRaw;
  if (name == "torch.nn.modules.activation.Sigmoid") return ClassScores::kSigmoid;
  refuse(key, name, "torch's Identity or Sigmoid");
}

std::map<std::string, std::string> HfKeys::prompts(const char* key) const {
  std::map<std::string, std::string> prompts;
  const json* found = find(key);
  if (found == nullptr) return prompts;
  if (!found->is_object()) fail_value(key, *found, "an object");
  for (const auto& [name, text] : found->items()) {
    if (!text.is_null()) read_value(std::string(key) + "." + name, text, prompts[name]);
  }
  return prompts;
}

// Of transformers' convert_rope_params_to_dict: rope_scaling, where it is there, counts instead of rope_parameters;
// what the object does not say, the keys beside it do.
HfKeys HfKeys::rope() const { return has("rope_scaling") ? object("rope_scaling") : object("rope_parameters"); }

void HfKeys::read_rotary(ModelConfig& config, float default_theta) const {
  const float part = rope().value("partial_rotary_factor", value("partial_rotary_factor", 1.0f));
  if (part != 1) refuse("partial_rotary_factor", part, "1");
  read_rope(rope(), config, default_theta);
}

void HfKeys::read_partial_rotary(ModelConfig& config, float default_theta, const char* part_key,
                                 float default_part) const {
  const float part = rope().value("partial_rotary_factor", value(part_key, default_part));
  if (!(part > 0 && part <= 1)) refuse(part_key, part, "a part of a head, above 0 and up to 1,");
  if (part < 1) config.rotary_dims = static_cast<int>(static_cast<float>(config.head_dim) * part);
  if (part < 1 && config.rotary_dims < 2) refuse(part_key, part, "a part of two elements of a head and more");
  read_rope(rope(), config, default_theta);
}

void HfKeys::read_rotary_by_layer(ModelConfig& config, float default_theta, const char* window_key,
                                  std::optional<float> default_window_theta) const {
  const HfKeys rope = this->rope();
  const bool by_layer = rope.has("full_attention") || rope.has("sliding_attention");
  const HfKeys of_windows = rope.object("sliding_attention");
  of_windows.require("rope_type", std::string("default"), std::string("default"));
  read_rope(by_layer ? rope.object("full_attention") : rope, config, default_theta);
  const float theta =
      of_windows.value("rope_theta", value(window_key, default_window_theta.value_or(config.rope_theta)));
  const bool as_others = theta == config.rope_theta && config.rope_scaling == RopeScaling::kNone;
  config.rope_window_theta = as_others ? 0 : theta;
}

void HfKeys::read_rope(const HfKeys& rope, ModelConfig& config, float default_theta) const {
  config.positions = PositionKind::kRotary;
  for (const auto& [name, entry] : rope.object_.items()) {
    if (entry.is_object()) refuse("rope_parameters." + name, entry, "one set of parameters for all layers");
  }
  config.rope_theta = rope.value("rope_theta", value("rope_theta", default_theta));
  const auto type = rope.value("rope_type", rope.value("type", std::string("default")));
  config.rope_factor = rope.value("factor", 1.0f);
  if (type == "default") return;
  config.rope_original_positions = original_positions(rope, config);
  if ((type == "linear" || type == "yarn") && !rope.has("factor")) refuse("rope_scaling.factor", json(), "a number");
  if (type == "linear" || type == "yarn") lengthen(config);
  if (type == "linear") {
    config.rope_scaling = RopeScaling::kLinear;
    config.rope_original_positions = 0;
  } else if (type == "llama3") {
    read_llama3(rope, config);
  } else if (type == "yarn") {
    read_yarn(rope, config);
  } else if (type == "longrope" || type == "su") {  // its first name
    read_long_rope(rope, config);
  } else {
    refuse("rope_type", type, "default, linear, llama3, yarn or longrope");
  }
}

int HfKeys::original_positions(const HfKeys& rope, const ModelConfig& config) const {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  return value(kOriginal, rope.value(kOriginal, config.max_positions));
}

// transformers' _compute_yarn_parameters.
void HfKeys::read_yarn(const HfKeys& rope, ModelConfig& config) const {
  config.rope_scaling = RopeScaling::kYarn;
  config.rope_beta_fast = rope.value("beta_fast", 32.0f);
  config.rope_beta_slow = rope.value("beta_slow", 1.0f);
  config.rope_whole_dims = rope.value("truncate", true);
  const float scale = config.rope_factor, weight = rope.value("mscale", 0.0f), all = rope.value("mscale_all_dim", 0.0f);
  const float both = yarn_attention(scale, weight) / yarn_attention(scale, all);
  config.rope_attention_factor =
      rope.value("attention_factor", weight != 0 && all != 0 ? both : yarn_attention(scale, 1));
}

// transformers' _compute_longrope_parameters.
void HfKeys::read_long_rope(const HfKeys& rope, ModelConfig& config) const {
  config.rope_scaling = RopeScaling::kLongRope;
  config.rope_short_factors = rope.value("short_factor", std::vector<float>{});
  config.rope_long_factors = rope.value("long_factor", std::vector<float>{});
  const auto original = static_cast<float>(config.rope_original_positions);
  const float longer = rope.value("factor", static_cast<float>(config.max_positions) / original);
  const float factor = longer > 1 ? std::sqrt(1 + std::log(longer) / std::log(original)) : 1;
  config.rope_factor = 1;
  config.rope_attention_factor = rope.value("attention_factor", factor);
}

void HfKeys::read_tokens(ModelConfig& config, std::vector<TokenId> default_bos,
                         std::vector<TokenId> default_eos) const {
  const std::vector<TokenId> bos = tokens("bos_token_id", std::move(default_bos));
  config.bos_token = bos.empty() ? -1 : bos.front();
  config.eos_tokens = tokens("eos_token_id", std::move(default_eos));
}

}  // namespace computron
