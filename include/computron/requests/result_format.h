// The line of a result (JSONL in the OpenAI batch output format).
#pragma once

#include <span>
#include <string>

#include "computron/model/config.h"
#include "computron/requests/request_reader.h"
#include "computron/sched/request.h"

namespace computron {

// One result line, without the newline.
//   {"id": "batch_req_<line>", "custom_id": ..., "response": {"status_code": 200, "request_id": "req_<line>",
//    "body": {...}}, "error": null}
// A completion's body is OpenAI's with token_ids: id, object, model, choices[{index, text, token_ids, finish_reason,
// logprobs}], usage. With echo the prompt comes first in text, token_ids and logprobs. Several prompts have their
// choices one after the other, `n` each. `text` is empty where the checkpoint carries no tokenizer; a token's string in
// logprobs is then "token:<id>", and else what it adds to a text, or "bytes:\x.." if that is no whole character;
// text_offset counts characters of `text`. A stop string ends the text before it and is a part of token_ids, logprobs
// and usage. A chat's body is OpenAI's chat.completion, with token_ids. Log-probabilities are the shortest decimals
// that read back as the same float32; minus infinity is written as -9999, as vLLM does.
//
// An embedding's body is OpenAI's: {object: list, data: [{object: embedding, index, embedding}], model, usage}; a
// classification's is vLLM's: {id, object: list, created: 0, model, data: [{index, label, probs, num_classes}], usage},
// probs what the model's ClassScores make of the scores. Vectors are decimals like those above, or base64 of
// little-endian float32. Scores of pairs are vLLM's: {id, object: list, created: 0, model, data: [{index, object:
// score, score}], usage}, and so are documents by score, best first: {id, model, usage, results: [{index, document:
// {text}, relevance_score}]}.
//
// A request that failed has status_code 4xx (500 for numerical_error, 504 for deadline_exceeded), body null and error
// {code, message, line}; <line> and `line` are the 0-based line number in the input. `parts`: the completions of all
// parts of the request, in their order; one that failed fails the line. `request` holds its RequestParts, of which task
// and logprobs are looked at; `config` is its model's.
std::string format_result(const IncomingRequest& request, std::span<const Completion> parts, const ModelConfig& config);
std::string format_failure(const IncomingRequest& request, const RequestFailure& failure);

}  // namespace computron
