// From the tensor-parallel ranks' top-k logits of a row to a token and its log-probabilities.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "computron/guided/guide.h"
#include "computron/ops/ops.h"

namespace computron {

// How a sequence's tokens are sampled. Ranges are checked where requests are read.
struct SamplingParams {
  float temperature = 0;
  int top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  std::vector<TokenId> stop_tokens = {};  // not sampled before min_tokens are generated
  std::uint32_t min_tokens = 0;
  std::uint32_t prompt_tokens = 0;  // of the sequence's tokens, these are not generated
  std::uint64_t key = 0;            // of the noise
  // What the generated text is to be (guided/guide_spec.h); null: anything. Copies share it.
  std::shared_ptr<const std::string> guide = {};
  std::vector<TokenId> generated = {};  // with a guide: those behind the prompt, when the sequence begins (again)

  bool operator==(const SamplingParams& other) const;  // of guides: their texts
  bool penalises() const { return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0; }
  // False: the best token of the plain logits, as if there were no parameters.
  bool samples() const {
    return temperature > 0 || penalises() || !logit_bias.empty() || min_tokens > 0 || guide != nullptr;
  }
};

// A sequence's parameters and, where penalties need them, the tokens that it holds.
class SequenceSampling {
 public:
  explicit SequenceSampling(SamplingParams params);
  const SamplingParams& params() const { return params_; }

  // Tokens [start, start + tokens.size()) of the sequence, which come in order.
  void append(std::uint32_t start, std::span<const TokenId> tokens);
  // Finds out which tokens `guide` allows next, the one that the parameters name, for the model's vocabulary; row()
  // says so. To be called before each row() where they name one.
  void allow_tokens(Guide& guide);
  // For the token at `position`; borrows from this object until the next append(). `whole`: the logits are not cut over
  // ranks.
  RowSampling row(std::uint32_t position, bool whole) const;

 private:
  SamplingParams params_;
  std::vector<TokenUse> used_;
  std::unordered_map<TokenId, std::size_t> places_;  // in used_
  std::size_t followed_ = 0;                         // tokens that text_ has been told
  GuidedText text_;
  TokenMask allowed_;
};

struct SampledRow {
  TokenId token = 0;                           // greedy: the largest logit, the smaller token on ties; -1: the guide
                                               // allows none, and the rest means nothing
  float logprob = 0;                           // of `token`
  float target_logprob = 0;                    // of the asked-for token; 0 if none
  bool finite = true;                          // false: NaN or infinity among the logits; the rest means nothing
  std::vector<std::pair<TokenId, float>> top;  // up to `top` best tokens with their log-probabilities
};

// `parts` holds one top-k a rank, in rank order: the result has the same bits wherever it is computed.
// log p(x) = logit(x) − max − log Σ exp(logit − max), the last two in double.
SampledRow sample_greedy(std::span<const TopLogits* const> parts, int top);

// The token that a row's slices, one a rank, lead to, -1 if none is allowed; nothing if it takes more than their
// candidates to tell (then the slices of all ranks do: sample_from_all). Error{kInternal} for no slice with a token.
std::optional<Candidate> sample_from_slices(const RowSampling& row, std::span<const SliceSample* const> parts);
// `all` of the row's tokens, in any order.
Candidate sample_from_all(const RowSampling& row, std::vector<Candidate> all);

// `row` with the token that was sampled, or none, in place of the best.
void take_sampled(const Candidate& sampled, std::span<const TopLogits* const> parts, SampledRow& row);

}  // namespace computron
