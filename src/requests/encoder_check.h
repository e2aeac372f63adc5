// What requests to encoders mean: inputs to embed or to classify, one sequence each.
#pragma once

#include <string>
#include <string_view>

#include "src/requests/request_check.h"
#include "src/requests/request_fields.h"

namespace computron {

inline constexpr std::string_view kEncoderFields[] = {
    "dimensions",     "encoding_format",        "image", "input", "model", "stream",
    "token_type_ids", "truncate_prompt_tokens", "user"};
inline constexpr std::string_view kImageFields[] = {"data", "shape"};

// The inputs of a body, for a model that can do `task`. Errors as check_request().
RequestParts encoder_requests(const RequestDraft& draft, Task task, const ServedModel& model,
                              std::optional<Encoder>& encoder, const std::string& image_folder);

// Whether body.encoding_format asks for vectors in base64.
bool wants_base64(const JsonFields& body);

}  // namespace computron
