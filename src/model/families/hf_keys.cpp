#include "src/model/families/hf_keys.h"

#include <algorithm>

#include "src/model/join.h"

namespace computron {

using nlohmann::json;

namespace {

// Names of classes are kept where a checkpoint's attribute has room for them.
constexpr std::size_t kMostNameBytes = 32768;

std::string shown(const json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace).substr(0, 100);
}

void read_llama3(const HfKeys& keys, const HfKeys& rope, ModelConfig& config) {
  config.rope_scaling = RopeScaling::kLlama3;
  config.rope_factor = rope.value("factor", 8.0f);
  config.rope_low_frequency_factor = rope.value("low_freq_factor", 1.0f);
  config.rope_high_frequency_factor = rope.value("high_freq_factor", 4.0f);
  constexpr const char* kOriginal = "original_max_position_embeddings";
  config.rope_original_positions = keys.value(kOriginal, rope.value(kOriginal, config.max_positions));
}

}  // namespace

const json* HfKeys::find(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

int HfKeys::value_or_none(const char* key, int fallback, int none) const {
  return object_.contains(key) && find(key) == nullptr ? none : value(key, fallback);
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

std::optional<bool> HfKeys::all_layers(const char* key, std::string_view wanted, std::string_view other) const {
  const auto types = value(key, std::vector<std::string>{});
  if (types.empty()) return std::nullopt;
  const auto are = [&types](std::string_view type) {
    return std::all_of(types.begin(), types.end(), [type](const std::string& t) { return t == type; });
  };
  if (!are(wanted) && !are(other)) refuse(key, types, fmt::format("all {} or all {}", wanted, other));
  return are(wanted);
}

// id2label maps "0", "1", ... to names.
void HfKeys::read_classes(ModelConfig& config) const {
  require("problem_type", std::string("single_label_classification"), std::string("single_label_classification"));
  config.classes = value("num_labels", 2);
  const json* names = find("id2label");
  if (names == nullptr) return;
  if (!names->is_object()) fail_value("id2label", *names, "an object");
  config.classes = static_cast<int>(names->size());
  std::size_t bytes = 0;
  for (int i = 0; i < config.classes; ++i) {
    const auto found = names->find(std::to_string(i));
    if (found == names->end()) fail_value("id2label", *names, "names of 0, 1, 2, ... without a gap");
    read_value("id2label", *found, config.class_names.emplace_back());
    bytes += config.class_names.back().size();
  }
  if (config.classes == 1) refuse("id2label", *names, "two classes or more (one is a regression)");
  if (bytes > kMostNameBytes) config.class_names.clear();
}

// Of transformers' convert_rope_params_to_dict: rope_scaling, where it is there, counts instead of rope_parameters;
// what the object does not say, the keys beside it do.
void HfKeys::read_rotary(ModelConfig& config, float default_theta) const {
  config.positions = PositionKind::kRotary;
  const HfKeys rope = has("rope_scaling") ? object("rope_scaling") : object("rope_parameters");
  for (const auto& [name, entry] : rope.object_.items()) {
    if (entry.is_object()) refuse("rope_parameters." + name, entry, "one set of parameters for all layers");
  }
  config.rope_theta = rope.value("rope_theta", value("rope_theta", default_theta));
  const float partial = rope.value("partial_rotary_factor", value("partial_rotary_factor", 1.0f));
  if (partial != 1) refuse("partial_rotary_factor", partial, "1");
  const auto type = rope.value("rope_type", rope.value("type", std::string("default")));
  if (type == "llama3") return read_llama3(*this, rope, config);
  config.rope_factor = rope.value("factor", 1.0f);
  if (type == "linear") {
    config.rope_scaling = RopeScaling::kLinear;
  } else if (type != "default") {
    refuse("rope_type", type, "default, linear or llama3");
  }
}

void HfKeys::read_tokens(ModelConfig& config, std::vector<TokenId> default_bos,
                         std::vector<TokenId> default_eos) const {
  const std::vector<TokenId> bos = tokens("bos_token_id", std::move(default_bos));
  config.bos_token = bos.empty() ? -1 : bos.front();
  config.eos_tokens = tokens("eos_token_id", std::move(default_eos));
}

}  // namespace computron
