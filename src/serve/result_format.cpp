#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <iterator>
#include <variant>

#include "computron/serve/result_writer.h"
#include "json_text.h"

namespace computron {
namespace {

using Out = std::back_insert_iterator<std::string>;
using ScoredTokens = std::vector<std::reference_wrapper<const ScoredToken>>;

std::string float_json(float value) {
  if (std::isnan(value)) return "null";
  if (std::isinf(value)) return value < 0 ? "-9999" : "null";
  return fmt::format("{}", value);
}

std::string logprob_json(const ScoredToken& token) { return token.has_logprob ? float_json(token.logprob) : "null"; }

std::string id_json(const ScoredToken& token) { return fmt::format("{}", token.token); }

// A token's stand-in for its text.
std::string name_json(TokenId token) { return fmt::format("\"token:{}\"", token); }

std::string top_json(const ScoredToken& token) {
  if (!token.has_logprob) return "null";
  std::string text = "{";
  for (const auto& [id, logprob] : token.top) {
    fmt::format_to(Out(text), "{}{}:{}", text.size() > 1 ? "," : "", name_json(id), float_json(logprob));
  }
  return text + "}";
}

// [f(token), ...]
template <class F>
std::string list_json(const ScoredTokens& tokens, F&& f) {
  std::string text = "[";
  for (const ScoredToken& token : tokens) {
    if (text.size() > 1) text += ',';
    text += f(token);
  }
  return text + "]";
}

std::string logprobs_json(const ScoredTokens& tokens) {
  return fmt::format(R"({{"tokens":{},"token_ids":{},"token_logprobs":{},"top_logprobs":{}}})",
                     list_json(tokens, [](const ScoredToken& t) { return name_json(t.token); }),
                     list_json(tokens, id_json), list_json(tokens, logprob_json), list_json(tokens, top_json));
}

std::string custom_id_json(const IncomingRequest& request) {
  return request.custom_id ? json_string(*request.custom_id) : "null";
}

bool wants_logprobs(const IncomingRequest& request) {
  const auto* parsed = std::get_if<Request>(&request.content);
  ensure(parsed != nullptr, "a completion of a request that was never parsed");
  return parsed->logprobs >= 0;
}

ScoredTokens all_tokens(const Completion& completion) {
  ScoredTokens tokens(completion.prompt.begin(), completion.prompt.end());
  tokens.insert(tokens.end(), completion.tokens.begin(), completion.tokens.end());
  return tokens;
}

std::string choice_json(const IncomingRequest& request, const Completion& completion) {
  const ScoredTokens tokens = all_tokens(completion);
  return fmt::format(R"({{"index":0,"text":"","token_ids":{},"finish_reason":"{}","logprobs":{}}})",
                     list_json(tokens, id_json), completion.finish_reason == FinishReason::kStop ? "stop" : "length",
                     wants_logprobs(request) ? logprobs_json(tokens) : "null");
}

std::string body_json(const IncomingRequest& request, const Completion& completion) {
  return fmt::format(R"({{"id":"cmpl-{}","object":"text_completion","model":{},"choices":[{}],)"
                     R"("usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}}}}})",
                     request.line, json_string(request.model), choice_json(request, completion),
                     completion.prompt_tokens, completion.generated_tokens,
                     completion.prompt_tokens + completion.generated_tokens);
}

std::string line_json(const IncomingRequest& request, int status, const std::string& body, const std::string& error) {
  return fmt::format(
      R"({{"id":"batch_req_{0}","custom_id":{1},"response":{{"status_code":{2},"request_id":"req_{0}","body":{3}}},)"
      R"("error":{4}}})",
      request.line, custom_id_json(request), status, body, error);
}

int status_of(const std::string& error_code) {
  if (error_code == "model_not_found") return 404;
  return error_code == "numerical_error" ? 500 : 400;
}

}  // namespace

std::string format_completion(const IncomingRequest& request, const Completion& completion) {
  if (!completion.error_code.empty()) {
    return format_failure(request, {status_of(completion.error_code), completion.error_code, completion.error_message});
  }
  return line_json(request, 200, body_json(request, completion), "null");
}

std::string format_failure(const IncomingRequest& request, const RequestFailure& failure) {
  return line_json(request, failure.status, "null",
                   fmt::format(R"({{"code":{},"message":{},"line":{}}})", json_string(failure.code),
                               json_string(failure.message), request.line));
}

}  // namespace computron
