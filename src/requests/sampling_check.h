// How a completion's tokens are to be drawn: the fields of its body as SamplingParams.
#pragma once

#include <cstdint>
#include <string_view>

#include "computron/model/sampler.h"
#include "computron/requests/model_list.h"
#include "src/requests/request_draft.h"

namespace computron {

// Without any of them, and with temperature 0, decoding is greedy.
inline constexpr std::string_view kSamplingFields[] = {
    "frequency_penalty",  "logit_bias", "min_p",       "min_tokens", "presence_penalty",
    "repetition_penalty", "seed",       "temperature", "top_k",      "top_p"};

// Throws RequestError{invalid_parameter} naming the field and what it may be. The key is left to the caller.
SamplingParams sampling_of(const RequestDraft& draft, const ServedModel& model, int max_tokens);
// The body's "seed"; 0 if there is none.
std::int64_t seed_of(const JsonFields& body);

}  // namespace computron
