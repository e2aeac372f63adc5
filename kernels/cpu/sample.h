// The summary of a row of logits, and what it offers to be drawn.
#pragma once

#include <vector>

#include "computron/ops/sampling.h"
#include "computron/ops/types.h"

namespace computron::kernels {

// logits[c] is of token first_token + c, for c < columns. Keeps the best `top` (1..LogitSummary::kTop) and the logit
// of `target` where it lies here. Σ exp is taken in double, in eight chains whose order depends on nothing.
LogitSummary summarize(const float* logits, int columns, TokenId first_token, int top, TokenId target);

// What a slice of the row offers (ops/sampling.h). `scaled` is scratch memory.
Draw draw(const float* logits, int columns, TokenId first_token, const RowSampling& row, std::vector<float>& scaled);

}  // namespace computron::kernels
