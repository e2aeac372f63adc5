// How a token is sampled from a row of logits that lies cut over ranks.
//
// Order: repetition, frequency and presence penalties, bias, bans, among which are tokens that are not allowed; then
// everything is divided by the temperature; then min_p, top_k and top_p (of what the first two leave) take tokens away;
// then the token is the one with the largest scaled logit + Gumbel noise. The noise of a token is a function of (key,
// position, token), so one seed gives one text wherever the row is cut, whatever else is in the batch, and after a
// restart.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "computron/base/host_device.h"
#include "computron/base/random.h"
#include "computron/base/types.h"

namespace computron {

// A token that the sequence holds, and how often it was generated (0: it is in the prompt only).
struct TokenUse {
  TokenId token = 0;
  std::uint32_t generated = 0;
};

// How one row is to be sampled. Spans are borrowed until the stream has run.
struct RowSampling {
  bool samples = false;   // false: nothing is sampled, the best token of the plain logits is taken
  float temperature = 0;  // 0: the best token after penalties
  int top_k = 0;          // 0: all
  float top_p = 1;
  float min_p = 0;                      // tokens at least so probable, relative to the best
  float repetition_penalty = 1;         // logits of tokens in the sequence: divided by it above 0, multiplied below
  float frequency_penalty = 0;          // taken off for each time a token was generated
  float presence_penalty = 0;           // taken off if it was generated at all
  std::span<const TokenUse> used = {};  // each token once
  std::span<const std::pair<TokenId, float>> bias = {};
  std::span<const TokenId> banned = {};
  // Bit t % 32 of word t / 32: token t may be drawn. Empty: all may.
  std::span<const std::uint32_t> allowed = {};
  std::uint64_t key = 0;
  std::uint32_t position = 0;  // of the token to be sampled, in its sequence
  bool whole = true;           // the slice is the whole row

  bool truncates() const { return temperature > 0 && (top_k > 0 || top_p < 1 || min_p > 0); }
};

// The noise of a token that is to be sampled at `position` of the sequence with this key.
COMPUTRON_HOST_DEVICE inline double noise(std::uint64_t key, std::uint32_t position, TokenId token) {
  const auto t = static_cast<std::uint32_t>(token);
  return gumbel(philox({t / 4, position, 0, 0}, key)[t % 4]);
}
inline double noise(const RowSampling& row, TokenId token) { return noise(row.key, row.position, token); }

struct Candidate {
  TokenId token = -1;
  float scaled = 0;  // after penalties, over the temperature
  float logit = 0;   // the model's
};

// The candidates of one slice of a row.
struct SliceSample {
  static constexpr int kCandidates = 1024;

  Candidate best;                          // token -1, or scaled to minus infinity: the slice has no token
  double score = 0;                        // of `best`: scaled logit + noise, or without noise at temperature 0
  float max = 0;                           // of the scaled logits
  double sum_exp = 0;                      // Σ exp(scaled − max)
  std::vector<Candidate> candidates = {};  // where the row truncates: the best kCandidates, best first, ties by token
  std::vector<Candidate> slice = {};       // all of it, by token, where the candidates may not be enough
};

}  // namespace computron
