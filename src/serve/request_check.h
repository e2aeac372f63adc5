// The second half of parsing a line: what its fields mean, and whether this build can serve them.
#pragma once

#include <string>
#include <vector>

#include "computron/serve/roster.h"
#include "request_draft.h"

namespace computron {

inline constexpr std::size_t kMaxInputs = 2048;  // of a request to an encoder; OpenAI's bound

// The custom_id. Throws RequestError{invalid_request} unless there is one.
const std::string& check_custom_id(const RequestDraft& draft);

// The model as asked for, or "" where it cannot be told.
std::string asked_model(const RequestDraft& draft);

struct CheckedRequest {
  RequestParts parts;  // ids and parts are left to the caller
  bool base64_vectors = false;
};

// Throws RequestError invalid_request, invalid_parameter, model_not_found or context_length_exceeded; its message names
// the field and what it may be. Reads the image that the request names, from `image_folder` if its path is relative.
CheckedRequest check_request(const RequestDraft& draft, const std::vector<ServedModel>& models, int default_max_tokens,
                             const std::string& image_folder);

// Names of fields that no version of the interface knows, "body." before a body's.
std::vector<std::string> unknown_fields(const RequestDraft& draft);

}  // namespace computron
