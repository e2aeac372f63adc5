// The step that makes a text uniform before it is cut: tokenizer.json's `normalizer`.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "src/text/json_reader.h"

namespace computron {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Of well-formed UTF-8, which it returns. Thread-safe.
  virtual std::string apply(std::string text) const = 0;
};

// Qwen2's and BERT's, for vocabularies without a tokenizer.json.
std::unique_ptr<Normalizer> make_nfc_normalizer();
std::unique_ptr<Normalizer> make_bert_normalizer(bool lowercase, bool chinese, bool strip_accents);

// Character by character, as the normalizer of that name does it.
std::string lowercase(std::string_view text);

// RequestError beyond the limit: what is put in may be longer than what it replaces, again and again.
void check_normalized_size(const std::string& text);

// Null for null. CheckpointError naming what is not supported.
std::unique_ptr<Normalizer> make_normalizer(const JsonAt& json);

}  // namespace computron
