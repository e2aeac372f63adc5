#include "src/requests/request_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "computron/base/digest.h"
#include "computron/base/json_text.h"
#include "src/requests/encoder_check.h"
#include "src/requests/guide_check.h"
#include "src/requests/request_class.h"
#include "src/requests/request_fields.h"
#include "src/requests/sampling_check.h"
#include "src/requests/score_check.h"
#include "src/requests/text_output.h"
#include "src/requests/text_request.h"

namespace computron {
namespace {

using Kind = JsonValue::Kind;

constexpr int kMaxLogprobs = 20;
constexpr std::size_t kMaxStopTokens = 256;
constexpr std::string_view kChatUrl = "/v1/chat/completions";
enum class Endpoint : std::uint8_t { kCompletions, kEmbeddings, kClasses, kScores, kRanking };
constexpr std::pair<std::string_view, Endpoint> kUrls[] = {{"/v1/completions", Endpoint::kCompletions},
                                                           {kChatUrl, Endpoint::kCompletions},
                                                           {"/v1/embeddings", Endpoint::kEmbeddings},
                                                           {"/classify", Endpoint::kClasses},
                                                           {"/score", Endpoint::kScores},
                                                           {"/v1/score", Endpoint::kScores},
                                                           {"/rerank", Endpoint::kRanking},
                                                           {"/v1/rerank", Endpoint::kRanking},
                                                           {"/v2/rerank", Endpoint::kRanking}};

constexpr std::string_view kTopFields[] = {"arrival", "body", "custom_id", "deadline", "method", "url"};
constexpr std::string_view kBodyFields[] = {
    "echo",   "ignore_eos",      "logprobs",         "max_tokens", "model",          "n",
    "prompt", "prompt_logprobs", "return_token_ids", "stop",       "stop_token_ids", "stream"};
constexpr std::string_view kChatFields[] = {"add_generation_prompt",
                                            "chat_template_kwargs",
                                            "continue_final_message",
                                            "ignore_eos",
                                            "include_reasoning",
                                            "logprobs",
                                            "max_completion_tokens",
                                            "max_tokens",
                                            "messages",
                                            "model",
                                            "n",
                                            "parallel_tool_calls",
                                            "prompt_logprobs",
                                            "reasoning_effort",
                                            "return_token_ids",
                                            "stop",
                                            "stop_token_ids",
                                            "stream",
                                            "tool_choice",
                                            "top_logprobs"};
constexpr std::int64_t kMaxCompletions = 128;

// Fields that change what comes back and are not served: only the value that changes nothing is accepted.
enum class Neutral { kOne, kFalse, kEmpty };
constexpr std::pair<std::string_view, Neutral> kUnservedFields[] = {{"allowed_token_ids", Neutral::kEmpty},
                                                                    {"bad_words", Neutral::kEmpty},
                                                                    {"best_of", Neutral::kOne},
                                                                    {"chat_template", Neutral::kEmpty},
                                                                    {"documents", Neutral::kEmpty},
                                                                    {"add_special_tokens", Neutral::kFalse},
                                                                    {"functions", Neutral::kEmpty},
                                                                    {"guided_grammar", Neutral::kEmpty},
                                                                    {"guided_whitespace_pattern", Neutral::kEmpty},
                                                                    {"suffix", Neutral::kEmpty},
                                                                    {"tools", Neutral::kEmpty},
                                                                    {"truncate_prompt_tokens", Neutral::kEmpty},
                                                                    {"use_beam_search", Neutral::kFalse}};

// Of a field of the line itself that holds seconds.
double seconds(const RequestDraft& draft, std::string_view name, double absent) {
  const JsonValue& value = field(draft.top, name);
  if (value.kind == Kind::kNull) return absent;
  if (is_number(value) && number_of(value) >= 0) return number_of(value);
  invalid_parameter(fmt::format("{}: must be a finite number of seconds, 0 or more (got {})", name, describe(value)));
}

// "a, b, c"
std::string served_urls() {
  std::string text;
  for (const auto& [url, endpoint] : kUrls) {
    if (!text.empty()) text += ", ";
    text += url;
  }
  return text;
}

std::optional<Endpoint> find_endpoint(std::string_view url) {
  for (const auto& [known, endpoint] : kUrls) {
    if (url == known) return endpoint;
  }
  return std::nullopt;
}

Endpoint endpoint_of(const std::string& url) {
  if (const auto endpoint = find_endpoint(url)) return *endpoint;
  invalid_request(fmt::format("url: unknown {}; this build serves {}", shown(url), served_urls()));
}

Endpoint check_envelope(const RequestDraft& draft) {
  const std::string& method = required_string(draft.top, "", "method");
  if (method != "POST") invalid_request(fmt::format("method: must be 'POST' (got {})", shown(method)));
  const Endpoint endpoint = endpoint_of(required_string(draft.top, "", "url"));
  const JsonValue& body = field(draft.top, "body");
  if (!draft.top.contains("body")) invalid_request("body: missing");
  if (body.kind != Kind::kObject) invalid_request(fmt::format("body: must be an object (got {})", describe(body)));
  const JsonValue& stream = field(draft.body, "stream");
  if (stream.kind != Kind::kNull && (stream.kind != Kind::kBool || stream.boolean)) {
    invalid_request(fmt::format("body.stream: must be false, results are written whole (got {})", describe(stream)));
  }
  return endpoint;
}

ModelId find_model(const RequestDraft& draft, const std::vector<ServedModel>& models) {
  const std::string& name = required_string(draft.body, "body.", "model");
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (models[i].id == name) return static_cast<ModelId>(i);
  }
  throw RequestError(404, "model_not_found", fmt::format("body.model: this job serves no model {}", shown(name)));
}

void check_context(std::string_view path, std::size_t prompt_tokens, int max_tokens, const ServedModel& model) {
  if (prompt_tokens + static_cast<std::size_t>(max_tokens) <= static_cast<std::size_t>(model.config.max_positions)) {
    return;
  }
  context_length_exceeded(fmt::format("{}: {} tokens and max_tokens {} exceed the {} positions of {}", path,
                                      prompt_tokens, max_tokens, model.config.max_positions, model.id));
}

std::vector<TokenId> stop_tokens(const JsonFields& body, const ServedModel& model) {
  const JsonValue& list = field(body, "stop_token_ids");
  if (list.kind == Kind::kNull) return {};
  if (list.kind != Kind::kList || list.has_odd_item || list.count > kMaxStopTokens) {
    invalid_parameter(fmt::format("body.stop_token_ids: must be a list of at most {} token ids, integers from 0 to {}",
                                  kMaxStopTokens, model.config.vocab - 1));
  }
  return token_list(list, "body.stop_token_ids", model);
}

bool is_neutral(const JsonValue& value, Neutral neutral) {
  if (value.kind == Kind::kNull) return true;
  switch (neutral) {
    case Neutral::kOne:
      return is_number(value) && number_of(value) == 1;
    case Neutral::kFalse:
      return value.kind == Kind::kBool && !value.boolean;
    case Neutral::kEmpty:
      break;
  }
  if (value.kind == Kind::kString) return value.text.empty();
  return (value.kind == Kind::kList || value.kind == Kind::kObject) && value.count == 0;
}

std::string_view name_of(Neutral neutral) {
  switch (neutral) {
    case Neutral::kOne:
      return "1";
    case Neutral::kFalse:
      return "false";
    case Neutral::kEmpty:
      break;
  }
  return "empty";
}

void check_unserved(const JsonFields& fields) {
  for (const auto& [name, neutral] : kUnservedFields) {
    const JsonValue& value = field(fields, name);
    if (is_neutral(value, neutral)) continue;
    invalid_parameter(
        fmt::format("body.{}: not served; leave it out or {} (got {})", name, name_of(neutral), describe(value)));
  }
}

int max_tokens_of(const JsonFields& fields, bool echo, int default_max_tokens) {
  const OptionalFields body(fields);
  const int most = std::numeric_limits<int>::max();
  if (!echo && field(fields, "max_tokens").kind == Kind::kInteger && field(fields, "max_tokens").integer == 0) {
    invalid_parameter(fmt::format("body.max_tokens: must be an integer from 1 to {}, or 0 with echo (got 0)", most));
  }
  return static_cast<int>(body.integer("max_tokens", echo ? 0 : 1, most, default_max_tokens));
}

// What is the same for all of a line's completions, but for their prompts and noise.
Request common_request(const RequestDraft& draft, const ServedModel& model, int max_tokens) {
  const OptionalFields body(draft.body);
  Request request;
  request.max_tokens = max_tokens;
  request.ignore_eos = body.flag("ignore_eos");
  request.stop_tokens = stop_tokens(draft.body, model);
  check_unserved(draft.body);
  request.sampling = sampling_of(draft, model, max_tokens);
  return request;
}

// One request for each of the `n` completions of each prompt; they differ in the noise that draws their tokens.
RequestParts parts_of(const RequestDraft& draft, Request common, const std::vector<Prompt>& prompts, TextOutput& text,
                      const RequestContext& context) {
  const JsonFields& fields = draft.body;
  const bool seeded = field(fields, "seed").kind != Kind::kNull;
  RequestParts parts;
  for (const Prompt& prompt : prompts) {
    common.prompt = prompt.tokens;
    for (std::size_t i = 0; i < text.per_prompt; ++i) {
      const std::size_t part = parts.size();
      common.sampling.key = seeded ? hash_tuple(static_cast<std::uint64_t>(seed_of(fields)), part)
                                   : hash_tuple(context.seed, context.line, part);
      common.watch = make_stop_watch(text, part);
      parts.push_back(common);
    }
  }
  return parts;
}

void take_guide(const RequestDraft& draft, const ServedModel& model, const RequestContext& context, Request& request) {
  const RequestedGuide guide = guide_of(draft.body, *context.guides, context.no_guides);
  request.sampling.guide = guide.text;
  if (guide.text) check_guided(request, model, guide, *context.guides);
}

TextOutput text_output(const RequestDraft& draft, const ServedModel& model, const std::vector<Prompt>& prompts) {
  const OptionalFields body(draft.body);
  TextOutput text{.tokenizer = model.tokenizer, .stops = stop_strings(draft.body, model)};
  text.min_tokens = static_cast<std::uint32_t>(body.integer("min_tokens", 0, std::numeric_limits<int>::max(), 0));
  text.per_prompt = static_cast<std::size_t>(body.integer("n", 1, kMaxCompletions, 1));
  if (text.per_prompt * prompts.size() > kMaxInputs) {
    invalid_parameter(fmt::format("body.n: {} of each of {} prompts are more than {} completions", text.per_prompt,
                                  prompts.size(), kMaxInputs));
  }
  for (const Prompt& prompt : prompts) {
    auto& out = text.prompts.emplace_back();
    if (!model.tokenizer) continue;
    const auto before = decoding_context(*model.tokenizer, prompt.tokens);
    out.context.assign(before.begin(), before.end());
  }
  return text;
}

// What has to be scored for what comes back: the model's step does not tell one from the other.
void score(const JsonFields& fields, TextOutput& text, Request& common) {
  text.prompt_logprobs = static_cast<int>(OptionalFields(fields).integer("prompt_logprobs", 0, kMaxLogprobs, -1));
  common.echo = text.echo || text.prompt_logprobs >= 0;
  common.logprobs = std::max(text.logprobs, text.prompt_logprobs);
}

void completions(const RequestDraft& draft, const ServedModel& model, std::optional<Encoder>& encoder,
                 const RequestContext& context, CheckedRequest& checked) {
  const JsonFields& fields = draft.body;
  const OptionalFields body(fields);
  const bool echo = body.flag("echo");
  const std::vector<Prompt> prompts = prompts_of(fields, model, encoder);
  Request common = common_request(draft, model, max_tokens_of(fields, echo, context.default_max_tokens));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string path = prompts.size() > 1 ? fmt::format("body.prompt[{}]", i) : "body.prompt";
    check_context(path, prompts[i].tokens.size(), common.max_tokens, model);
  }
  checked.text = text_output(draft, model, prompts);
  checked.text.echo = echo;
  checked.text.logprobs = static_cast<int>(body.integer("logprobs", 0, kMaxLogprobs, -1));
  score(fields, checked.text, common);
  for (std::size_t i = 0; echo && i < prompts.size(); ++i) checked.text.prompts[i].text = prompts[i].text.value_or("");
  take_guide(draft, model, context, common);
  checked.parts = parts_of(draft, std::move(common), prompts, checked.text, context);
}

// Without a limit an answer may take what the prompt leaves of the model's positions.
int chat_max_tokens(const JsonFields& fields, std::size_t prompt_tokens, const ServedModel& model) {
  const OptionalFields body(fields);
  const int most = std::numeric_limits<int>::max();
  const auto left = static_cast<std::int64_t>(model.config.max_positions) - static_cast<std::int64_t>(prompt_tokens);
  const std::int64_t older = body.integer("max_tokens", 1, most, std::max<std::int64_t>(left, 1));
  return static_cast<int>(body.integer("max_completion_tokens", 1, most, older));
}

void check_tools(const JsonFields& fields) {
  const JsonValue& choice = field(fields, "tool_choice");
  const bool none = choice.kind == Kind::kString && (choice.text == "none" || choice.text == "auto");
  if (choice.kind == Kind::kNull || none) return;
  invalid_parameter(fmt::format("body.tool_choice: tools are not served; leave it out (got {})", describe(choice)));
}

int chat_logprobs(const JsonFields& fields) {
  const OptionalFields body(fields);
  const auto top = static_cast<int>(body.integer("top_logprobs", 0, kMaxLogprobs, -1));
  if (body.flag("logprobs")) return std::max(top, 0);
  if (top >= 0) invalid_parameter("body.top_logprobs: body.logprobs must be true beside it");
  return -1;
}

void chat_completions(const RequestDraft& draft, const ServedModel& model, std::optional<Encoder>& encoder,
                      const RequestContext& context, CheckedRequest& checked) {
  check_tools(draft.body);
  ChatPromptTokens chat = chat_prompt(draft, model, encoder);
  const std::vector<TokenId> ends = std::move(chat.end_tokens);
  const std::vector<Prompt> prompts = {std::move(chat.prompt)};
  const std::size_t tokens = prompts[0].tokens.size();
  Request common = common_request(draft, model, chat_max_tokens(draft.body, tokens, model));
  if (!common.ignore_eos) common.stop_tokens.insert(common.stop_tokens.end(), ends.begin(), ends.end());
  check_context("body.messages", tokens, common.max_tokens, model);
  checked.text = text_output(draft, model, prompts);
  checked.text.chat = true;
  checked.text.reasoning = chat.reasoning;
  const bool given = field(draft.body, "include_reasoning").kind != Kind::kNull;
  checked.text.include_reasoning = !given || OptionalFields(draft.body).flag("include_reasoning");
  checked.text.logprobs = chat_logprobs(draft.body);
  score(draft.body, checked.text, common);
  take_guide(draft, model, context, common);
  if (common.sampling.guide) checked.text.reasoning = Reasoning::kNone;  // the guide holds from the first token on
  checked.parts = parts_of(draft, std::move(common), prompts, checked.text, context);
}

// "is an encoder: it serves /v1/embeddings and /classify"
std::string abilities(const ModelConfig& config) {
  if (!config.pools()) return "is a decoder: it serves /v1/completions";
  const std::string_view kind = config.causal ? "an embedder" : "an encoder";
  if (config.classes == 0)
    return fmt::format("is {} without classes: it serves /v1/embeddings, /score and /rerank", kind);
  return fmt::format("is {} of {} classes: it serves /v1/embeddings and /classify{}", kind, config.classes,
                     config.classes == 1 ? ", /score and /rerank" : "");
}

// Texts are scored by the one class of a cross-encoder, or by the cosine of their embeddings.
Task task_of(Endpoint endpoint, const ModelConfig& config) {
  if (endpoint == Endpoint::kCompletions) return Task::kComplete;
  if (endpoint == Endpoint::kEmbeddings) return Task::kEmbed;
  return endpoint == Endpoint::kClasses || config.classes > 0 ? Task::kClassify : Task::kEmbed;
}

// What the model can do instead stands in the message.
void check_task(Endpoint endpoint, const ServedModel& model) {
  const ModelConfig& config = model.config;
  const bool scores = endpoint == Endpoint::kScores || endpoint == Endpoint::kRanking;
  if (config.pools() == (endpoint != Endpoint::kCompletions) &&
      (endpoint != Endpoint::kClasses || config.classes > 0) && (!scores || config.classes <= 1)) {
    return;
  }
  invalid_request(fmt::format("url: {} {}", model.id, abilities(config)));
}

void pooled_requests(const RequestDraft& draft, Endpoint endpoint, const ServedModel& model,
                     std::optional<Encoder>& encoder, const RequestContext& context, CheckedRequest& checked) {
  if (endpoint == Endpoint::kScores) {
    checked.parts = score_requests(draft, model, encoder, checked.pooled);
  } else if (endpoint == Endpoint::kRanking) {
    checked.parts = ranking_requests(draft, model, encoder, checked.pooled);
  } else {
    checked.parts = encoder_requests(draft, model, encoder, context.image_folder);
    checked.pooled = pooled_output(draft.body, endpoint == Endpoint::kEmbeddings, model);
  }
  complete_pooled(checked.parts, task_of(endpoint, model.config), model);
}

template <class Names>
void add_unknown(const JsonFields& fields, std::string_view prefix, const Names& known, std::vector<std::string>& out) {
  for (const auto& [name, value] : fields) {
    if (std::find(std::begin(known), std::end(known), name) == std::end(known)) {
      out.push_back(cut(fmt::format("{}{}", prefix, name)));
    }
  }
}

}  // namespace

const std::string& check_custom_id(const RequestDraft& draft) { return required_string(draft.top, "", "custom_id"); }

std::string asked_model(const RequestDraft& draft) { return field(draft.body, "model").text; }

CheckedRequest check_request(const RequestDraft& draft, const std::vector<ServedModel>& models,
                             std::span<std::optional<Encoder>> encoders, const RequestContext& context) {
  const Endpoint endpoint = check_envelope(draft);
  const ModelId id = find_model(draft, models);
  check_task(endpoint, models[id]);
  const double arrival_s = seconds(draft, "arrival", /*absent=*/0);
  const double deadline_s = seconds(draft, "deadline", /*absent=*/models[id].deadline_s);
  const RequestClass of_class = class_of(draft.body);
  CheckedRequest checked;
  if (endpoint == Endpoint::kCompletions) {
    const bool chat = field(draft.top, "url").text == kChatUrl;
    (chat ? chat_completions : completions)(draft, models[id], encoders[id], context, checked);
    checked.prompt_token_ids = OptionalFields(draft.body).flag("return_token_ids");
  } else {
    refuse_guides(draft.body, models[id]);
    pooled_requests(draft, endpoint, models[id], encoders[id], context, checked);
  }
  for (Request& request : checked.parts) {
    request.model = id;
    request.arrival_s = arrival_s;
    request.deadline_s = deadline_s;
    request.priority = of_class.priority;
    request.tenant = of_class.tenant;
    const int generated = request.encodes() ? 0 : request.max_tokens;
    request.long_factors =
        models[id].config.takes_long_factors(request.prompt.size() + static_cast<std::size_t>(generated));
  }
  return checked;
}

std::vector<std::string> unknown_fields(const RequestDraft& draft) {
  std::vector<std::string> names;
  add_unknown(draft.top, "", kTopFields, names);
  const std::string& url = field(draft.top, "url").text;
  const Endpoint endpoint = find_endpoint(url).value_or(Endpoint::kCompletions);
  if (endpoint != Endpoint::kCompletions) {
    std::vector<std::string_view> known(std::begin(kPooledFields), std::end(kPooledFields));
    const std::span<const std::string_view> more =
        endpoint == Endpoint::kScores    ? std::span<const std::string_view>(kScoreFields)
        : endpoint == Endpoint::kRanking ? std::span<const std::string_view>(kRankingFields)
                                         : std::span<const std::string_view>(kEncoderFields);
    known.insert(known.end(), more.begin(), more.end());
    known.insert(known.end(), std::begin(kClassFields), std::end(kClassFields));
    add_unknown(draft.body, "body.", known, names);
    add_unknown(draft.image, "body.image.", kImageFields, names);
    return names;
  }
  std::vector<std::string_view> known(std::begin(kBodyFields), std::end(kBodyFields));
  if (url == kChatUrl) known.assign(std::begin(kChatFields), std::end(kChatFields));
  known.insert(known.end(), std::begin(kSamplingFields), std::end(kSamplingFields));
  known.insert(known.end(), std::begin(kGuideFields), std::end(kGuideFields));
  known.insert(known.end(), std::begin(kClassFields), std::end(kClassFields));
  for (const auto& [name, neutral] : kUnservedFields) known.push_back(name);
  add_unknown(draft.body, "body.", known, names);
  return names;
}

}  // namespace computron
