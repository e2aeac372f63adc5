// What requests to encoders and embedders mean: inputs to embed or to classify, one sequence each.
#pragma once

#include <string>
#include <string_view>

#include "src/requests/request_check.h"
#include "src/requests/request_fields.h"

namespace computron {

// Of all requests to encoders and embedders; of those for embeddings and classes besides.
inline constexpr std::string_view kPooledFields[] = {
    "activation", "model", "stream", "truncate_prompt_tokens", "truncation_side", "use_activation"};
inline constexpr std::string_view kEncoderFields[] = {"dimensions", "encoding_format", "image",         "input",
                                                      "input_type", "prompt_name",     "token_type_ids"};
inline constexpr std::string_view kImageFields[] = {"data", "shape"};

// The inputs of a body for embeddings or classes. Errors as check_request().
RequestParts encoder_requests(const RequestDraft& draft, const ServedModel& model, std::optional<Encoder>& encoder,
                              const std::string& image_folder);

// How they come back.
PooledOutput pooled_output(const JsonFields& body, bool embeddings, const ServedModel& model);

// False where body.use_activation, which was body.activation, asks for what the model's last layer gives.
bool wants_activation(const JsonFields& body);

// The fields that name a prompt go with texts of their own alone, and not with `with`, "token ids".
void refuse_prompts(const JsonFields& body, std::string_view with);

// Fills in what the model says of its inputs, whatever they are for.
void complete_pooled(RequestParts& parts, Task task, const ServedModel& model);

}  // namespace computron
