// The step that cuts a normalized text into words, which are encoded one by one: tokenizer.json's `pre_tokenizer`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/text/json_reader.h"
#include "src/text/regex.h"

namespace computron {

// A text and its words, in order; what is in no word is dropped.
struct Words {
  std::string text;
  std::vector<TextRange> ranges;  // none is empty
  // The first range begins where the text that a person gave begins.
  bool at_start = false;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts every word further. Thread-safe.
  virtual void cut(Words& words) const = 0;
  // The model's letters are the bytes of the words, in GPT-2's spelling of bytes as characters.
  virtual bool spells_bytes() const { return false; }
};

std::unique_ptr<PreTokenizer> make_byte_level_pre_tokenizer(bool add_prefix_space);
std::unique_ptr<PreTokenizer> make_qwen2_pre_tokenizer(bool add_prefix_space);
std::unique_ptr<PreTokenizer> make_bert_pre_tokenizer();

// Null for null. CheckpointError naming what is not supported.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonAt& json);

}  // namespace computron
