#include "computron/guided/guide_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "computron/base/json.h"
#include "computron/guided/guide.h"
#include "src/guided/json_schema.h"
#include "src/guided/refusal.h"
#include "src/guided/regex.h"

namespace computron {
namespace {

using Json = nlohmann::ordered_json;

enum class Kind : char { kRegex = 'r', kChoice = 'c', kSchema = 's', kObject = 'o' };

constexpr int kMostLevels = 64;
constexpr std::size_t kMostValues = 100'000;  // keys and ends of lists and objects count, too
constexpr std::size_t kMostBytes = std::size_t{256} << 10;
constexpr std::size_t kMostKeys = 4096;  // of one object

// What a document asks for, before it is made: one that keeps its order looks through all keys of an object for each
// one more.
class ShapeCheck : public JsonEvents {
 public:
  ShapeCheck(int most_levels, std::size_t most_values) : most_levels_(most_levels), most_values_(most_values) {}

  void null() override { count(); }
  void boolean(bool) override { count(); }
  void negative(std::int64_t) override { count(); }
  void integer(std::uint64_t) override { count(); }
  void number(double) override { count(); }
  void string(std::string&) override { count(); }
  void begin_object() override { open(); }
  void end_object() override { close(); }
  void begin_list() override { open(); }
  void end_list() override { close(); }
  void key(std::string&) override {
    count();
    if (++keys_.back() > kMostKeys) refuse_guide(fmt::format("an object of more than {} keys", kMostKeys));
  }

 private:
  void count() {
    if (std::ssize(keys_) > most_levels_) refuse_guide(fmt::format("nested deeper than {} levels", most_levels_));
    if (++values_ > most_values_) refuse_guide(fmt::format("more than {} values", most_values_));
  }
  void open() {
    count();
    keys_.push_back(0);
  }
  void close() {
    keys_.pop_back();
    count();
  }

  const int most_levels_;
  const std::size_t most_values_;
  std::size_t values_ = 0;
  std::vector<std::size_t> keys_;  // of the objects and lists that are open
};

std::string guide_of(Kind kind, std::string_view text) {
  std::string guide(1, static_cast<char>(kind));
  return guide += text;
}

Json read(std::string_view text) {
  ShapeCheck shape(kMostLevels, kMostValues);
  Json value;
  auto fault = read_json(text, shape);
  if (!fault) fault = parse_json(text, {}, value);
  if (fault) refuse_guide(fmt::format("no JSON (at byte {})", fault->position));
  return value;
}

GrammarRuleId add_choice(GrammarBuilder& grammar, const Json& list) {
  if (!list.is_array() || list.empty()) refuse_guide("must be a list of texts, and not empty");
  std::vector<std::string_view> texts;
  for (const Json& text : list) {
    if (!text.is_string()) refuse_guide("must be a list of texts");
    texts.push_back(text.get_ref<const std::string&>());
  }
  const GrammarRuleId rule = grammar.add_rule();
  grammar.accept(grammar.one_of(grammar.first_node(rule), texts));
  return rule;
}

GrammarRuleId add_whole_regex(GrammarBuilder& grammar, std::string_view pattern) {
  const GrammarRuleId rule = grammar.add_rule();
  grammar.accept(add_regex(grammar, grammar.first_node(rule), pattern, RegexUse::kWhole));
  return rule;
}

GrammarRuleId add_guide(GrammarBuilder& grammar, std::string_view guide) {
  ensure(!guide.empty(), "a guide lacks its kind");
  const std::string_view text = guide.substr(1);
  if (text.size() > kMostBytes) refuse_guide(fmt::format("longer than {} bytes", kMostBytes));
  switch (static_cast<Kind>(guide.front())) {
    case Kind::kRegex:
      return add_whole_regex(grammar, text);
    case Kind::kChoice:
      return add_choice(grammar, read(text));
    case Kind::kSchema:
      return add_schema(grammar, read(text));
    case Kind::kObject:
      return add_any_object(grammar);
  }
  throw Error(ExitCode::kInternal, "internal: unknown kind of guide");
}

}  // namespace

void check_keys(std::string_view json) {
  ShapeCheck shape(std::numeric_limits<int>::max(), std::numeric_limits<std::size_t>::max());
  if (read_json(json, shape)) refuse_guide("no JSON");
}

std::string regex_guide(std::string_view pattern) { return guide_of(Kind::kRegex, pattern); }
std::string choice_guide(std::string_view list) { return guide_of(Kind::kChoice, list); }
std::string schema_guide(std::string_view schema) { return guide_of(Kind::kSchema, schema); }
std::string object_guide() { return guide_of(Kind::kObject, {}); }

std::shared_ptr<const std::string> GuideChecker::checked(std::string guide) {
  auto found = std::ranges::find_if(outcomes_, [&](const Outcome& outcome) { return *outcome.text == guide; });
  if (found == outcomes_.end()) {
    Outcome outcome{std::make_shared<const std::string>(std::move(guide)), {}};
    try {
      grammar_ = compile_guide(*outcome.text);
    } catch (const RequestError& error) {
      outcome.fault = error.what();
    }
    if (outcomes_.size() == kKept) outcomes_.pop_back();
    found = outcomes_.insert(outcomes_.end(), std::move(outcome));
  } else {
    grammar_.reset();
  }
  std::rotate(outcomes_.begin(), found, found + 1);
  const Outcome& outcome = outcomes_.front();
  if (!outcome.fault.empty()) refuse_guide(outcome.fault);
  return outcome.text;
}

bool GuideChecker::can_begin(const GuideVocabulary& vocabulary, std::span<const TokenId> ends) {
  Outcome& outcome = outcomes_.front();
  std::erase_if(outcome.beginnings, [&](const Beginning& known) {
    return known.model == vocabulary.model && std::ranges::find(ends, known.token) != ends.end();
  });
  auto known = std::ranges::find(outcome.beginnings, vocabulary.model, &Beginning::model);
  if (known != outcome.beginnings.end()) return known->token != kNone;
  if (!grammar_) grammar_ = compile_guide(*outcome.text);
  const TokenId token = find_beginning(std::exchange(grammar_, nullptr), vocabulary, ends);
  if (token == kNone) return false;  // of other ends, it may be otherwise
  outcome.beginnings.push_back({vocabulary.model, token});
  return true;
}

// Most vocabularies have each byte as a token, and those first.
TokenId GuideChecker::find_beginning(const std::shared_ptr<const Grammar>& grammar, const GuideVocabulary& vocabulary,
                                     std::span<const TokenId> ends) {
  Matcher matcher(grammar);
  if (matcher.start() == Matcher::kDead) return kNone;
  if (matcher.accepts(matcher.start())) return kUndecided;
  std::size_t work = 0;
  for (TokenId token = 0; token < vocabulary.tokens; ++token) {
    const std::string text = vocabulary.text(token);
    if (text.empty() || text.size() > TokenTrie::kLongest || std::ranges::find(ends, token) != ends.end()) continue;
    Matcher::State state = matcher.start();
    for (const char c : text) {
      const auto byte = static_cast<std::uint8_t>(c);
      const Matcher::State from = state;
      state = matcher.next(from, byte);
      work += matcher.cost(from, byte);
      if (state == Matcher::kDead) break;
    }
    if (state != Matcher::kDead) return token;
    if (work > TokenTrie::kMaxWork) return kUndecided;
    if (matcher.kept_bytes() > GuideLimits().matcher_bytes) matcher.keep_only({});
  }
  return kNone;
}

std::shared_ptr<const Grammar> compile_guide(std::string_view guide) {
  GrammarBuilder builder;
  const GrammarRuleId start = add_guide(builder, guide);
  return std::make_shared<const Grammar>(builder.take(start));
}

}  // namespace computron
