// The keys of a Hugging Face config.json. Absent keys take the defaults of the family's configuration class in
// transformers; a value that this program does not compute is refused by name. Private to src/model.
#pragma once

#include <initializer_list>
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
  int value_or_none(const char* key, int fallback, int none) const;

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
  // Of a list with a type for every layer: whether all are `wanted`; refused unless they are, or all are `other`.
  std::optional<bool> all_layers(const char* key, std::string_view wanted, std::string_view other) const;
  // One of "relu", "gelu", "gelu_new", ... under `key`.
  Activation activation(const char* key, const char* fallback) const;
  // hidden / heads, refused where it leaves a rest.
  static int head_dim(int hidden, int heads);
  // The first of `architectures`, or "" if there is none; refused unless it is among `known`.
  std::string architecture(std::initializer_list<std::string_view> known) const;
  // Number and names of a classifier's classes from id2label or num_labels into `config`.
  void read_classes(ModelConfig& config) const;
  // rope_parameters, or rope_theta and rope_scaling, into `config`.
  void read_rotary(ModelConfig& config, float default_theta) const;
  // Tokens that begin and end texts.
  void read_tokens(ModelConfig& config, std::vector<TokenId> default_bos, std::vector<TokenId> default_eos) const;

  [[noreturn]] static void refuse(const std::string& key, const nlohmann::json& value, const std::string& supported);

 private:
  const nlohmann::json* find(const char* key) const;  // null if absent or null

  const nlohmann::json& object_;
};

}  // namespace computron
