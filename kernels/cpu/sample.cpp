#include "kernels/cpu/sample.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/simd.h"

namespace computron::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Calls body(lanes) for all vectors of x; lanes past n hold `filler`.
template <class Body>
void for_each_vector(const float* x, int n, float filler, Body&& body) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) body(load(x + i));
  if (i == n) return;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, filler);
  std::copy(x + i, x + n, lanes);
  body(load(lanes));
}

float largest(const float* x, int n) {
  F8 result = splat(-kInfinity);
  for_each_vector(x, n, -kInfinity, [&](F8 v) { result = max(v, result); });
  return max_lanes(result);
}

// x - x is zero for numbers only.
bool all_finite(const float* x, int n) {
  F8 sum = splat(0);
  for_each_vector(x, n, 0, [&](F8 v) { sum = add(sum, sub(v, v)); });
  return sum_lanes(sum) == 0;
}

double sum_exp(const float* x, int n, float max) {
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
  for_each_vector(x, n, -kInfinity, [&](F8 v) {
    const F8 e = exp(sub(v, splat(max)));
    low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
    high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
  });
  double lanes[4];
  _mm256_storeu_pd(lanes, _mm256_add_pd(low, high));
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// Puts column c into the sorted list of at most `top`, dropping the worst when it is full. Columns come in ascending
// order, so an equal one goes behind.
void insert(LogitSummary& summary, int top, TokenId token, float logit) {
  int place = summary.count < top ? summary.count++ : top - 1;
  for (; place > 0 && summary.logits[place - 1] < logit; --place) {
    summary.logits[place] = summary.logits[place - 1];
    summary.tokens[place] = summary.tokens[place - 1];
  }
  summary.logits[place] = logit;
  summary.tokens[place] = token;
}

void keep_best(const float* x, int n, TokenId first_token, int top, LogitSummary& summary) {
  int i = 0;
  const auto offer = [&](int c) {
    if (summary.count < top || x[c] > summary.logits[top - 1]) insert(summary, top, first_token + c, x[c]);
  };
  for (; i < std::min(top, n); ++i) offer(i);
  for (; i + kLanes <= n; i += kLanes) {
    const F8 better = _mm256_cmp_ps(load(x + i), splat(summary.logits[top - 1]), _CMP_GT_OQ);
    if (_mm256_movemask_ps(better) == 0) continue;
    for (int c = i; c < i + kLanes; ++c) offer(c);
  }
  for (; i < n; ++i) offer(i);
}

}  // namespace

LogitSummary summarize(const float* logits, int columns, TokenId first_token, int top, TokenId target) {
  LogitSummary summary{};
  summary.max = largest(logits, columns);
  summary.sum_exp = sum_exp(logits, columns, summary.max);
  summary.finite = all_finite(logits, columns);
  keep_best(logits, columns, first_token, std::clamp(top, 1, LogitSummary::kTop), summary);
  if (target >= first_token && target < first_token + columns) {
    summary.target_logit = logits[target - first_token];
    summary.has_target = 1;
  }
  return summary;
}

}  // namespace computron::kernels
