#include "kernels/cpu/sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

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

struct Extent {
  float largest;
  bool finite;  // all of them
};

// In four chains each, since one chain waits for each addition. x - x is zero for numbers only.
Extent extent_of(const float* x, int n) {
  constexpr int kChains = 4;
  F8 largest[kChains], sums[kChains];
  std::fill_n(largest, kChains, splat(-kInfinity));
  std::fill_n(sums, kChains, splat(0));
  const auto take = [&](int chain, F8 v) {
    largest[chain] = max(v, largest[chain]);
    sums[chain] = add(sums[chain], sub(v, v));
  };
  int i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    for (int chain = 0; chain < kChains; ++chain) take(chain, load(x + i + chain * kLanes));
  }
  if (i < n) for_each_vector(x + i, n - i, x[i], [&](F8 v) { take(0, v); });
  for (int chain = 1; chain < kChains; ++chain) {
    largest[0] = max(largest[chain], largest[0]);
    sums[0] = add(sums[0], sums[chain]);
  }
  return {max_lanes(largest[0]), sum_lanes(sums[0]) == 0};
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
void insert(TopLogits& top_logits, int top, TokenId token, float logit) {
  int place = top_logits.count < top ? top_logits.count++ : top - 1;
  for (; place > 0 && top_logits.logits[place - 1] < logit; --place) {
    top_logits.logits[place] = top_logits.logits[place - 1];
    top_logits.tokens[place] = top_logits.tokens[place - 1];
  }
  top_logits.logits[place] = logit;
  top_logits.tokens[place] = token;
}

void keep_best(const float* x, int n, TokenId first_token, int top, TopLogits& top_logits) {
  int i = 0;
  const auto offer = [&](int c) {
    if (top_logits.count < top || x[c] > top_logits.logits[top - 1]) insert(top_logits, top, first_token + c, x[c]);
  };
  for (; i < std::min(top, n); ++i) offer(i);
  for (; i + kLanes <= n; i += kLanes) {
    const F8 better = _mm256_cmp_ps(load(x + i), splat(top_logits.logits[top - 1]), _CMP_GT_OQ);
    if (_mm256_movemask_ps(better) == 0) continue;
    for (int c = i; c < i + kLanes; ++c) offer(c);
  }
  for (; i < n; ++i) offer(i);
}

}  // namespace

TopLogits top_k_log_sum_exp(const float* logits, int columns, TokenId first_token, int top, TokenId target) {
  TopLogits top_logits{};
  const auto [max, finite] = extent_of(logits, columns);
  top_logits.max = max;
  top_logits.finite = finite;
  top_logits.sum_exp = sum_exp(logits, columns, max);
  keep_best(logits, columns, first_token, std::clamp(top, 1, TopLogits::kTop), top_logits);
  if (target >= first_token && target < first_token + columns) {
    top_logits.target_logit = logits[target - first_token];
    top_logits.has_target = 1;
  }
  return top_logits;
}

namespace {

// A slice of a row that is to be changed here and there.
struct Slice {
  float* values;
  int columns;
  TokenId first_token;

  // value = f(value) if the token lies here.
  template <class F>
  void change(TokenId token, F&& f) const {
    if (token < first_token || token >= first_token + columns) return;
    float& value = values[token - first_token];
    value = f(value);
  }
};

void penalise(const Slice& slice, const RowSampling& row) {
  for (const auto& use : row.used) {
    slice.change(use.token, [&row, n = static_cast<float>(use.generated)](float x) {
      x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
      return x - n * row.frequency_penalty - (n > 0 ? row.presence_penalty : 0.0f);
    });
  }
  for (const auto& entry : row.bias) slice.change(entry.first, [&entry](float x) { return x + entry.second; });
  for (const TokenId token : row.banned) slice.change(token, [](float) { return -kInfinity; });
}

// Eight tokens at a time, whose bits lie in two bytes.
void ban_all_but(std::span<const std::uint32_t> allowed, const Slice& slice) {
  const auto bytes = std::as_bytes(allowed);
  const __m256i bit_of_lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const auto first = static_cast<unsigned>(slice.first_token);
  int c = 0;
  for (; c + kLanes <= slice.columns; c += kLanes) {
    const unsigned token = first + static_cast<unsigned>(c);
    if (token / 8 + 2 > bytes.size()) break;
    std::uint16_t two = 0;
    std::memcpy(&two, bytes.data() + token / 8, sizeof two);
    const __m256i bits = _mm256_set1_epi32(two >> (token % 8));
    const __m256i is_allowed = _mm256_cmpeq_epi32(_mm256_and_si256(bits, bit_of_lane), bit_of_lane);
    const F8 x = load(slice.values + c);
    store(slice.values + c, _mm256_blendv_ps(splat(-kInfinity), x, _mm256_castsi256_ps(is_allowed)));
  }
  for (; c < slice.columns; ++c) {
    const unsigned token = first + static_cast<unsigned>(c);
    const bool is_allowed = token / 32 < allowed.size() && (allowed[token / 32] >> (token % 32) & 1) != 0;
    if (!is_allowed) slice.values[c] = -kInfinity;
  }
}

// Noise bits of tokens [first, first + count), count <= kLanes.
void noise_bits(const RowSampling& row, TokenId first, int count, std::uint32_t* bits) {
  std::array<std::uint32_t, 4> four{};
  for (int i = 0; i < count; ++i) {
    const auto token = static_cast<std::uint32_t>(first + i);
    if (i == 0 || token % 4 == 0) four = philox({token / 4, row.position, 0, 0}, row.key);
    bits[i] = four[token % 4];
  }
}

// A token that beats the best score must have E < exp(scaled - best) where its noise is -log E, and E = -log u is at
// least 1 - u: so few need a logarithm. Ties go to the smaller token.
void find_best(const float* scaled, int columns, TokenId first_token, const RowSampling& row, SliceSample& out) {
  constexpr float kSlack = 1.001f;           // for the rounding of the test, not of the score
  const bool guided = !row.allowed.empty();  // then most tokens are banned
  std::uint32_t bits[kLanes];
  for (int c = 0; c < columns; c += kLanes) {
    const int count = std::min(kLanes, columns - c);
    const F8 x = load_first(scaled + c, count);
    if (guided && _mm256_movemask_ps(_mm256_cmp_ps(x, splat(-kInfinity), _CMP_GT_OQ)) == 0) continue;
    noise_bits(row, first_token + c, count, bits);
    float least[kLanes];
    for (int i = 0; i < count; ++i) least[i] = static_cast<float>(1 - unit_interval(bits[i]));
    const F8 limit = mul(exp(sub(x, splat(static_cast<float>(out.score)))), splat(kSlack));
    const int may_win = _mm256_movemask_ps(_mm256_cmp_ps(load_first(least, count), limit, _CMP_LE_OQ));
    for (int i = 0; i < count; ++i) {
      if ((may_win >> i & 1) == 0 && out.best.token >= 0) continue;
      const double score = scaled[c + i] + gumbel(bits[i]);
      if (score <= out.score && out.best.token >= 0) continue;
      out.score = score;
      out.best = {first_token + c + i, scaled[c + i], 0};
    }
  }
}

bool before(const Candidate& a, const Candidate& b) {
  return a.scaled != b.scaled ? a.scaled > b.scaled : a.token < b.token;
}

// The best SliceSample::kCandidates, sorted, without the banned where a guide bans most: twice as many are gathered
// above a threshold that rises.
std::vector<Candidate> best_candidates(const float* scaled, int columns, TokenId first_token, bool guided) {
  std::vector<Candidate> found;
  float threshold = guided ? std::numeric_limits<float>::lowest() : -kInfinity;
  const auto keep_best = [&] {
    const auto end = found.begin() + std::min<std::ptrdiff_t>(SliceSample::kCandidates, std::ssize(found));
    std::nth_element(found.begin(), end - 1, found.end(), before);
    threshold = end[-1].scaled;
    found.erase(end, found.end());
  };
  for (int c = 0; c < columns; c += kLanes) {
    const int count = std::min(kLanes, columns - c);
    const F8 above = _mm256_cmp_ps(load_first(scaled + c, count), splat(threshold), _CMP_GE_OQ);
    if (_mm256_movemask_ps(above) == 0) continue;
    for (int i = c; i < c + count; ++i) {
      if (scaled[i] >= threshold) found.push_back({first_token + i, scaled[i], 0});
    }
    if (found.size() >= 2 * SliceSample::kCandidates) keep_best();
  }
  if (!found.empty()) keep_best();
  std::sort(found.begin(), found.end(), before);
  return found;
}

// What top_k and min_p keep of a row lies among what they would keep of each slice. What top_p keeps lies among the
// candidates if they hold that part of a whole row, or all but nothing of a slice.
bool candidates_suffice(const SliceSample& sample, int columns, const RowSampling& row) {
  const auto& candidates = sample.candidates;
  // Fewer: the others are banned, or no numbers.
  if (candidates.size() < SliceSample::kCandidates || static_cast<int>(candidates.size()) == columns) return true;
  if (row.top_k > 0 && row.top_k <= SliceSample::kCandidates) return true;
  if (row.min_p > 0 && candidates.back().scaled < sample.max + std::log(row.min_p)) return true;
  if (row.top_k > 0 || row.min_p > 0) return false;  // top_p is of what they leave, which only the whole row tells
  double rest = sample.sum_exp;
  for (const Candidate& c : candidates) rest -= std::exp(static_cast<double>(c.scaled) - sample.max);
  const double may_be_left = row.whole ? 1 - static_cast<double>(row.top_p) - 1e-5 : 1e-9;  // sums differ in rounding
  return rest <= may_be_left * sample.sum_exp;
}

std::vector<Candidate> all_candidates(const float* scaled, int columns, TokenId first_token) {
  std::vector<Candidate> all;
  all.reserve(static_cast<std::size_t>(columns));
  for (int c = 0; c < columns; ++c) all.push_back({first_token + c, scaled[c], 0});
  return all;
}

}  // namespace

SliceSample sample(const float* logits, int columns, TokenId first_token, const RowSampling& row,
                   std::vector<float>& scratch) {
  SliceSample out{.best = {}, .score = -kInfinity};
  if (columns == 0) return out;
  scratch.assign(logits, logits + columns);
  float* scaled = scratch.data();
  const Slice slice{scaled, columns, first_token};
  penalise(slice, row);
  if (!row.allowed.empty()) ban_all_but(row.allowed, slice);
  const F8 temperature = splat(row.temperature > 0 ? row.temperature : 1);
  map_lanes(
      columns, scaled, [temperature](F8 x) { return div(x, temperature); }, scaled);
  out.max = extent_of(scaled, columns).largest;
  if (out.max == -kInfinity && !row.allowed.empty()) return out;  // not one is allowed here
  out.sum_exp = sum_exp(scaled, columns, out.max);
  if (row.truncates()) {
    out.candidates = best_candidates(scaled, columns, first_token, !row.allowed.empty());
    if (!candidates_suffice(out, columns, row)) out.slice = all_candidates(scaled, columns, first_token);
  } else if (row.temperature > 0) {
    find_best(scaled, columns, first_token, row, out);
  } else {
    const auto best = std::max_element(scaled, scaled + columns) - scaled;
    out.best = {first_token + static_cast<TokenId>(best), scaled[best], 0};
    out.score = scaled[best];
  }
  const auto fill = [&](Candidate& c) { c.logit = logits[c.token - first_token]; };
  if (out.best.token >= 0) fill(out.best);
  for (Candidate& c : out.candidates) fill(c);
  for (Candidate& c : out.slice) fill(c);
  return out;
}

}  // namespace computron::kernels
