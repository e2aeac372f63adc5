// A model's tokenizer: text to tokens and back, exactly as the tokenizers library of Hugging Face does it.
//
//   text → added tokens cut out → normalizer → pre-tokenizer: words → model: tokens → special tokens around them
//   tokens → texts of tokens → decoder: text
//
// Made of the files that a checkpoint carries: tokenizer.json; or vocab.json and merges.txt (GPT-2, OPT, RoBERTa,
// Qwen2); or vocab.txt (BERT, DistilBERT). tokenizer_config.json says which class of transformers they are for, and
// with special_tokens_map.json and added_tokens.json what the others leave open. The files come from anywhere: sizes,
// depths and counts are bounded, and what a file asks that is not done here is refused by name.
//
// Around a text stands what tokenizer.json's post-processor puts there. The settings add_bos_token and add_eos_token
// count instead where it puts nothing there, and in the classes that go by them in transformers 4 (LlamaTokenizer,
// CodeLlamaTokenizer, GemmaTokenizer, CohereTokenizer, GPTNeoXTokenizer): models are trained with what these put there.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computron/base/types.h"

namespace computron {

using TokenizerFiles = std::map<std::string, std::string>;  // contents by name

inline constexpr std::size_t kMaxTokenizerFileBytes = std::size_t{64} << 20;

// Tokens with their segments: 0 the first text's, 1 the second's.
struct EncodedPair {
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> token_type_ids;
};

// How a text becomes tokens.
struct EncodeOptions {
  bool special_tokens = true;  // are put around it where the tokenizer's files say so
  bool lower_case = false;     // the text is put into lower case first, but for added tokens in it
  std::size_t most = std::numeric_limits<std::size_t>::max();  // tokens, special ones included; what is longer is cut
  bool keep_end = false;                                       // its beginning is cut off, and not its end
};

// Immutable, so any number of threads may share one; each encodes with an Encoder of its own.
class Tokenizer {
 public:
  // CheckpointError naming file and place of what is damaged or not supported, or that there is none of those files.
  // `model_type` is config.json's: it tells the class of a vocabulary where tokenizer_config.json does not.
  explicit Tokenizer(const TokenizerFiles& files, std::string_view model_type = {});
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The text of all tokens, special ones left out; numbers that are no token's count for nothing.
  std::string decode(std::span<const TokenId> tokens) const;
  // What the token alone adds within a text: any bytes, for a token may be a part of a character. Of a special token
  // its name.
  std::string token_bytes(TokenId token) const;
  // By its text as the file spells it.
  std::optional<TokenId> token_id(std::string_view text) const;
  // Added tokens only: what stands in a text and is cut out of it.
  bool has_added_token(std::string_view text) const;
  bool is_special(TokenId token) const;
  // One more than the largest token.
  TokenId tokens_end() const;

  // The chat template that came with it, in Jinja; empty if none did.
  const std::string& chat_template() const;
  // The tokens that begin and end texts, as the files name them; empty if they do not.
  const std::string& bos_token() const;
  const std::string& eos_token() const;
  // Where it does what one version of transformers does and another does not: a line each.
  const std::vector<std::string>& warnings() const;

  struct Parts;  // src/text

 private:
  friend class Encoder;
  friend class IncrementalDecoder;
  friend std::span<const TokenId> decoding_context(const Tokenizer&, std::span<const TokenId>);
  std::unique_ptr<const Parts> parts_;
};

class Encoder {
 public:
  // Borrows the tokenizer.
  explicit Encoder(const Tokenizer& tokenizer);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  // RequestError{invalid_utf8} if it is not UTF-8, {invalid_request} if it takes too long to cut into words,
  // {invalid_parameter} if `most` leaves nothing beside the special tokens.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {});
  std::vector<TokenId> encode(std::string_view text, bool special_tokens) {
    return encode(text, EncodeOptions{.special_tokens = special_tokens});
  }
  // With special tokens, whatever the options say. Of a pair that is too long the longer text is cut, down to the
  // shorter one's length, then both: the library's `longest_first`.
  EncodedPair encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options = {});
  // The same of two texts' own tokens, which encode() gives without special tokens: for a text that is in many pairs.
  EncodedPair encode_pair(std::span<const TokenId> first, std::span<const TokenId> second,
                          const EncodeOptions& options = {}) const;

 private:
  struct Scratch;
  void encode_plain(std::string_view text, bool lower_case, std::vector<TokenId>& out);
  void encode_words(std::string_view text, bool at_start, std::vector<TokenId>& out);

  const Tokenizer* tokenizer_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace computron
