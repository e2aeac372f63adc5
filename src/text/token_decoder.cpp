#include "src/text/token_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/printable.h"
#include "computron/base/utf8.h"
#include "src/text/vocabulary.h"

namespace computron {
namespace {

// `text` with every `from` replaced; `from` is not empty.
std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

template <class Stage>
class CloneableStage : public DecoderStage {
 public:
  std::unique_ptr<DecoderStage> clone() const override {
    return std::make_unique<Stage>(static_cast<const Stage&>(*this));
  }
};

// Characters that spell bytes become those; a token that holds another character is its own bytes. One piece for all.
class ByteLevel : public CloneableStage<ByteLevel> {
 public:
  void take(DecodedPiece piece, DecodedPieces& out) override {
    bytes_ += within_text(std::move(piece.text));
    DecodedPiece whole{"", begun_};
    take_whole_characters(bytes_, whole.text);
    put(std::move(whole), out);
  }
  void end(DecodedPieces& out) override {
    if (!bytes_.empty()) put({std::string(kReplacementCharacter), begun_}, out);
    bytes_.clear();
  }
  bool keeps_something() const override { return !bytes_.empty(); }
  std::string within_text(std::string token) const override {
    std::string bytes;
    return spelled_bytes(token, bytes) ? bytes : token;
  }

 private:
  void put(DecodedPiece piece, DecodedPieces& out) {
    if (piece.text.empty()) return;
    begun_ = true;
    out.push_back(std::move(piece));
  }

  std::string bytes_;
  bool begun_ = false;
};

// A run of tokens like <0x0A> becomes the text that it is, or one U+FFFD for each of them if it is none.
class ByteFallback : public CloneableStage<ByteFallback> {
 public:
  void take(DecodedPiece piece, DecodedPieces& out) override {
    const int byte = byte_of_token(piece.text);
    if (byte >= 0) {
      bytes_ += static_cast<char>(byte);
      return;
    }
    end(out);
    out.push_back(std::move(piece));
  }
  void end(DecodedPieces& out) override {
    if (bytes_.empty()) return;
    if (is_utf8(bytes_)) {
      out.push_back({bytes_});
    } else {
      for (std::size_t i = 0; i < bytes_.size(); ++i) out.push_back({std::string(kReplacementCharacter)});
    }
    bytes_.clear();
  }
  bool keeps_something() const override { return !bytes_.empty(); }
  std::string within_text(std::string token) const override {
    const int byte = byte_of_token(token);
    return byte >= 0 ? std::string(1, static_cast<char>(byte)) : token;
  }

 private:
  std::string bytes_;
};

class Replace : public CloneableStage<Replace> {
 public:
  Replace(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  void take(DecodedPiece piece, DecodedPieces& out) override {
    out.push_back({within_text(std::move(piece.text)), piece.goes_on});
  }
  std::string within_text(std::string token) const override { return replaced(std::move(token), from_, to_); }

 private:
  std::string from_, to_;
};

class Fuse : public CloneableStage<Fuse> {
 public:
  void take(DecodedPiece piece, DecodedPieces& out) override {
    piece.goes_on = std::exchange(begun_, true);
    out.push_back(std::move(piece));
  }

 private:
  bool begun_ = false;
};

// Takes up to `most` of a character off the front of a piece. Pieces that are fused are one, which begins once.
class Strip : public CloneableStage<Strip> {
 public:
  Strip(std::string character, std::size_t most, bool fused)
      : character_(std::move(character)), most_(most), fused_(fused) {}
  void take(DecodedPiece piece, DecodedPieces& out) override {
    if (!piece.goes_on) left_ = most_;
    strip(piece.text, left_);
    if (!piece.text.empty()) left_ = 0;
    out.push_back(std::move(piece));
  }
  std::string within_text(std::string token) const override {
    std::size_t left = fused_ ? 0 : most_;
    strip(token, left);
    return token;
  }

 private:
  void strip(std::string& text, std::size_t& left) const {
    for (; left > 0 && text.starts_with(character_); --left) text.erase(0, character_.size());
  }

  std::string character_;
  std::size_t most_ = 0, left_ = 0;
  bool fused_;
};

// Marks are spaces, those of the first token nothing.
class Metaspace : public CloneableStage<Metaspace> {
 public:
  Metaspace(std::string mark, bool drop_first) : mark_(std::move(mark)), dropping_(drop_first) {}
  void take(DecodedPiece piece, DecodedPieces& out) override {
    out.push_back({replaced(std::move(piece.text), mark_, std::exchange(dropping_, false) ? "" : " ")});
  }
  std::string within_text(std::string token) const override { return replaced(std::move(token), mark_, " "); }

 private:
  std::string mark_;
  bool dropping_;
};

// The English that BERT's tokens were made of, without the spaces that they put into it.
std::string cleaned_up(std::string text) {
  static constexpr std::pair<const char*, const char*> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = replaced(std::move(text), from, to);
  return text;
}

class WordPiece : public CloneableStage<WordPiece> {
 public:
  WordPiece(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void take(DecodedPiece piece, DecodedPieces& out) override {
    const bool within = std::exchange(begun_, true);
    piece.text = within ? within_text(std::move(piece.text)) : cleaned(std::move(piece.text));
    out.push_back(std::move(piece));
  }
  std::string within_text(std::string token) const override {
    return cleaned(token.starts_with(prefix_) ? token.substr(prefix_.size()) : " " + token);
  }

 private:
  std::string cleaned(std::string text) const { return cleanup_ ? cleaned_up(std::move(text)) : text; }

  std::string prefix_;
  bool cleanup_, begun_ = false;
};

class SpaceBetween : public CloneableStage<SpaceBetween> {
 public:
  void take(DecodedPiece piece, DecodedPieces& out) override {
    if (std::exchange(begun_, true)) piece.text.insert(0, 1, ' ');
    out.push_back(std::move(piece));
  }
  std::string within_text(std::string token) const override { return " " + token; }

 private:
  bool begun_ = false;
};

using Stages = std::vector<std::unique_ptr<DecoderStage>>;

template <class Stage>
TokenDecoder decoder_of(Stage stage) {
  Stages stages;
  stages.push_back(std::make_unique<Stage>(std::move(stage)));
  return TokenDecoder(std::move(stages));
}

// What stages may see and how much longer they may make a token.
struct StageLimits {
  bool fused = false;  // what has been fused may be stripped in front; anything else would have to see it whole
  std::size_t growth = 1;
};
constexpr std::size_t kMaxGrowth = 64;

std::unique_ptr<DecoderStage> make_replace(const JsonAt& json, StageLimits& limits) {
  const JsonAt pattern = json["pattern"]["String"];
  if (pattern.string_or("").empty()) json["pattern"].fail("must be a text: nothing else is supported");
  const std::string from = pattern.string(), to = json["content"].string();
  const std::size_t growth = std::max<std::size_t>(1, (to.size() + from.size() - 1) / from.size());
  if (growth > kMaxGrowth || (limits.growth *= growth) > kMaxGrowth) {
    json["content"].fail(fmt::format("makes tokens more than {} times longer", kMaxGrowth));
  }
  return std::make_unique<Replace>(from, to);
}

std::unique_ptr<DecoderStage> make_strip(const JsonAt& json, bool fused) {
  const JsonAt content = json["content"];
  if (count_characters(content.string()) != 1) content.fail("must be one character");
  json["stop"].integer(0, 0);
  return std::make_unique<Strip>(content.string(), static_cast<std::size_t>(json["start"].integer(0, 1 << 20)), fused);
}

std::unique_ptr<DecoderStage> make_metaspace(const JsonAt& json) {
  const JsonAt replacement = json["replacement"];
  if (count_characters(replacement.string()) != 1) replacement.fail("must be one character");
  const bool prefix = json["add_prefix_space"].boolean_or(true);
  return std::make_unique<Metaspace>(replacement.string(),
                                     json["prepend_scheme"].string_or(prefix ? "always" : "never") != "never");
}

void make_stages(const JsonAt& json, Stages& stages, StageLimits& limits) {
  const std::string type = json["type"].string();
  if (type == "Sequence") {
    const JsonAt list = json["decoders"];
    for (std::size_t i = 0; i < list.list_size(kMaxSteps); ++i) make_stages(list.item(i), stages, limits);
    return;
  }
  if (limits.fused && type != "Strip")
    json["type"].fail(fmt::format("'{}' behind Fuse is not supported", printable(type)));
  limits.fused = limits.fused || type == "Fuse" || type == "ByteLevel";
  if (type == "ByteLevel") {
    stages.push_back(std::make_unique<ByteLevel>());
  } else if (type == "ByteFallback") {
    stages.push_back(std::make_unique<ByteFallback>());
  } else if (type == "Fuse") {
    stages.push_back(std::make_unique<Fuse>());
  } else if (type == "Replace") {
    stages.push_back(make_replace(json, limits));
  } else if (type == "Strip") {
    stages.push_back(make_strip(json, limits.fused));
  } else if (type == "Metaspace") {
    stages.push_back(make_metaspace(json));
  } else if (type == "WordPiece") {
    const std::string prefix = json["prefix"].string_or("##");
    stages.push_back(std::make_unique<WordPiece>(prefix, json["cleanup"].boolean_or(true)));
  } else {
    json["type"].fail(fmt::format("the decoder '{}' is not supported", printable(type)));
  }
}

}  // namespace

TokenDecoder::TokenDecoder(const TokenDecoder& other) {
  for (const auto& stage : other.stages_) stages_.push_back(stage->clone());
}

void TokenDecoder::take(std::string_view token, std::string& text) {
  DecodedPieces pieces;
  pieces.push_back({std::string(token)});
  run(0, std::move(pieces), text);
}

void TokenDecoder::end(std::string& text) {
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    DecodedPieces rest;
    stages_[stage]->end(rest);
    run(stage + 1, std::move(rest), text);
  }
}

bool TokenDecoder::keeps_something() const {
  return std::any_of(stages_.begin(), stages_.end(), [](const auto& stage) { return stage->keeps_something(); });
}

std::string TokenDecoder::within_text(std::string token) const {
  for (const auto& stage : stages_) token = stage->within_text(std::move(token));
  return token;
}

void TokenDecoder::run(std::size_t stage, DecodedPieces pieces, std::string& text) {
  for (; stage < stages_.size(); ++stage) {
    DecodedPieces next;
    for (DecodedPiece& piece : pieces) stages_[stage]->take(std::move(piece), next);
    pieces = std::move(next);
  }
  for (const DecodedPiece& piece : pieces) text += piece.text;
}

TokenDecoder make_byte_level_decoder() { return decoder_of(ByteLevel()); }

TokenDecoder make_word_piece_decoder(const std::string& prefix, bool cleanup) {
  return decoder_of(WordPiece(prefix, cleanup));
}

TokenDecoder make_token_decoder(const JsonAt& json) {
  if (json.is_null()) return decoder_of(SpaceBetween());
  Stages stages;
  StageLimits limits;
  make_stages(json, stages, limits);
  return TokenDecoder(std::move(stages));
}

}  // namespace computron
