// Texts, pairs of texts and token ids as the inputs of an encoder or embedder: with the checkpoint's prompts before
// them, and cut where they are too long.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computron/requests/model_list.h"
#include "computron/requests/request_reader.h"
#include "src/requests/request_fields.h"

namespace computron {

// All errors are RequestErrors that name the field, `path` where there is one.
class EncoderTexts {
 public:
  // Reads truncate_prompt_tokens and truncation_side. Borrows all three.
  EncoderTexts(const JsonFields& body, const ServedModel& model, std::optional<Encoder>& encoder);

  // What stands before each text: as body.input_type or body.prompt_name say, or the checkpoint's own choice.
  const std::string& asked_prompt() const;
  // Before texts of a kind (query, document), by any of the names that checkpoints have for it; where this one has
  // none, its own choice.
  const std::string& prompt_of(std::string_view kind) const;

  Request text(const std::string& prompt, std::string_view text, const std::string& path) const;
  // As the tokenizer puts them together, with segments where the model has several.
  Request pair(std::string_view first, std::string_view second, const std::string& path) const;
  // The same with a first text that is in many pairs, by its plain().
  Request pair(std::span<const TokenId> first, std::string_view second, const std::string& path) const;
  // A text's own tokens, uncut, without special ones.
  std::vector<TokenId> plain(std::string_view text, const std::string& path) const;
  // Token ids are cut only where the request says so. `list` holds integers alone, and so does one of segments.
  Request tokens(const JsonValue& list, const std::string& path) const;
  // Of as many token ids as `list` has segments. They are cut like the ids.
  std::vector<std::int32_t> segments(const JsonValue& list, const std::string& path) const;

  const ServedModel& model() const { return model_; }

 private:
  // What stays of a list of token ids.
  struct Part {
    std::size_t begin = 0, count = 0;
  };

  void read_length();
  Part part_of(std::size_t tokens) const;
  void check_length(std::size_t tokens, const std::string& path) const;
  const std::string& prompt_named(std::string_view field, std::string_view name, bool kinds) const;
  void refuse_padding(const std::vector<TokenId>& tokens, const std::string& path) const;
  Request request_of(std::vector<TokenId> tokens, const std::string& path) const;
  template <class F>
  auto encoded(const std::string& path, F&& encode) const;

  const JsonFields& body_;
  const ServedModel& model_;
  std::optional<Encoder>& encoder_;
  EncodeOptions options_;
  bool cuts_tokens_ = false;
};

}  // namespace computron
