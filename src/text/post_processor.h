// The step that puts special tokens around a text's: tokenizer.json's `post_processor`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "computron/base/types.h"
#include "src/text/json_reader.h"

namespace computron {

// A part of a result: the first text's tokens, the second's, or tokens of the template.
struct TemplatePart {
  enum Kind : std::uint8_t { kFirst, kSecond, kTokens };
  Kind kind = kFirst;
  std::vector<TokenId> tokens = {};
  std::int32_t type = 0;  // segment
  bool operator==(const TemplatePart&) const = default;
};

struct PostProcessor {
  std::vector<TemplatePart> single = {{TemplatePart::kFirst}};
  std::vector<TemplatePart> pair = {{TemplatePart::kFirst}, {.kind = TemplatePart::kSecond, .type = 1}};
  bool operator==(const PostProcessor&) const = default;
};

// begin A end; of a pair begin A end B end (BERT) or begin A end end B end (RoBERTa).
PostProcessor make_bert_post_processor(TokenId begin, TokenId end);
PostProcessor make_roberta_post_processor(TokenId begin, TokenId end);
// One around each text, where they are wanted.
PostProcessor make_simple_post_processor(std::optional<TokenId> begin, std::optional<TokenId> end);

// Nothing for null. CheckpointError naming what is not supported.
std::optional<PostProcessor> read_post_processor(const JsonAt& json);

}  // namespace computron
