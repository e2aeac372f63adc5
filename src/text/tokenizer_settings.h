// What the files beside a vocabulary say.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "computron/text/tokenizer.h"
#include "src/text/json_reader.h"

namespace computron {

// Of tokenizer_config.json, special_tokens_map.json, added_tokens.json and chat_template.jinja.
struct TokenizerSettings {
  explicit TokenizerSettings(const TokenizerFiles& files);

  // A token of the settings by its role, such as "bos_token"; empty if there is none.
  std::string role(const char* name) const;

  Json config, roles, added;  // null where there is no file
  std::string chat_template;
};

}  // namespace computron
