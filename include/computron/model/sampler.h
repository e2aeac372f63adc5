// From the tensor-parallel ranks' summaries of a row of logits to a token and its log-probabilities.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "computron/ops/ops.h"

namespace computron {

struct SampledRow {
  TokenId token = 0;                           // greedy: the largest logit, the smaller token on ties
  float logprob = 0;                           // of `token`
  float target_logprob = 0;                    // of the asked-for token; 0 if none
  bool finite = true;                          // false: NaN or infinity among the logits; the rest means nothing
  std::vector<std::pair<TokenId, float>> top;  // up to `top` best tokens with their log-probabilities
};

// `parts` holds one summary a rank, in rank order: the result has the same bits wherever it is computed.
// log p(x) = logit(x) − max − log Σ exp(logit − max), the last two in double.
SampledRow sample_greedy(std::span<const LogitSummary* const> parts, int top);

}  // namespace computron
