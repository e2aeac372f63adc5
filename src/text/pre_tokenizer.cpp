#include "src/text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "computron/base/printable.h"
#include "computron/base/utf8.h"
#include "src/text/pattern.h"
#include "src/text/unicode.h"

namespace computron {
namespace {

constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A part of a word that matches or lies between matches.
struct Part {
  TextRange range;
  bool match = false;
};

// A match joins the part before it, unless that is a match itself.
void merge_with_previous(std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool after_match = false;
  for (const Part& part : parts) {
    if (part.match && !after_match && !merged.empty()) {
      merged.back().range.end = part.range.end;
    } else {
      merged.push_back(part);
    }
    after_match = part.match;
  }
  parts = std::move(merged);
}

// The same from behind.
void merge_with_next(std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool before_match = false;
  for (std::size_t i = parts.size(); i-- > 0;) {
    const Part& part = parts[i];
    if (part.match && !before_match && !merged.empty()) {
      merged.back().range.begin = part.range.begin;
    } else {
      merged.push_back(part);
    }
    before_match = part.match;
  }
  parts.assign(merged.rbegin(), merged.rend());
}

void merge_alike(std::vector<Part>& parts) {
  std::vector<Part> merged;
  for (const Part& part : parts) {
    if (!merged.empty() && merged.back().match == part.match) {
      merged.back().range.end = part.range.end;
    } else {
      merged.push_back(part);
    }
  }
  parts = std::move(merged);
}

void arrange(std::vector<Part>& parts, Behavior behavior) {
  switch (behavior) {
    case Behavior::kIsolated:
      return;
    case Behavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.match; });
      return;
    case Behavior::kMergedWithPrevious:
      return merge_with_previous(parts);
    case Behavior::kMergedWithNext:
      return merge_with_next(parts);
    case Behavior::kContiguous:
      return merge_alike(parts);
  }
}

// Cuts each word into the parts that `parts_of(text, word, parts)` finds in it.
template <class PartsOf>
void cut_words(Words& words, Behavior behavior, PartsOf&& parts_of) {
  std::vector<TextRange> ranges;
  ranges.reserve(words.text.size() / 4);
  std::vector<Part> parts;
  const std::size_t start = words.ranges.empty() ? 0 : words.ranges.front().begin;
  for (const TextRange& word : words.ranges) {
    parts.clear();
    parts_of(words.text, word, parts);
    arrange(parts, behavior);
    for (const Part& part : parts) {
      if (part.range.size() > 0) ranges.push_back(part.range);
    }
  }
  words.at_start = words.at_start && !ranges.empty() && ranges.front().begin == start;
  words.ranges = std::move(ranges);
}

class Split : public PreTokenizer {
 public:
  Split(Regex pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void cut(Words& words) const override {
    cut_words(words, behavior_, [this](const std::string& text, const TextRange& word, std::vector<Part>& parts) {
      const std::string_view view(text.data() + word.begin, word.size());
      std::size_t done = 0;
      while (done < view.size()) {
        const auto found = pattern_.find(view, done);
        const TextRange match = found.value_or(TextRange{view.size(), view.size()});
        if (done < match.begin) parts.push_back({{word.begin + done, word.begin + match.begin}, invert_});
        if (match.size() > 0) parts.push_back({{word.begin + match.begin, word.begin + match.end}, !invert_});
        done = match.end;
      }
    });
  }

 private:
  Regex pattern_;
  Behavior behavior_;
  bool invert_;
};

// Cuts around single characters of a kind.
class CharacterSplit : public PreTokenizer {
 public:
  CharacterSplit(bool (*is_kind)(char32_t), Behavior behavior) : is_kind_(is_kind), behavior_(behavior) {}

  void cut(Words& words) const override {
    cut_words(words, behavior_, [this](const std::string& text, const TextRange& word, std::vector<Part>& parts) {
      for (std::size_t at = word.begin; at < word.end;) {
        const std::size_t begin = at;
        const bool match = is_kind_(next_character(text, at));
        const bool goes_on = !match && !parts.empty() && !parts.back().match;
        if (!goes_on) parts.push_back({{begin, at}, match});
        parts.back().range.end = at;
      }
    });
  }

 private:
  bool (*is_kind_)(char32_t);
  Behavior behavior_;
};

// Writes the words anew, each as rewrite(word, is_first) says.
template <class Rewrite>
void rewrite_words(Words& words, Rewrite&& rewrite) {
  Words changed;
  changed.at_start = words.at_start;
  for (std::size_t i = 0; i < words.ranges.size(); ++i) {
    const std::size_t begin = changed.text.size();
    const TextRange& word = words.ranges[i];
    rewrite(std::string_view(words.text).substr(word.begin, word.size()), i == 0 && words.at_start, changed.text);
    changed.ranges.push_back({begin, changed.text.size()});
  }
  words = std::move(changed);
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space) {
    if (use_regex) split_.emplace(Regex::of_pattern(kGpt2Pattern), Behavior::kIsolated, /*invert=*/false);
  }

  void cut(Words& words) const override {
    if (add_prefix_space_) {
      rewrite_words(words, [](std::string_view word, bool, std::string& out) {
        if (!word.starts_with(' ')) out += ' ';
        out += word;
      });
    }
    if (split_) split_->cut(words);
  }
  bool spells_bytes() const override { return true; }

 private:
  bool add_prefix_space_;
  std::optional<Split> split_;
};

enum class PrependScheme { kAlways, kFirst, kNever };

class Metaspace : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme) {
    if (split) split_.emplace(Regex::of_literal(replacement_), Behavior::kMergedWithNext, /*invert=*/false);
  }

  void cut(Words& words) const override {
    rewrite_words(words, [this](std::string_view word, bool first, std::string& out) {
      const bool has_prefix = word.starts_with(' ') || word.starts_with(replacement_);
      const bool prepend = scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && first);
      if (prepend && !has_prefix) out += replacement_;
      for (const char c : word) c == ' ' ? out += replacement_ : out += c;
    });
    if (split_) split_->cut(words);
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  std::optional<Split> split_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}
  void cut(Words& words) const override {
    for (const auto& step : steps_) step->cut(words);
  }
  bool spells_bytes() const override { return !steps_.empty() && steps_.back()->spells_bytes(); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

// Bytes become letters last: whatever came after them would see other characters than the text's.
std::unique_ptr<PreTokenizer> make_sequence(const JsonAt& list) {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  for (std::size_t i = 0; i < list.list_size(kMaxSteps); ++i) {
    if (!steps.empty() && steps.back()->spells_bytes()) list.item(i).fail("a step after ByteLevel is not supported");
    if (auto step = make_pre_tokenizer(list.item(i))) steps.push_back(std::move(step));
  }
  return std::make_unique<Sequence>(std::move(steps));
}

Behavior read_behavior(const JsonAt& json) {
  const std::string name = json.string();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  json.fail(fmt::format("the behavior '{}' is not supported", printable(name)));
}

// Older files have add_prefix_space instead of a scheme.
PrependScheme read_scheme(const JsonAt& json) {
  const bool prefix = json["add_prefix_space"].boolean_or(true);
  const std::string name = json["prepend_scheme"].string_or(prefix ? "always" : "never");
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  json["prepend_scheme"].fail(fmt::format("the scheme '{}' is not supported", printable(name)));
}

std::unique_ptr<PreTokenizer> make_metaspace(const JsonAt& json) {
  const JsonAt replacement = json["replacement"];
  if (count_characters(replacement.string()) != 1) replacement.fail("must be one character");
  return std::make_unique<Metaspace>(replacement.string(), read_scheme(json), json["split"].boolean_or(true));
}

}  // namespace

std::unique_ptr<PreTokenizer> make_byte_level_pre_tokenizer(bool add_prefix_space) {
  return std::make_unique<ByteLevel>(add_prefix_space, /*use_regex=*/true);
}

std::unique_ptr<PreTokenizer> make_qwen2_pre_tokenizer(bool add_prefix_space) {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  steps.push_back(std::make_unique<Split>(Regex::of_pattern(kQwen2Pattern), Behavior::kIsolated, /*invert=*/false));
  steps.push_back(std::make_unique<ByteLevel>(add_prefix_space, /*use_regex=*/false));
  return std::make_unique<Sequence>(std::move(steps));
}

std::unique_ptr<PreTokenizer> make_bert_pre_tokenizer() {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  steps.push_back(std::make_unique<CharacterSplit>(&is_white_space, Behavior::kRemoved));
  steps.push_back(std::make_unique<CharacterSplit>(&is_bert_punctuation, Behavior::kIsolated));
  return std::make_unique<Sequence>(std::move(steps));
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonAt& json) {
  if (json.is_null()) return nullptr;
  const std::string type = json["type"].string();
  if (type == "Sequence") return make_sequence(json["pretokenizers"]);
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(json["add_prefix_space"].boolean(), json["use_regex"].boolean_or(true));
  }
  if (type == "Split") {
    return std::make_unique<Split>(read_pattern(json["pattern"]), read_behavior(json["behavior"]),
                                   json["invert"].boolean_or(false));
  }
  if (type == "Digits") {
    const bool single = json["individual_digits"].boolean_or(false);
    return std::make_unique<CharacterSplit>(&is_numeric, single ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (type == "Metaspace") return make_metaspace(json);
  if (type == "BertPreTokenizer") return make_bert_pre_tokenizer();
  if (type == "WhitespaceSplit") return std::make_unique<CharacterSplit>(&is_white_space, Behavior::kRemoved);
  if (type == "Punctuation") {
    const JsonAt behavior = json["behavior"];
    return std::make_unique<CharacterSplit>(&is_bert_punctuation,
                                            behavior.is_null() ? Behavior::kIsolated : read_behavior(behavior));
  }
  json["type"].fail(fmt::format("the pre-tokenizer '{}' is not supported", printable(type)));
}

}  // namespace computron
