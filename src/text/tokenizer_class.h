// What transformers' class of a tokenizer settles, beside what its files say: the class that tokenizer_config.json
// names as `tokenizer_class`.
#pragma once

#include <string_view>
#include <vector>

namespace computron {

// A token by its role, such as "bos_token".
struct TokenRole {
  std::string_view role, text;
};

struct TokenizerClass {
  std::string_view name;         // without "Fast"; empty: one that is not known
  std::vector<TokenRole> roles;  // of tokens whose roles the files leave open
  // Transformers 4 puts around a text what add_bos_token and add_eos_token say, whatever tokenizer.json has.
  bool settings_decide = false;
  bool adds_bos = false;  // unless add_bos_token says otherwise
};

// With or without "Fast" at the end of the name.
const TokenizerClass& tokenizer_class(std::string_view name);
// The name of the class that transformers takes for a model_type whose tokenizer_config.json names none; empty if it
// has none that reads a vocabulary without tokenizer.json.
std::string_view class_of_model(std::string_view model_type);

}  // namespace computron
