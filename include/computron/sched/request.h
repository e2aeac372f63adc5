// What a person asks for and what becomes of it, as the scheduler sees it: tokens and numbers, no text, no JSON. Plain
// values; times are seconds after the start of the job.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "computron/base/types.h"
#include "computron/model/sampler.h"

namespace computron {

enum class Task : std::uint8_t { kComplete, kEmbed, kClassify };

// Sees the tokens of a sequence as rank 0 gets them, in order and each once, whatever becomes of its cache, and may end
// it: where a text ends, say, of which the scheduler knows nothing.
class TokenWatch {
 public:
  virtual ~TokenWatch() = default;
  // True when the sequence ends with this token, which is a part of the result.
  virtual bool ends_with(TokenId token) = 0;
};

constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

// One sequence that somebody wants computed. A line of the input that wants several (a list of inputs to embed) is
// several requests of one id; whoever submits them puts their completions together.
struct Request {
  RequestId id = 0;
  std::uint32_t part = 0;  // tells the requests of one id apart: 0, 1, ...
  ModelId model = 0;
  Task task = Task::kComplete;
  std::vector<TokenId> prompt;  // of an image: one for the class token and one for each patch, whatever they are
  int max_tokens = 16;          // 0 only with echo: the prompt is scored, nothing is generated
  int logprobs = -1;            // -1: none; k ≥ 0: the chosen token's and the k best ones' (k ≤ 20)
  bool echo = false;            // the prompt's tokens come back too, with their log-probabilities if asked for
  bool ignore_eos = false;
  bool long_factors = false;               // longrope: prompt and completion may pass the original positions
  SamplingParams sampling = {};            // prompt_tokens and stop_tokens are filled in when it begins
  std::vector<TokenId> stop_tokens;        // end the sequence like the model's own end-of-sequence tokens
  std::shared_ptr<TokenWatch> watch = {};  // its own, or null; sees no token of `stop_tokens`
  double arrival_s = 0;                    // seconds after the start of the job
  double deadline_s = kNoDeadline;         // seconds after its arrival by which it should have ended
  std::int32_t priority = 0;               // the lower the sooner, whatever the policy
  std::uint64_t tenant = 0;                // whose it is, a number that tells them apart; 0: nobody's
  bool aged = false;                       // it has been passed by for too long (aging.h)

  static constexpr std::int32_t kInteractive = -1;  // the priority of what somebody waits for
  static constexpr std::int32_t kAged = std::numeric_limits<std::int32_t>::min();  // an urgency, and nobody's priority

  // Of encoders and embedders, whose task is to embed or to classify.
  int values = 0;            // that come back: elements of the vector, or classes
  bool in_chunks = false;    // the model is a decoder: passes may take a part of the input each
  bool of_all_rows = false;  // the result is made of the rows of all tokens, and not of one row: mean pooling
  std::vector<std::int32_t> token_type_ids = {};  // segment of every token of the prompt; empty: all 0
  std::vector<float> patches = {};                // images: as in SequenceChunk

  // What is compared wherever one request is served before another, the lower first: equal ones are served by age, and
  // by the policy. Aged ones go before all others.
  std::int32_t urgency() const { return aged ? kAged : priority; }
  bool encodes() const { return task != Task::kComplete; }
  // Its input is computed in one pass, since every token sees every other.
  bool is_whole() const { return encodes() && !in_chunks; }
  // When it should have ended: seconds after the start of the job.
  double due_s() const { return arrival_s + deadline_s; }
  // True when it asks for nothing that needs a forward pass (echo alone).
  bool needs_no_pass() const { return !encodes() && max_tokens == 0 && logprobs < 0; }
  // The prompt's tokens get a row of logits each.
  bool wants_prompt_scores() const { return echo && logprobs >= 0; }
  // Whether its sequence may begin behind tokens that others have computed: nothing about them is asked for, and the
  // ranks need not see them to sample its tokens. A mean over all rows needs those that would be skipped.
  bool may_reuse_prefix() const {
    return !is_whole() && !of_all_rows && !wants_prompt_scores() && !sampling.penalises();
  }
  // What its cache holds depends on more than its tokens: only requests of one root share the beginnings of theirs.
  std::uint64_t prefix_root() const { return long_factors ? 1 : 0; }
  // Tokens that will be in the cache at the end, at most. The last generated one is never looked at again.
  int cache_tokens() const { return static_cast<int>(prompt.size()) + (encodes() ? 0 : std::max(max_tokens - 1, 0)); }
  // Host memory that it takes while it waits, but for a constant.
  std::size_t bytes() const {
    return sizeof(TokenId) * prompt.size() + sizeof(std::int32_t) * token_type_ids.size() +
           sizeof(float) * patches.size();
  }
};

// By arrival; line and part tell equal arrivals apart.
inline bool arrives_earlier(const Request& a, const Request& b) {
  return std::tie(a.arrival_s, a.id, a.part) < std::tie(b.arrival_s, b.id, b.part);
}

// The order in which the requests of a model are served.
inline bool goes_before(const Request& a, const Request& b) {
  return a.urgency() != b.urgency() ? a.urgency() < b.urgency() : arrives_earlier(a, b);
}

enum class FinishReason : std::uint8_t { kStop, kLength };

// A token of a result with what was asked of its distribution.
struct ScoredToken {
  TokenId token = 0;
  bool has_logprob = false;  // false for a prompt's first token and when no logprobs were asked for
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;  // best first
};

// The end of a request. With a non-empty error_code the other fields say how far it got and are not results.
struct Completion {
  RequestId id = 0;
  std::uint32_t part = 0;
  ModelId model = 0;
  std::vector<ScoredToken> prompt;  // only with echo
  std::vector<ScoredToken> tokens;  // generated; an end-of-sequence token that stopped it is not among them
  FinishReason finish_reason = FinishReason::kLength;
  int prompt_tokens = 0;
  int generated_tokens = 0;  // the stopping token included
  std::string error_code;    // as in result lines: context_length_exceeded, numerical_error, ...
  std::string error_message;
  double arrival_s = 0;  // all seconds after the start of the job
  double due_s = kNoDeadline;
  double first_token_s = 0;  // of encoders: when the values came
  double finished_s = 0;
  std::vector<float> values = {};  // of encoders: the vector, or the scores of the classes
  std::uint32_t group = 0;         // of ranks, that served it
};

// The end of a request that comes to nothing, as it arrives: the error is left to fill in.
inline Completion ended(const Request& request) {
  Completion completion;
  completion.id = request.id;
  completion.part = request.part;
  completion.model = request.model;
  completion.prompt_tokens = static_cast<int>(request.prompt.size());
  completion.arrival_s = completion.finished_s = request.arrival_s;
  completion.due_s = request.due_s();
  return completion;
}

}  // namespace computron
