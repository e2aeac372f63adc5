#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "computron/base/json_text.h"
#include "computron/base/log.h"
#include "computron/requests/request_reader.h"
#include "computron/storage/custom_id_scanner.h"
#include "src/requests/request_check.h"
#include "src/requests/request_draft.h"
#include "src/requests/text_request.h"

namespace computron {
namespace {

constexpr std::size_t kNamesInWarning = 16;
constexpr std::size_t kMinListBounds = 1024;  // stop_token_ids have to fit too

std::optional<std::string> find_custom_id(std::string_view line) {
  CustomIdScanner scanner;
  scanner.feed(line);
  return scanner.found();
}

// "a, b, c"; at most kNamesInWarning of them.
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesInWarning); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kNamesInWarning ? text + ", ..." : text;
}

}  // namespace

RequestParser::RequestParser(std::vector<ServedModel> models, ReaderLimits limits, std::string image_folder)
    : models_(std::move(models)), limits_(limits), image_folder_(std::move(image_folder)), max_prompt_(kMinListBounds) {
  for (ServedModel& model : models_) {
    choose_chat_format(model);
    max_prompt_ = std::max(max_prompt_, static_cast<std::size_t>(std::max(model.config.max_positions, 0)));
    encoders_.push_back(model.tokenizer ? std::optional<Encoder>(*model.tokenizer) : std::nullopt);
  }
}

IncomingRequest RequestParser::parse(RequestId line_number, std::string_view line) {
  IncomingRequest incoming = parse(line_number, line, Time::kFirst);
  if (incoming.custom_id) seen_ids_.insert(*incoming.custom_id);
  return incoming;
}

IncomingRequest RequestParser::parse_again(RequestId line_number, std::string_view line) {
  return parse(line_number, line, Time::kAgain);
}

IncomingRequest RequestParser::parse(RequestId line_number, std::string_view line, Time time) {
  IncomingRequest incoming;
  incoming.line = line_number;
  try {
    incoming.content = read(incoming, line, time);
  } catch (const RequestError& error) {
    if (!incoming.custom_id) incoming.custom_id = find_custom_id(line);
    if (error.error_code() == "model_not_found") warn_unknown_model(incoming.model);
    incoming.content = RequestFailure{error.status(), error.error_code(), error.what()};
  }
  return incoming;
}

// Fills what is to be known of a failure too before anything can fail.
RequestParts RequestParser::read(IncomingRequest& incoming, std::string_view line, Time time) {
  const auto draft = read_draft(incoming.line, line,
                                {.max_depth = limits_.max_depth, .max_list = max_prompt_, .max_lists = kMaxInputs});
  incoming.model = asked_model(draft);
  incoming.custom_id = check_custom_id(draft);
  if (time == Time::kFirst && seen_ids_.contains(*incoming.custom_id)) {
    throw RequestError(400, "duplicate_custom_id",
                       fmt::format("custom_id: an earlier line has {} too", shown(*incoming.custom_id)));
  }
  if (time == Time::kFirst) warn_unknown_fields(incoming.line, unknown_fields(draft));
  CheckedRequest checked = check_request(draft, models_, encoders_,
                                         {.line = incoming.line,
                                          .default_max_tokens = limits_.default_max_tokens,
                                          .seed = limits_.seed,
                                          .image_folder = image_folder_,
                                          .guides = &guides_,
                                          .no_guides = limits_.no_guides});
  incoming.pooled = std::move(checked.pooled);
  incoming.text = std::move(checked.text);
  if (checked.prompt_token_ids) {
    for (std::size_t i = 0; i < checked.parts.size(); i += incoming.text.per_prompt) {
      incoming.prompt_token_ids.push_back(checked.parts[i].prompt);
    }
  }
  for (std::size_t i = 0; i < checked.parts.size(); ++i) {
    checked.parts[i].id = incoming.line;
    checked.parts[i].part = static_cast<std::uint32_t>(i);
  }
  return std::move(checked.parts);
}

IncomingRequest RequestParser::refuse_long(RequestId line_number, std::size_t bytes,
                                           std::optional<std::string> custom_id) {
  IncomingRequest incoming;
  incoming.line = line_number;
  incoming.custom_id = std::move(custom_id);
  incoming.content = RequestFailure{
      400, "line_too_long", fmt::format("the line has {} bytes; at most {} are read", bytes, limits_.max_line_bytes)};
  if (incoming.custom_id) seen_ids_.insert(*incoming.custom_id);
  return incoming;
}

void RequestParser::skip(std::string_view line) { skip_long(find_custom_id(line)); }

void RequestParser::skip_long(const std::optional<std::string>& custom_id) {
  if (custom_id) seen_ids_.insert(*custom_id);
}

void RequestParser::warn_unknown_fields(RequestId line_number, const std::vector<std::string>& names) {
  if (names.empty() || warned_unknown_fields_) return;
  warned_unknown_fields_ = true;
  spdlog::warn("request line {} has fields that are not known and are ignored, like such fields in later lines: {}",
               line_number, listed(names));
}

void RequestParser::warn_unknown_model(const std::string& name) {
  if (warned_unknown_model_) return;
  warned_unknown_model_ = true;
  std::vector<std::string> known;
  for (const ServedModel& model : models_) known.push_back(model.id);
  spdlog::warn("a request asks for model {}; this job serves {}", shown(name), listed(known));
}

}  // namespace computron
