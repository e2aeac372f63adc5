// The keys of a Hugging Face config.json. Absent keys take the defaults of the family's configuration class in
// transformers; a value that this program does not compute is refused by name. Private to src/model.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "computron/model/config.h"
#include "src/model/config_json.h"

namespace computron {

class HfKeys {
 public:
  // Borrows the object.
  explicit HfKeys(const nlohmann::json& object) : object_(object) {}

  // The key's value, or `fallback` if it is absent. null counts as absent, as in transformers.
  template <class Value>
  Value value(const char* key, Value fallback) const {
    if (const nlohmann::json* found = find(key)) read_value(key, *found, fallback);
    return fallback;
  }
  std::string value(const char* key, const char* fallback) const { return value(key, std::string(fallback)); }
  // As value(), but null means nothing rather than the fallback.
  template <class Value>
  Value value_or_none(const char* key, Value fallback, Value none) const {
    return object_.contains(key) && find(key) == nullptr ? none : value(key, fallback);
  }

  // A setting that must have the one value this program computes.
  template <class Value>
  void require(const char* key, const Value& only, const Value& fallback) const {
    const Value given = value(key, fallback);
    if (given != only) refuse(key, nlohmann::json(given), nlohmann::json(only).dump());
  }

  // One token or a list of them; null: none.
  std::vector<TokenId> tokens(const char* key, std::vector<TokenId> fallback) const;
  // The object under `key`, empty if it is absent.
  HfKeys object(const char* key) const;
  bool has(const char* key) const { return find(key) != nullptr; }
  // The numbers of an object such as {"height": 224, "width": 224}, or the one number; none if it is absent.
  std::vector<int> sides(const char* key) const;
  // The type of every layer in layer_types as ModelConfig::window_layers: 1 for sliding_attention, 0 for
  // full_attention, refused for others. Empty if there is no such list.
  std::vector<int> window_layers() const;
  // One of "relu", "gelu", "gelu_new", ... under `key`.
  Activation activation(const char* key, const char* fallback) const;
  // hidden / heads, refused where it leaves a rest.
  static int head_dim(int hidden, int heads);
  // The first of `architectures`, or "" if there is none; refused unless it is among `known`.
  std::string architecture(std::initializer_list<std::string_view> known) const;
  // Number and names of a classifier's classes from id2label or num_labels, and what their scores are, into `config`.
  void read_classes(ModelConfig& config) const;
  // What the score of a CrossEncoder of sentence-transformers is, whose activation stands under `key`.
  std::optional<ClassScores> cross_encoder_scores(const char* key) const;
  // Texts by their names.
  std::map<std::string, std::string> prompts(const char* key) const;
  // rope_parameters, or rope_theta and rope_scaling, into `config`, whose head_dim and max_positions are known.
  void read_rotary(ModelConfig& config, float default_theta) const;
  // The same of models that rotate a part of each head, which `part_key` says where rope_parameters do not.
  void read_partial_rotary(ModelConfig& config, float default_theta, const char* part_key, float default_part) const;
  // The same of models whose layers with a window have a base of their own, without scaling: full_attention and
  // sliding_attention of rope_parameters, or the other layers' keys and `window_key`; absent: the other layers' base.
  void read_rotary_by_layer(ModelConfig& config, float default_theta, const char* window_key,
                            std::optional<float> default_window_theta) const;
  // Tokens that begin and end texts.
  void read_tokens(ModelConfig& config, std::vector<TokenId> default_bos, std::vector<TokenId> default_eos) const;

  [[noreturn]] static void refuse(const std::string& key, const nlohmann::json& value, const std::string& supported);

 private:
  const nlohmann::json* find(const char* key) const;  // null if absent or null
  static void read_class_names(const nlohmann::json& names, ModelConfig& config);
  ClassScores class_scores(int classes) const;
  HfKeys rope() const;
  // The one set of parameters `rope` for all layers, or for those without a window.
  void read_rope(const HfKeys& rope, ModelConfig& config, float default_theta) const;
  void read_yarn(const HfKeys& rope, ModelConfig& config) const;
  void read_long_rope(const HfKeys& rope, ModelConfig& config) const;
  int original_positions(const HfKeys& rope, const ModelConfig& config) const;

  const nlohmann::json& object_;
};

}  // namespace computron
