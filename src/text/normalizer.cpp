#include "src/text/normalizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "computron/base/error.h"
#include "computron/base/printable.h"
#include "computron/base/utf8.h"
#include "src/text/pattern.h"
#include "src/text/precompiled.h"
#include "src/text/unicode.h"

namespace computron {
namespace {

constexpr std::size_t kMaxNormalizedBytes = std::size_t{64} << 20;

class Form : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  std::string apply(std::string text) const override { return normal_form(text, form_); }

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  std::string apply(std::string text) const override { return lowercase(text); }
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string apply(std::string text) const override { return text.empty() ? text : prefix_ + text; }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}

  std::string apply(std::string text) const override {
    std::string out;
    std::size_t done = 0;
    while (const auto found = pattern_.find(text, done)) {
      out.append(text, done, found->begin - done);
      out += content_;
      done = found->end;
      check_normalized_size(out);
    }
    return out.append(text, done);
  }

 private:
  Regex pattern_;
  std::string content_;
};

class StripSpace : public Normalizer {
 public:
  StripSpace(bool left, bool right) : left_(left), right_(right) {}

  std::string apply(std::string text) const override {
    const std::string_view inside = without_outer_space(text);
    if (inside.empty()) return left_ || right_ ? "" : text;
    const std::size_t inside_begin = static_cast<std::size_t>(inside.data() - text.data());
    const std::size_t begin = left_ ? inside_begin : 0;
    const std::size_t end = right_ ? inside_begin + inside.size() : text.size();
    return text.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

class Bert : public Normalizer {
 public:
  struct Options {
    bool clean = true, chinese = true, strip_accents = true, lowercase = true;
  };
  explicit Bert(const Options& options) : options_(options) {}

  std::string apply(std::string text) const override {
    if (options_.clean) text = cleaned(text);
    if (options_.chinese) text = spaced(text);
    if (options_.strip_accents) text = without_accents(normal_form(text, NormalForm::kNfd));
    return options_.lowercase ? lowercase(text) : text;
  }

 private:
  static std::string cleaned(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for_each_character(text, [&out](char32_t c) {
      if (c == 0 || c == 0xFFFD || is_bert_control(c)) return;
      is_bert_space(c) ? out.push_back(' ') : append_character(out, c);
    });
    return out;
  }

  static std::string spaced(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for_each_character(text, [&out](char32_t c) {
      const bool alone = is_chinese(c);
      if (alone) out += ' ';
      append_character(out, c);
      if (alone) out += ' ';
    });
    return out;
  }

  static std::string without_accents(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for_each_character(text, [&out](char32_t c) {
      if (!is_bert_accent(c)) append_character(out, c);
    });
    return out;
  }

  Options options_;
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}

  std::string apply(std::string text) const override {
    for (const auto& step : steps_) {
      text = step->apply(std::move(text));
      check_normalized_size(text);
    }
    return text;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

std::unique_ptr<Normalizer> make_sequence(const JsonAt& list) {
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (std::size_t i = 0; i < list.list_size(kMaxSteps); ++i) {
    if (auto step = make_normalizer(list.item(i))) steps.push_back(std::move(step));
  }
  return std::make_unique<Sequence>(std::move(steps));
}

std::unique_ptr<Normalizer> make_bert(const JsonAt& json) {
  Bert::Options options;
  options.clean = json["clean_text"].boolean_or(true);
  options.chinese = json["handle_chinese_chars"].boolean_or(true);
  options.lowercase = json["lowercase"].boolean_or(true);
  options.strip_accents = json["strip_accents"].boolean_or(options.lowercase);
  return std::make_unique<Bert>(options);
}

}  // namespace

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&out](char32_t c) { append_lowercase(out, c); });
  return out;
}

void check_normalized_size(const std::string& text) {
  if (text.size() <= kMaxNormalizedBytes) return;
  throw RequestError(400, "invalid_request",
                     fmt::format("normalized, the text has more than {} bytes", kMaxNormalizedBytes));
}

std::unique_ptr<Normalizer> make_nfc_normalizer() { return std::make_unique<Form>(NormalForm::kNfc); }

std::unique_ptr<Normalizer> make_bert_normalizer(bool lowercase, bool chinese, bool strip_accents) {
  return std::make_unique<Bert>(
      Bert::Options{.clean = true, .chinese = chinese, .strip_accents = strip_accents, .lowercase = lowercase});
}

std::unique_ptr<Normalizer> make_normalizer(const JsonAt& json) {
  if (json.is_null()) return nullptr;
  const std::string type = json["type"].string();
  if (type == "Sequence") return make_sequence(json["normalizers"]);
  if (type == "NFC") return make_nfc_normalizer();
  if (type == "NFD") return std::make_unique<Form>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<Form>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<Form>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Prepend") return std::make_unique<Prepend>(json["prepend"].string());
  if (type == "Replace") return std::make_unique<Replace>(read_pattern(json["pattern"]), json["content"].string());
  if (type == "Strip") {
    return std::make_unique<StripSpace>(json["strip_left"].boolean_or(true), json["strip_right"].boolean_or(true));
  }
  if (type == "Precompiled") return make_precompiled_normalizer(json);
  if (type == "BertNormalizer") return make_bert(json);
  json["type"].fail(fmt::format("the normalizer '{}' is not supported", printable(type)));
}

}  // namespace computron
