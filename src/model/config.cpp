#include "computron/model/config.h"

#include <fmt/format.h>

#include <cmath>
#include <type_traits>
#include <utility>

#include "config_json.h"
#include "join.h"

namespace computron {
namespace {

// Names of enumerators in the stored JSON.
template <class Enum>
using EnumNames = std::span<const std::pair<Enum, const char*>>;

EnumNames<NormKind> names_of(NormKind) {
  static constexpr std::pair<NormKind, const char*> kNames[] = {{NormKind::kLayerNorm, "layer_norm"},
                                                                {NormKind::kRmsNorm, "rms_norm"}};
  return kNames;
}
EnumNames<NormPosition> names_of(NormPosition) {
  static constexpr std::pair<NormPosition, const char*> kNames[] = {{NormPosition::kPre, "pre"},
                                                                    {NormPosition::kPost, "post"}};
  return kNames;
}
EnumNames<PositionKind> names_of(PositionKind) {
  static constexpr std::pair<PositionKind, const char*> kNames[] = {{PositionKind::kLearned, "learned"},
                                                                    {PositionKind::kRotary, "rotary"}};
  return kNames;
}
EnumNames<Activation> names_of(Activation) {
  static constexpr std::pair<Activation, const char*> kNames[] = {{Activation::kNone, "none"},
                                                                  {Activation::kRelu, "relu"},
                                                                  {Activation::kGeluTanh, "gelu_tanh"},
                                                                  {Activation::kGeluErf, "gelu_erf"},
                                                                  {Activation::kSilu, "silu"}};
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

template <class Value>
nlohmann::json json_of(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    for (const auto& [enumerator, name] : names_of(value)) {
      if (enumerator == value) return name;
    }
    throw Error(ExitCode::kInternal, "internal: enumerator without a name");
  } else if constexpr (std::is_same_v<Value, float>) {
    return std::stod(fmt::format("{}", value));  // the shortest digits that read as this float: 1e-05
  } else {
    return value;
  }
}

// Calls visit(name, field) for every field: the one list that is written, read and checked against.
template <class Config, class Visitor>
void for_each_field(Config& config, Visitor&& visit) {
  visit("architecture", config.architecture);
  visit("layers", config.layers);
  visit("hidden", config.hidden);
  visit("heads", config.heads);
  visit("kv_heads", config.kv_heads);
  visit("head_dim", config.head_dim);
  visit("ffn", config.ffn);
  visit("vocab", config.vocab);
  visit("max_positions", config.max_positions);
  visit("position_offset", config.position_offset);
  visit("norm", config.norm);
  visit("norm_position", config.norm_position);
  visit("positions", config.positions);
  visit("activation", config.activation);
  visit("norm_epsilon", config.norm_epsilon);
  visit("norm_bias", config.norm_bias);
  visit("attention_bias", config.attention_bias);
  visit("mlp_bias", config.mlp_bias);
  visit("gated_mlp", config.gated_mlp);
  visit("final_norm", config.final_norm);
  visit("tied_head", config.tied_head);
  visit("eos_tokens", config.eos_tokens);
  visit("bos_token", config.bos_token);
}

void require(bool condition, const std::string& what) {
  if (!condition) throw ConfigError("model configuration: " + what);
}

// Bounds far above any model and low enough that no product of two of them overflows.
void check_range(const char* name, int value, int least, int most) {
  require(value >= least && value <= most, fmt::format("'{}' is {}, expected {} to {}", name, value, least, most));
}

void check_sizes(const ModelConfig& c) {
  constexpr int kMost = 1 << 24;
  check_range("layers", c.layers, 1, 1 << 14);
  check_range("hidden", c.hidden, 1, kMost);
  check_range("heads", c.heads, 1, 1 << 16);
  check_range("kv_heads", c.kv_heads, 1, c.heads);
  check_range("head_dim", c.head_dim, 1, 1 << 12);
  check_range("ffn", c.ffn, 1, kMost);
  check_range("vocab", c.vocab, 1, kMost);
  check_range("max_positions", c.max_positions, 1, kMost);
  check_range("position_offset", c.position_offset, 0, 1 << 16);
}

void check_heads(const ModelConfig& c) {
  require(c.heads % c.kv_heads == 0, fmt::format("'heads' {} is not a multiple of 'kv_heads' {}", c.heads, c.kv_heads));
  require(c.architecture != "opt" || c.heads * c.head_dim == c.hidden,
          fmt::format("'heads' {} x 'head_dim' {} is not 'hidden' {}", c.heads, c.head_dim, c.hidden));
  require(c.positions != PositionKind::kRotary || c.head_dim % 2 == 0,
          fmt::format("'head_dim' {} is odd, rotary positions need pairs", c.head_dim));
}

void check_tokens(const ModelConfig& c) {
  check_range("bos_token", c.bos_token, -1, c.vocab - 1);
  for (const TokenId token : c.eos_tokens) check_range("eos_tokens", token, 0, c.vocab - 1);
}

struct OptSize {
  std::string_view name;
  int layers, hidden, heads, ffn;
};

constexpr OptSize kOptSizes[] = {
    {"125m", 12, 768, 12, 3072},   {"1.3b", 24, 2048, 32, 8192},   {"2.7b", 32, 2560, 32, 10240},
    {"6.7b", 32, 4096, 32, 16384}, {"13b", 40, 5120, 40, 20480},   {"30b", 48, 7168, 56, 28672},
    {"66b", 64, 9216, 72, 36864},  {"175b", 96, 12288, 96, 49152},
};

ModelConfig opt_of_size(const OptSize& size) {
  ModelConfig config;
  config.architecture = "opt";
  config.layers = size.layers;
  config.hidden = size.hidden;
  config.heads = config.kv_heads = size.heads;
  config.head_dim = size.hidden / size.heads;
  config.ffn = size.ffn;
  config.vocab = 50272;
  config.max_positions = 2048;
  config.position_offset = 2;
  config.eos_tokens = {2};
  config.bos_token = 2;
  return config;
}

std::string known_opt_sizes() {
  std::vector<std::string_view> names;
  for (const OptSize& size : kOptSizes) names.push_back(size.name);
  return join(names, ", ");
}

}  // namespace

std::string ModelConfig::to_json() const {
  nlohmann::ordered_json json;
  for_each_field(*this, [&](const char* name, const auto& field) { json[name] = json_of(field); });
  return json.dump();
}

ModelConfig ModelConfig::from_json(const std::string& json_text) {
  nlohmann::json json = parse_json_object(json_text);
  ModelConfig config;
  for_each_field(config, [&](const char* name, auto& field) {
    require(json.contains(name), fmt::format("'{}' is missing", name));
    read_value(name, json[name], field);
    json.erase(name);
  });
  require(json.empty(), fmt::format("'{}' is not a known key", json.empty() ? "" : json.begin().key()));
  config.validate();
  return config;
}

ModelConfig ModelConfig::named(std::string_view arch, std::string_view size) {
  if (arch != "opt") throw Error(ExitCode::kUsage, fmt::format("unknown architecture '{}' (known: opt)", arch));
  for (const OptSize& known : kOptSizes) {
    if (size == known.name) return opt_of_size(known);
  }
  if (size == "350m") {
    throw Error(ExitCode::kUsage, fmt::format("opt 350m normalises after its layers and projects its embeddings, "
                                              "which is not supported (known sizes: {})",
                                              known_opt_sizes()));
  }
  throw Error(ExitCode::kUsage, fmt::format("unknown size '{}' of opt (known: {})", size, known_opt_sizes()));
}

void ModelConfig::validate() const {
  require(!architecture.empty(), "'architecture' is empty");
  check_sizes(*this);
  check_heads(*this);
  check_tokens(*this);
  require(std::isfinite(norm_epsilon) && norm_epsilon > 0,
          fmt::format("'norm_epsilon' is {}, expected a positive number", norm_epsilon));
}

}  // namespace computron
