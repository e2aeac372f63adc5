#include "computron/guided/guide_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "computron/base/json.h"
#include "src/guided/json_schema.h"
#include "src/guided/refusal.h"
#include "src/guided/regex.h"

namespace computron {
namespace {

using Json = nlohmann::ordered_json;

enum class Kind : char { kRegex = 'r', kChoice = 'c', kSchema = 's', kObject = 'o' };

constexpr JsonLimits kLimits{.depth = 64, .values = 100'000};
constexpr std::size_t kMostBytes = std::size_t{256} << 10;

std::string guide_of(Kind kind, std::string_view text) {
  std::string guide(1, static_cast<char>(kind));
  return guide += text;
}

Json read(std::string_view text) {
  Json value;
  const auto fault = parse_json(text, kLimits, value);
  if (!fault) return value;
  if (fault->kind == JsonFault::Kind::kTooDeep)
    refuse_guide(fmt::format("nested deeper than {} levels", kLimits.depth));
  if (fault->kind == JsonFault::Kind::kTooManyValues) refuse_guide(fmt::format("more than {} values", kLimits.values));
  refuse_guide(fmt::format("no JSON (at byte {})", fault->position));
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

std::string regex_guide(std::string_view pattern) { return guide_of(Kind::kRegex, pattern); }
std::string choice_guide(std::string_view list) { return guide_of(Kind::kChoice, list); }
std::string schema_guide(std::string_view schema) { return guide_of(Kind::kSchema, schema); }
std::string object_guide() { return guide_of(Kind::kObject, {}); }

std::shared_ptr<const std::string> GuideChecker::checked(std::string guide) {
  auto found = std::ranges::find_if(outcomes_, [&](const Outcome& outcome) { return *outcome.text == guide; });
  if (found == outcomes_.end()) {
    Outcome outcome{std::make_shared<const std::string>(std::move(guide)), {}};
    try {
      compile_guide(*outcome.text);
    } catch (const RequestError& error) {
      outcome.fault = error.what();
    }
    if (outcomes_.size() == kKept) outcomes_.pop_back();
    found = outcomes_.insert(outcomes_.end(), std::move(outcome));
  }
  std::rotate(outcomes_.begin(), found, found + 1);
  const Outcome& outcome = outcomes_.front();
  if (!outcome.fault.empty()) refuse_guide(outcome.fault);
  return outcome.text;
}

std::shared_ptr<const Grammar> compile_guide(std::string_view guide) {
  GrammarBuilder builder;
  const GrammarRuleId start = add_guide(builder, guide);
  return std::make_shared<const Grammar>(builder.take(start));
}

}  // namespace computron
