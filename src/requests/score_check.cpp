#include "src/requests/score_check.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "src/requests/encoder_check.h"
#include "src/requests/encoder_texts.h"

namespace computron {
namespace {

using Kind = JsonValue::Kind;

// The two fields of the texts that are scored; vLLM knows all of these names.
constexpr std::pair<std::string_view, std::string_view> kPairNames[] = {
    {"text_1", "text_2"}, {"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}};

// Texts of a field of the body.
struct Texts {
  std::vector<std::string> items = {};
  std::string path = {};
  bool is_list = false;

  // Of one of them, for messages.
  std::string path_of(std::size_t index) const { return is_list ? fmt::format("{}[{}]", path, index) : path; }
};

std::vector<std::string> document_texts(const std::vector<JsonFields>& documents) {
  std::vector<std::string> texts;
  for (const JsonFields& fields : documents) {
    texts.push_back(required_string(fields, fmt::format("body.documents[{}].", texts.size()), "text"));
  }
  return texts;
}

// A text, a list of texts, or, of documents, a list of objects with a text each.
Texts texts_of(const RequestDraft& draft, std::string_view name) {
  const JsonValue& value = field(draft.body, name);
  Texts texts{.path = fmt::format("body.{}", name), .is_list = value.kind == Kind::kList};
  if (value.kind == Kind::kNull) invalid_request(texts.path + ": missing");
  if (value.kind == Kind::kString) {
    texts.items = {value.text};
    return texts;
  }
  if (!texts.is_list || value.count == 0) {
    invalid_request(fmt::format("{}: must be a text or a list of at least one text (got {})", texts.path,
                                texts.is_list ? "an empty list" : describe(value)));
  }
  if (value.count > kMaxInputs) {
    invalid_parameter(fmt::format("{}: at most {} texts a request (got {})", texts.path, kMaxInputs, value.count));
  }
  const bool objects = name == "documents" && value.strings.empty() && draft.documents.size() == value.count;
  texts.items = objects ? document_texts(draft.documents) : value.strings;
  if (texts.items.size() != value.count) invalid_request(texts.path + ": not all its items are texts");
  return texts;
}

std::pair<std::string_view, std::string_view> names_in(const JsonFields& body) {
  for (const auto& [first, second] : kPairNames) {
    if (field(body, first).kind != Kind::kNull && field(body, second).kind != Kind::kNull) return {first, second};
  }
  return kPairNames[0];  // whose absence is found by texts_of()
}

// A part each. Each first text is encoded once: the one of all pairs may be long, and the pairs many.
RequestParts cross_pairs(const EncoderTexts& texts, const Texts& first, const Texts& second) {
  RequestParts parts;
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < second.items.size(); ++i) {
    if (i < first.items.size()) tokens = texts.plain(first.items[i], first.path_of(i));
    parts.push_back(texts.pair(tokens, second.items[i], second.path_of(i)));
  }
  return parts;
}

void add_texts(const EncoderTexts& encoder, const std::string& prompt, const Texts& texts, RequestParts& parts) {
  for (std::size_t i = 0; i < texts.items.size(); ++i) {
    parts.push_back(encoder.text(prompt, texts.items[i], texts.path_of(i)));
  }
}

// Of each text of `second` with the one, or the one of the same place, of `first`. Prompts are those of embedders.
RequestParts pairs_of(const EncoderTexts& texts, const std::pair<std::string, std::string>& prompts, const Texts& first,
                      const Texts& second, PooledOutput& pooled) {
  if (texts.model().config.classes > 0) return cross_pairs(texts, first, second);
  pooled.firsts = first.items.size();
  RequestParts parts;
  add_texts(texts, prompts.first, first, parts);
  add_texts(texts, prompts.second, second, parts);
  return parts;
}

}  // namespace

RequestParts score_requests(const RequestDraft& draft, const ServedModel& model, std::optional<Encoder>& encoder,
                            PooledOutput& pooled) {
  const auto names = names_in(draft.body);
  const Texts first = texts_of(draft, names.first), second = texts_of(draft, names.second);
  if (first.items.size() != 1 && first.items.size() != second.items.size()) {
    invalid_request(fmt::format("{}: must be one text, or as many as {} has, {} (got {})", first.path, second.path,
                                second.items.size(), first.items.size()));
  }
  pooled.form = PooledOutput::kScores;
  pooled.activation = wants_activation(draft.body);
  if (model.config.classes > 0) refuse_prompts(draft.body, "the pairs of a cross-encoder");
  const EncoderTexts texts(draft.body, model, encoder);
  const std::string& prompt = texts.asked_prompt();
  return pairs_of(texts, {prompt, prompt}, first, second, pooled);
}

RequestParts ranking_requests(const RequestDraft& draft, const ServedModel& model, std::optional<Encoder>& encoder,
                              PooledOutput& pooled) {
  const OptionalFields body(draft.body);
  const Texts query{.items = {required_string(draft.body, "body.", "query")}, .path = "body.query"};
  Texts documents = texts_of(draft, "documents");
  pooled.form = PooledOutput::kRanking;
  pooled.activation = wants_activation(draft.body);
  if (model.config.classes > 0) refuse_prompts(draft.body, "the pairs of a cross-encoder");
  pooled.top_n = static_cast<std::size_t>(body.integer("top_n", 0, std::numeric_limits<int>::max(), 0));
  const EncoderTexts texts(draft.body, model, encoder);
  RequestParts parts =
      pairs_of(texts, {texts.prompt_of("query"), texts.prompt_of("document")}, query, documents, pooled);
  if (body.flag("return_documents", /*fallback=*/true)) pooled.documents = std::move(documents.items);
  return parts;
}

}  // namespace computron
