#include "computron/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace computron {
namespace {

// max and log Σ exp over all parts.
double log_normalizer(std::span<const TopLogits* const> parts) {
  float max = -INFINITY;
  for (const TopLogits* part : parts) {
    if (part->count > 0) max = std::max(max, part->max);
  }
  double sum = 0;
  for (const TopLogits* part : parts) {
    if (part->count > 0) sum += part->sum_exp * std::exp(static_cast<double>(part->max) - max);
  }
  return max + std::log(sum);
}

std::vector<std::pair<TokenId, float>> best_logits(std::span<const TopLogits* const> parts, std::size_t count) {
  std::vector<std::pair<TokenId, float>> all;
  for (const TopLogits* part : parts) {
    for (int i = 0; i < part->count; ++i) all.emplace_back(part->tokens[i], part->logits[i]);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  all.resize(std::min(all.size(), count));
  return all;
}

bool before(const Candidate& a, const Candidate& b) {
  return a.scaled != b.scaled ? a.scaled > b.scaled : a.token < b.token;
}

// Tokens of a row, best first, and what is known of all of them together.
struct Ranking {
  std::vector<Candidate> tokens;
  bool complete = false;  // no token is left out
  double sum_exp = 0;     // Σ exp(scaled − the best's) over the whole row
};

double weight(const Ranking& ranking, const Candidate& c) {
  return std::exp(static_cast<double>(c.scaled) - ranking.tokens.front().scaled);
}

// How many of the tokens are kept; nothing if more may be than the ranking holds.
std::optional<std::size_t> kept(const RowSampling& row, const Ranking& ranking) {
  const auto& tokens = ranking.tokens;
  std::size_t count = tokens.size();
  bool certain = ranking.complete;
  if (row.min_p > 0) {
    const double least = std::log(static_cast<double>(row.min_p)) + tokens.front().scaled;
    const auto end =
        std::find_if(tokens.begin(), tokens.end(), [least](const Candidate& c) { return c.scaled < least; });
    certain |= end != tokens.end();
    count = static_cast<std::size_t>(end - tokens.begin());
  }
  if (row.top_k > 0 && static_cast<std::size_t>(row.top_k) <= count) {
    count = static_cast<std::size_t>(row.top_k);
    certain = true;
  }
  if (row.top_p >= 1) return certain ? std::optional(count) : std::nullopt;
  double sum_exp = ranking.sum_exp;
  if (certain) {
    sum_exp = 0;
    for (std::size_t i = 0; i < count; ++i) sum_exp += weight(ranking, tokens[i]);
  }
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sum += weight(ranking, tokens[i]);
    // Uncertain: `sum_exp` is at least what the others leave, so these are enough, but perhaps not all are kept.
    if (sum >= row.top_p * sum_exp)
      return certain || (row.min_p == 0 && row.top_k == 0) ? std::optional(i + 1) : std::nullopt;
  }
  return certain ? std::optional(count) : std::nullopt;
}

// The best of the first `count` with their noise.
Candidate best_with_noise(const RowSampling& row, const std::vector<Candidate>& tokens, std::size_t count) {
  const Candidate* best = nullptr;
  double best_score = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double score = tokens[i].scaled + noise(row, tokens[i].token);
    if (best != nullptr && (score < best_score || (score == best_score && best->token < tokens[i].token))) continue;
    best = &tokens[i];
    best_score = score;
  }
  return *best;
}

// Whether a guide leaves no token at all. `best`: of all tokens, null if there is none.
bool none_allowed(const RowSampling& row, const Candidate* best) {
  ensure(best != nullptr || !row.allowed.empty(), "no tokens to sample from");
  return best == nullptr || (!row.allowed.empty() && best->scaled == -INFINITY);
}

const Candidate* first_of(const std::vector<Candidate>& tokens) { return tokens.empty() ? nullptr : &tokens.front(); }

// The slices' candidates, cut where one that is left out of a slice might come before.
Ranking rank_candidates(std::span<const SliceSample* const> parts) {
  Ranking ranking;
  ranking.complete = true;
  Candidate floor{.token = -1, .scaled = -INFINITY};  // the best of the last ones of slices that left some out
  float max = -INFINITY;
  for (const SliceSample* part : parts) {
    ranking.tokens.insert(ranking.tokens.end(), part->candidates.begin(), part->candidates.end());
    if (!part->candidates.empty()) max = std::max(max, part->max);
    if (std::ssize(part->candidates) < SliceSample::kCandidates) continue;
    ranking.complete = false;
    if (floor.token < 0 || before(part->candidates.back(), floor)) floor = part->candidates.back();
  }
  std::sort(ranking.tokens.begin(), ranking.tokens.end(), before);
  if (floor.token >= 0) {
    const auto end = std::upper_bound(ranking.tokens.begin(), ranking.tokens.end(), floor, before);
    ranking.tokens.erase(end, ranking.tokens.end());
  }
  for (const SliceSample* part : parts) {
    if (!part->candidates.empty() && part->max != -INFINITY)
      ranking.sum_exp += part->sum_exp * std::exp(static_cast<double>(part->max) - max);
  }
  return ranking;
}

}  // namespace

bool SamplingParams::operator==(const SamplingParams& other) const {
  const auto fields = [](const SamplingParams& p) {
    return std::tie(p.temperature, p.top_k, p.top_p, p.min_p, p.repetition_penalty, p.frequency_penalty,
                    p.presence_penalty, p.logit_bias, p.stop_tokens, p.min_tokens, p.prompt_tokens, p.key, p.generated);
  };
  const bool same_guide = guide == nullptr || other.guide == nullptr ? guide == other.guide : *guide == *other.guide;
  return same_guide && fields(*this) == fields(other);
}

SequenceSampling::SequenceSampling(SamplingParams params)
    : params_(std::move(params)), followed_(params_.generated.size()) {
  for (const TokenId token : params_.generated) text_.append(token);
}

void SequenceSampling::allow_tokens(Guide& guide) { text_.allow(guide, params_.stop_tokens, allowed_); }

void SequenceSampling::append(std::uint32_t start, std::span<const TokenId> tokens) {
  for (std::size_t i = 0; params_.guide != nullptr && i < tokens.size(); ++i) {
    if (start + i < params_.prompt_tokens + followed_) continue;
    text_.append(tokens[i]);
    ++followed_;
  }
  if (!params_.penalises()) return;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto [place, is_new] = places_.emplace(tokens[i], used_.size());
    if (is_new) used_.push_back({.token = tokens[i]});
    if (start + i >= params_.prompt_tokens) ++used_[place->second].generated;
  }
}

RowSampling SequenceSampling::row(std::uint32_t position, bool whole) const {
  const bool too_early = position - params_.prompt_tokens < params_.min_tokens;
  return {.samples = params_.samples(),
          .temperature = params_.temperature,
          .top_k = params_.top_k,
          .top_p = params_.top_p,
          .min_p = params_.min_p,
          .repetition_penalty = params_.repetition_penalty,
          .frequency_penalty = params_.frequency_penalty,
          .presence_penalty = params_.presence_penalty,
          .used = used_,
          .bias = params_.logit_bias,
          .banned = too_early ? std::span(params_.stop_tokens) : std::span<const TokenId>{},
          .allowed = allowed_,
          .key = params_.key,
          .position = position,
          .whole = whole};
}

SampledRow sample_greedy(std::span<const TopLogits* const> parts, int top) {
  SampledRow row;
  for (const TopLogits* part : parts) row.finite &= part->finite != 0;
  if (!row.finite) return row;

  const double normalizer = log_normalizer(parts);
  row.top = best_logits(parts, static_cast<std::size_t>(std::max(top, 1)));
  ensure(!row.top.empty(), "no logits to sample from");
  for (auto& [token, logit] : row.top) logit = static_cast<float>(logit - normalizer);
  row.token = row.top.front().first;
  row.logprob = row.top.front().second;
  for (const TopLogits* part : parts) {
    if (part->has_target) row.target_logprob = static_cast<float>(part->target_logit - normalizer);
  }
  row.top.resize(std::min(row.top.size(), static_cast<std::size_t>(std::max(top, 0))));
  return row;
}

std::optional<Candidate> sample_from_slices(const RowSampling& row, std::span<const SliceSample* const> parts) {
  if (row.truncates()) {
    const Ranking ranking = rank_candidates(parts);
    if (none_allowed(row, first_of(ranking.tokens))) return Candidate{};
    const auto count = kept(row, ranking);
    if (!count) return std::nullopt;
    return best_with_noise(row, ranking.tokens, *count);
  }
  const SliceSample* best = nullptr;  // slices come in the order of tokens: of equals the first
  for (const SliceSample* part : parts) {
    if (part->best.token >= 0 && (best == nullptr || part->score > best->score)) best = part;
  }
  if (none_allowed(row, best == nullptr ? nullptr : &best->best)) return Candidate{};
  return best->best;
}

Candidate sample_from_all(const RowSampling& row, std::vector<Candidate> all) {
  std::sort(all.begin(), all.end(), before);
  if (none_allowed(row, first_of(all))) return {};
  Ranking ranking{std::move(all), true, 0};
  return best_with_noise(row, ranking.tokens, *kept(row, ranking));
}

void take_sampled(const Candidate& sampled, std::span<const TopLogits* const> parts, SampledRow& row) {
  row.token = sampled.token;
  if (sampled.token < 0) return;
  row.logprob = static_cast<float>(sampled.logit - log_normalizer(parts));
}

}  // namespace computron
