// What requests for scores mean: pairs of texts, or documents to be ranked for a query. A cross-encoder reads each pair
// as one input; of other encoders and embedders each text is an input, and a score the cosine of two embeddings.
#pragma once

#include <string_view>

#include "src/requests/request_check.h"

namespace computron {

// Of /score and /rerank, beside kPooledFields.
inline constexpr std::string_view kScoreFields[] = {"data_1",      "data_2",  "documents", "input_type", "items",
                                                    "prompt_name", "queries", "text_1",    "text_2"};
inline constexpr std::string_view kRankingFields[] = {"documents", "query", "return_documents", "top_n"};

// The inputs of a body, and in `pooled` how their results become scores. Errors as check_request().
RequestParts score_requests(const RequestDraft& draft, const ServedModel& model, std::optional<Encoder>& encoder,
                            PooledOutput& pooled);
RequestParts ranking_requests(const RequestDraft& draft, const ServedModel& model, std::optional<Encoder>& encoder,
                              PooledOutput& pooled);

}  // namespace computron
