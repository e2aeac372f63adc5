// The step that turns tokens' texts into text again: tokenizer.json's `decoder`, token by token.
//
// A decoder is a chain of stages. What a stage cannot pass on before it has seen more (bytes of a character that is not
// whole) it keeps. All that comes out is, put together, what the tokenizers' own library makes of all tokens at once.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/json_reader.h"

namespace computron {

// A part of a text on its way through the stages.
struct DecodedPiece {
  std::string text;
  bool goes_on = false;  // it belongs to the same piece as the one before it
};
using DecodedPieces = std::vector<DecodedPiece>;

class DecoderStage {
 public:
  virtual ~DecoderStage() = default;
  virtual std::unique_ptr<DecoderStage> clone() const = 0;
  // Appends what `piece` completes.
  virtual void take(DecodedPiece piece, DecodedPieces& out) = 0;
  // No piece follows: appends what was kept.
  virtual void end(DecodedPieces& out) {}
  virtual bool keeps_something() const { return false; }
  // What becomes of a token that stands alone within a text; its bytes need not be whole characters.
  virtual std::string within_text(std::string token) const { return token; }
};

class TokenDecoder {
 public:
  TokenDecoder() = default;
  explicit TokenDecoder(std::vector<std::unique_ptr<DecoderStage>> stages) : stages_(std::move(stages)) {}
  TokenDecoder(const TokenDecoder& other);
  TokenDecoder& operator=(TokenDecoder&&) = default;
  TokenDecoder(TokenDecoder&&) = default;

  // Appends what the token's text completes, then at the end the rest.
  void take(std::string_view token, std::string& text);
  void end(std::string& text);
  bool keeps_something() const;
  // What the token alone adds within a text: any bytes.
  std::string within_text(std::string token) const;

 private:
  void run(std::size_t stage, DecodedPieces pieces, std::string& text);

  std::vector<std::unique_ptr<DecoderStage>> stages_;
};

TokenDecoder make_byte_level_decoder();
TokenDecoder make_word_piece_decoder(const std::string& prefix, bool cleanup);
// Of null: tokens with spaces between them. CheckpointError naming what is not supported.
TokenDecoder make_token_decoder(const JsonAt& json);

}  // namespace computron
