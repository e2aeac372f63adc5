// The summary of a row of logits.
#pragma once

#include "computron/ops/types.h"

namespace computron::kernels {

// logits[c] is of token first_token + c, for c < columns. Keeps the best `top` (1..LogitSummary::kTop) and the logit
// of `target` where it lies here. Σ exp is taken in double, in eight chains whose order depends on nothing.
LogitSummary summarize(const float* logits, int columns, TokenId first_token, int top, TokenId target);

}  // namespace computron::kernels
