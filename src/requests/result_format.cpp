#include "computron/requests/result_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "computron/base/base64.h"
#include "computron/base/json_text.h"
#include "src/requests/pooled_scores.h"
#include "src/requests/text_output.h"

namespace computron {
namespace {

using Out = std::back_insert_iterator<std::string>;
using Parts = std::span<const Completion>;
using ScoredTokens = std::vector<std::reference_wrapper<const ScoredToken>>;

std::string float_json(float value) {
  if (std::isnan(value)) return "null";
  if (std::isinf(value)) return value < 0 ? "-9999" : "null";
  return fmt::format("{}", value);
}

std::string logprob_json(const ScoredToken& token) { return token.has_logprob ? float_json(token.logprob) : "null"; }

std::string id_json(const ScoredToken& token) { return fmt::format("{}", token.token); }

std::string name_json(TokenId token, const TextOutput& output) { return json_string(token_name(token, output)); }

// The best `count` tokens, of the more that may have been asked for beside them.
std::span<const std::pair<TokenId, float>> best_of(const ScoredToken& token, int count) {
  return std::span(token.top).first(std::min(token.top.size(), static_cast<std::size_t>(std::max(count, 0))));
}

// By name: of two tokens of one name the better one.
std::string top_json(const ScoredToken& token, const TextOutput& output) {
  if (!token.has_logprob) return "null";
  std::string text = "{";
  std::set<std::string> names;
  for (const auto& [id, logprob] : best_of(token, output.logprobs)) {
    const auto [name, fresh] = names.insert(name_json(id, output));
    if (fresh) fmt::format_to(Out(text), "{}{}:{}", text.size() > 1 ? "," : "", *name, float_json(logprob));
  }
  return text + "}";
}

// [f(item, index), ...]
template <class Items, class F>
std::string joined_json(const Items& items, F&& f) {
  std::string text = "[";
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += ',';
    text += f(items[i], i);
  }
  return text + "]";
}

// [f(token), ...]
template <class F>
std::string list_json(const ScoredTokens& tokens, F&& f) {
  return joined_json(tokens, [&](const ScoredToken& token, std::size_t) { return f(token); });
}

std::string number_json(std::size_t number) { return fmt::format("{}", number); }

std::string offsets_json(const ChoiceText& choice, const TextOutput& output) {
  if (output.tokenizer == nullptr) return "";
  const auto number = [](std::size_t offset, std::size_t) { return number_json(offset); };
  return fmt::format(R"(,"text_offset":{})", joined_json(choice.offsets, number));
}

std::string logprobs_json(const ScoredTokens& tokens, const ChoiceText& choice, const TextOutput& output) {
  return fmt::format(R"({{"tokens":{},"token_ids":{},"token_logprobs":{},"top_logprobs":{}{}}})",
                     list_json(tokens, [&](const ScoredToken& t) { return name_json(t.token, output); }),
                     list_json(tokens, id_json), list_json(tokens, logprob_json),
                     list_json(tokens, [&](const ScoredToken& t) { return top_json(t, output); }),
                     offsets_json(choice, output));
}

std::string bytes_json(TokenId token, const TextOutput& output) {
  const std::string bytes = output.tokenizer ? output.tokenizer->token_bytes(token) : "";
  return joined_json(bytes, [](char byte, std::size_t) { return number_json(static_cast<unsigned char>(byte)); });
}

// One of a chat's logprobs, but for its closing brace.
std::string chat_token_json(TokenId token, float logprob, const TextOutput& output) {
  return fmt::format(R"({{"token":{},"logprob":{},"bytes":{})", name_json(token, output), float_json(logprob),
                     bytes_json(token, output));
}

std::string chat_logprobs_json(const ScoredTokens& tokens, const TextOutput& output) {
  const auto top = [&](const ScoredToken& token) {
    return joined_json(best_of(token, output.logprobs), [&](const std::pair<TokenId, float>& one, std::size_t) {
      return chat_token_json(one.first, one.second, output) + "}";
    });
  };
  return fmt::format(R"({{"content":{}}})", list_json(tokens, [&](const ScoredToken& token) {
                       return fmt::format(R"({},"top_logprobs":{}}})",
                                          chat_token_json(token.token, token.logprob, output), top(token));
                     }));
}

std::string custom_id_json(const IncomingRequest& request) {
  return request.custom_id ? json_string(*request.custom_id) : "null";
}

const Request& first_part(const IncomingRequest& request) {
  const auto* parts = std::get_if<RequestParts>(&request.content);
  ensure(parts != nullptr && !parts->empty(), "a completion of a request that was never parsed");
  return parts->front();
}

// Those that come back: with echo the prompt's, and the generated ones.
ScoredTokens shown_tokens(const Completion& completion, const TextOutput& output) {
  ScoredTokens tokens;
  if (output.echo) tokens.assign(completion.prompt.begin(), completion.prompt.end());
  tokens.insert(tokens.end(), completion.tokens.begin(), completion.tokens.end());
  return tokens;
}

std::string numbers_json(const std::vector<TokenId>& tokens) {
  return joined_json(tokens, [](TokenId token, std::size_t) { return fmt::format("{}", token); });
}

// "name":value, or nothing.
std::string prompt_ids_json(const IncomingRequest& request, std::size_t part) {
  if (request.prompt_token_ids.empty()) return "";
  const std::vector<TokenId>& ids = request.prompt_token_ids.at(part / request.text.per_prompt);
  return fmt::format(R"("prompt_token_ids":{},)", numbers_json(ids));
}

// One of vLLM's prompt_logprobs: the best tokens and the one that stands there, by their numbers. A rank beyond the
// best is not known.
std::string prompt_logprob_json(const ScoredToken& token, const TextOutput& output) {
  if (!token.has_logprob) return "null";
  const auto best = best_of(token, output.prompt_logprobs);
  const auto entry = [&](TokenId id, float logprob, const std::string& rank) {
    return fmt::format(R"("{}":{{"logprob":{},"rank":{},"decoded_token":{}}})", id, float_json(logprob), rank,
                       name_json(id, output));
  };
  std::string text;
  bool among_best = false;
  for (std::size_t i = 0; i < best.size(); ++i) {
    if (i > 0) text += ',';
    text += entry(best[i].first, best[i].second, number_json(i + 1));
    among_best = among_best || best[i].first == token.token;
  }
  if (among_best) return fmt::format("{{{}}}", text);
  const auto found =
      std::find_if(token.top.begin(), token.top.end(), [&](const auto& t) { return t.first == token.token; });
  const std::string rank =
      found == token.top.end() ? "null" : number_json(static_cast<std::size_t>(found - token.top.begin()) + 1);
  return fmt::format("{{{}{}{}}}", text, text.empty() ? "" : ",", entry(token.token, token.logprob, rank));
}

// "name":value, or nothing.
std::string prompt_logprobs_json(const Completion& completion, const TextOutput& output) {
  if (output.prompt_logprobs < 0) return "";
  return fmt::format(R"("prompt_logprobs":{},)", joined_json(completion.prompt, [&](const ScoredToken& t, std::size_t) {
                       return prompt_logprob_json(t, output);
                     }));
}

std::string_view finish_reason(const Completion& completion, const ChoiceText& choice) {
  return choice.stopped || completion.finish_reason == FinishReason::kStop ? "stop" : "length";
}

std::string choice_json(const IncomingRequest& request, const Completion& completion, std::size_t part) {
  const ScoredTokens tokens = shown_tokens(completion, request.text);
  const bool logprobs = request.text.logprobs >= 0;
  const ChoiceText choice = choice_text(completion, request.text, part, logprobs);
  return fmt::format(R"({{"index":{},"text":{},{}{}"token_ids":{},"finish_reason":"{}","logprobs":{}}})", part,
                     json_string(choice.text), prompt_ids_json(request, part),
                     prompt_logprobs_json(completion, request.text), list_json(tokens, id_json),
                     finish_reason(completion, choice),
                     logprobs ? logprobs_json(tokens, choice, request.text) : "null");
}

std::string message_json(const Completion& completion, const TextOutput& output, const ChoiceText& choice) {
  const auto text_or_null = [](const std::optional<std::string>& text) { return text ? json_string(*text) : "null"; };
  const ChatAnswer answer = chat_answer(completion, output, choice);
  const bool thinks = output.reasoning != Reasoning::kNone && output.include_reasoning;
  return fmt::format(R"({{"role":"assistant","content":{}{}{}}})", text_or_null(answer.content),
                     thinks ? R"(,"reasoning_content":)" : "", thinks ? text_or_null(answer.reasoning) : "");
}

std::string chat_choice_json(const IncomingRequest& request, const Completion& completion, std::size_t part) {
  const ScoredTokens tokens = shown_tokens(completion, request.text);
  const bool logprobs = request.text.logprobs >= 0;
  const ChoiceText choice = choice_text(completion, request.text, part, logprobs);
  const std::string message = message_json(completion, request.text, choice);
  return fmt::format(R"({{"index":{},"message":{},{}"token_ids":{},"finish_reason":"{}","logprobs":{}}})", part,
                     message, prompt_ids_json(request, part), list_json(tokens, id_json),
                     finish_reason(completion, choice), logprobs ? chat_logprobs_json(tokens, request.text) : "null");
}

// Of all parts together. The completions of one prompt, `per_prompt` of them, count it once.
std::string usage_json(Parts parts, std::size_t per_prompt = 1) {
  std::int64_t prompt = 0, generated = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i % per_prompt == 0) prompt += parts[i].prompt_tokens;
    generated += parts[i].generated_tokens;
  }
  return fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}}})", prompt, generated,
                     prompt + generated);
}

std::string completion_body(const IncomingRequest& request, Parts parts) {
  const bool chat = request.text.chat;
  const auto choice = [&](const Completion& c, std::size_t i) {
    return chat ? chat_choice_json(request, c, i) : choice_json(request, c, i);
  };
  return fmt::format(R"({{"id":"{}-{}","object":"{}","created":0,"model":{},"choices":{},{}"usage":{}}})",
                     chat ? "chatcmpl" : "cmpl", request.line, chat ? "chat.completion" : "text_completion",
                     json_string(request.model), joined_json(parts, choice),
                     chat ? prompt_logprobs_json(parts.front(), request.text) : "",
                     usage_json(parts, request.text.per_prompt));
}

std::string floats_json(const std::vector<float>& values) {
  return joined_json(values, [](float value, std::size_t) { return fmt::format("{}", value); });
}

// As asked for: cut, and then of length 1 again where the model's are.
std::vector<float> kept_embedding(const std::vector<float>& values, const PooledOutput& output,
                                  const ModelConfig& config) {
  if (output.dimensions == 0 || std::cmp_equal(output.dimensions, values.size())) return values;
  std::vector<float> kept(values.begin(), values.begin() + output.dimensions);
  if (config.normalize_embedding) scale_to_length_1(kept);
  return kept;
}

std::string embedding_json(const std::vector<float>& values, std::size_t index, bool base64) {
  return fmt::format(
      R"({{"object":"embedding","index":{},"embedding":{}}})", index,
      base64 ? fmt::format("\"{}\"", encode_base64(std::as_bytes(std::span(values)))) : floats_json(values));
}

std::string embedding_body(const IncomingRequest& request, Parts parts, const ModelConfig& config) {
  const auto entry = [&](const Completion& part, std::size_t i) {
    return embedding_json(kept_embedding(part.values, request.pooled, config), i, request.pooled.base64);
  };
  return fmt::format(R"({{"object":"list","data":{},"model":{},"usage":{}}})", joined_json(parts, entry),
                     json_string(request.model), usage_json(parts));
}

std::string class_json(const std::vector<float>& probabilities, std::size_t index, const ModelConfig& config) {
  const auto best = std::ranges::max_element(probabilities) - probabilities.begin();
  return fmt::format(R"({{"index":{},"label":{},"probs":{},"num_classes":{}}})", index,
                     json_string(config.class_name(static_cast<int>(best))), floats_json(probabilities),
                     probabilities.size());
}

std::string classification_body(const IncomingRequest& request, Parts parts, const ModelConfig& config) {
  const ClassScores scores = request.pooled.activation ? config.class_scores : ClassScores::kRaw;
  const auto entry = [&](const Completion& part, std::size_t i) {
    return class_json(activated(part.values, scores), i, config);
  };
  return fmt::format(R"({{"id":"classify-{}","object":"list","created":0,"model":{},"data":{},"usage":{}}})",
                     request.line, json_string(request.model), joined_json(parts, entry), usage_json(parts));
}

std::string score_body(const IncomingRequest& request, Parts parts, const ModelConfig& config) {
  const auto entry = [](float score, std::size_t i) {
    return fmt::format(R"({{"index":{},"object":"score","score":{}}})", i, score);
  };
  return fmt::format(R"({{"id":"score-{}","object":"list","created":0,"model":{},"data":{},"usage":{}}})", request.line,
                     json_string(request.model), joined_json(pair_scores(parts, request.pooled, config), entry),
                     usage_json(parts));
}

std::string ranked_json(const PooledOutput& output, std::size_t index, float score) {
  const std::string document =
      output.documents.empty() ? "" : fmt::format(R"("document":{{"text":{}}},)", json_string(output.documents[index]));
  return fmt::format(R"({{"index":{},{}"relevance_score":{}}})", index, document, score);
}

std::string ranking_body(const IncomingRequest& request, Parts parts, const ModelConfig& config) {
  const std::vector<float> scores = pair_scores(parts, request.pooled, config);
  const std::vector<std::size_t> order = best_first(scores, request.pooled.top_n);
  return fmt::format(R"({{"id":"rerank-{}","model":{},"usage":{},"results":{}}})", request.line,
                     json_string(request.model), usage_json(parts),
                     joined_json(order, [&](std::size_t index, std::size_t) {
                       return ranked_json(request.pooled, index, scores[index]);
                     }));
}

std::string pooled_body(const IncomingRequest& request, Parts parts, const ModelConfig& config) {
  switch (request.pooled.form) {
    case PooledOutput::kScores:
      return score_body(request, parts, config);
    case PooledOutput::kRanking:
      return ranking_body(request, parts, config);
    case PooledOutput::kEach:
      break;
  }
  const bool vectors = first_part(request).task == Task::kEmbed;
  return (vectors ? embedding_body : classification_body)(request, parts, config);
}

std::string body_json(const IncomingRequest& request, Parts parts, const ModelConfig& config) {
  return first_part(request).encodes() ? pooled_body(request, parts, config) : completion_body(request, parts);
}

std::string line_json(const IncomingRequest& request, int status, const std::string& body, const std::string& error) {
  return fmt::format(
      R"({{"id":"batch_req_{0}","custom_id":{1},"response":{{"status_code":{2},"request_id":"req_{0}","body":{3}}},)"
      R"("error":{4}}})",
      request.line, custom_id_json(request), status, body, error);
}

int status_of(const std::string& error_code) {
  if (error_code == "model_not_found") return 404;
  if (error_code == "deadline_exceeded") return 504;
  return error_code == "numerical_error" || error_code == "guide_dead_end" ? 500 : 400;
}

}  // namespace

std::string format_result(const IncomingRequest& request, std::span<const Completion> parts,
                          const ModelConfig& config) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string& code = parts[i].error_code;
    if (code.empty()) continue;
    const std::string which = parts.size() > 1 ? fmt::format("input {}: ", i) : "";
    return format_failure(request, {status_of(code), code, which + parts[i].error_message});
  }
  return line_json(request, 200, body_json(request, parts, config), "null");
}

std::string format_failure(const IncomingRequest& request, const RequestFailure& failure) {
  return line_json(request, failure.status, "null",
                   fmt::format(R"({{"code":{},"message":{},"line":{}}})", json_string(failure.code),
                               json_string(failure.message), request.line));
}

}  // namespace computron
