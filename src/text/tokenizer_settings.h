// What the files beside a vocabulary say.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "computron/text/tokenizer.h"
#include "src/text/json_reader.h"

namespace computron {

// Of tokenizer_config.json, special_tokens_map.json, added_tokens.json and chat_template.jinja.
struct TokenizerSettings {
  // Where tokenizer_config.json names no class and there is no tokenizer.json, the model's type (config.json's) does.
  TokenizerSettings(const TokenizerFiles& files, std::string_view model_type);

  // What the settings have as a role's token: a text or an object; null if they name none.
  const Json* entry(const char* name) const;
  // A token of the settings, else of the class, by its role, such as "bos_token"; empty if there is none.
  std::string role(const char* name) const;
  // True or false in tokenizer_config.json; nothing where it says neither.
  std::optional<bool> flag(const char* name) const;

  Json config, roles, added;  // null where there is no file
  std::string chat_template;
  std::string class_name;  // as the file has it, or the model's; empty if neither names one
};

}  // namespace computron
