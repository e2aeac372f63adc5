// What sampling needs of a slice of a row of logits: its top-k with log-sum-exp, and its candidates.
#pragma once

#include <vector>

#include "computron/kernels/sampling.h"
#include "computron/kernels/types.h"

namespace computron::kernels {

// logits[c] is of token first_token + c, for c < columns. Keeps the best `top` (1..TopLogits::kTop) and the logit
// of `target` where it lies here. Σ exp is taken in double, in eight chains whose order depends on nothing.
TopLogits top_k_log_sum_exp(const float* logits, int columns, TokenId first_token, int top, TokenId target);

// The candidates of a slice of the row (kernels/sampling.h). `scaled` is scratch memory.
SliceSample sample(const float* logits, int columns, TokenId first_token, const RowSampling& row,
                   std::vector<float>& scaled);

}  // namespace computron::kernels
