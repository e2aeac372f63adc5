// What a Tokenizer is made of, and how its files become that.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "computron/text/tokenizer.h"
#include "src/text/added_tokens.h"
#include "src/text/normalizer.h"
#include "src/text/post_processor.h"
#include "src/text/pre_tokenizer.h"
#include "src/text/token_decoder.h"
#include "src/text/token_model.h"
#include "src/text/vocabulary.h"

namespace computron {

struct Tokenizer::Parts {
  Vocabulary vocabulary;
  std::unordered_map<TokenId, AddedToken> added_by_id;
  TokensByText added_ids;
  AddedTokens added;
  std::unique_ptr<Normalizer> normalizer;       // or null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // or null
  std::unique_ptr<TokenModel> model;
  PostProcessor post_processor;
  TokenDecoder decoder;
  std::string chat_template, bos_token, eos_token;
  std::vector<std::string> warnings;

  // Null if no token has the number.
  const std::string* text_of(TokenId token) const;
  // One whose text is not its content, being normalized, does not count as special: so does the library whose results
  // these are to be.
  bool is_special(TokenId token) const;
};

struct TokenizerSettings;

// Throw CheckpointError as the Tokenizer's constructor.
void read_tokenizer_json(const std::string& text, const TokenizerSettings& settings, Tokenizer::Parts& parts);
void read_bpe_files(const TokenizerFiles& files, const TokenizerSettings& settings, Tokenizer::Parts& parts);
void read_word_piece_files(const TokenizerFiles& files, const TokenizerSettings& settings, Tokenizer::Parts& parts);

// What they share. Into parts.added and its indices, those that are empty left out.
void take_added_tokens(std::vector<AddedToken> tokens, Tokenizer::Parts& parts);
// What the settings put around a text.
PostProcessor simple_post_processor(const TokenizerSettings& settings, const Tokenizer::Parts& parts);

}  // namespace computron
