// Tokenizers of conversations.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/text/text_support.h"

namespace computron::test {

// The Llama 3 tokenizer of the fixtures with more special tokens.
inline std::shared_ptr<const Tokenizer> tokenizer_with_tokens(const std::vector<std::string>& special) {
  TokenizerFiles files = tokenizer_files("llama3");
  nlohmann::json document = nlohmann::json::parse(files.at("tokenizer.json"));
  TokenId next = Tokenizer(files).tokens_end();
  for (const std::string& token : special) {
    document["added_tokens"].push_back({{"id", next++}, {"content", token}, {"special", true}});
  }
  files["tokenizer.json"] = document.dump();
  return std::make_shared<const Tokenizer>(files);
}

// Those of gpt-oss and of ChatML.
inline const std::vector<std::string> kChatTokens = {"<|start|>",  "<|end|>",  "<|message|>",  "<|channel|>",
                                                     "<|return|>", "<|call|>", "<|im_start|>", "<|im_end|>"};

}  // namespace computron::test
