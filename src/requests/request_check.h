// The second half of parsing a line: what its fields mean, and whether this build can serve them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "computron/guided/guide_spec.h"
#include "computron/requests/model_list.h"
#include "src/requests/request_draft.h"

namespace computron {

inline constexpr std::size_t kMaxInputs = 2048;  // of a request to an encoder; OpenAI's bound

// The custom_id. Throws RequestError{invalid_request} unless there is one.
const std::string& check_custom_id(const RequestDraft& draft);

// The model as asked for, or "" where it cannot be told.
std::string asked_model(const RequestDraft& draft);

struct CheckedRequest {
  RequestParts parts;             // ids and parts are left to the caller
  bool prompt_token_ids = false;  // come back too
  TextOutput text = {};           // of completions
  PooledOutput pooled = {};       // of embeddings and scores
};

// What else decides what a line means.
struct RequestContext {
  RequestId line = 0;
  int default_max_tokens = 16;
  std::uint64_t seed = 0;    // of the job, for requests without one of their own
  std::string image_folder;  // of relative paths
  GuideChecker* guides = nullptr;
  std::string_view no_guides = {};  // ReaderLimits::no_guides
};

// Throws RequestError invalid_request, invalid_parameter, model_not_found or context_length_exceeded; its message names
// the field and what it may be. Reads the image that the request names. `encoders` by ModelId.
CheckedRequest check_request(const RequestDraft& draft, const std::vector<ServedModel>& models,
                             std::span<std::optional<Encoder>> encoders, const RequestContext& context);

// Names of fields that no version of the interface knows, "body." before a body's.
std::vector<std::string> unknown_fields(const RequestDraft& draft);

}  // namespace computron
