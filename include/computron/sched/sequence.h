// A request being served: its tokens so far, how many of them are in the cache, which cache blocks it uses, and what
// its result holds already. It owns all of that and borrows nothing; the cache is an argument, always the same one.
//
// An encoder's sequence is one chunk, never cut, since every token sees every other: then it has its values and is
// finished. An embedder's, a decoder's, is finished with its last chunk, and those before have no result. Methods throw
// Error{kInternal} when called against what they require: a bug of the scheduler.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "computron/model/sampler.h"
#include "computron/runtime/step.h"
#include "computron/sched/cache_blocks.h"
#include "computron/sched/request.h"

namespace computron {

// What the ranks have computed of a pass, in the order of its chunks; sequences take theirs from the front.
struct PassResults {
  std::span<const SampledRow> rows = {};             // of decoders
  std::span<const std::vector<float>> encoded = {};  // of encoders and embedders: one vector a chunk that has a result
};

class Sequence {
 public:
  // `id` is its number in steps, `eos_tokens` the model's.
  Sequence(Request request, SequenceId id, std::span<const TokenId> eos_tokens);

  SequenceId id() const { return id_; }
  const Request& request() const { return request_; }
  // Request::aged.
  void set_aged(bool aged) { request_.aged = aged; }
  bool in_flight() const { return in_flight_; }
  bool finished() const { return finished_; }
  // Tokens whose positions are not computed yet: a prompt's rest, or one generated token.
  int pending_tokens() const { return static_cast<int>(tokens_.size()) - computed_; }
  // Tokens that may still be generated.
  int tokens_to_come() const { return request_.encodes() ? 0 : request_.max_tokens - completion_.generated_tokens; }
  int computed_tokens() const { return computed_; }
  // It has not got beyond what it had computed before its cache was lost.
  bool catching_up() const { return computed_ <= lost_; }
  // The ranks know it: it has been in a step.
  bool begun() const { return begun_; }
  // Whether its next chunk, or a part of it where it may be cut, is at most `tokens` long.
  bool fits_in(int tokens) const { return tokens >= (request_.is_whole() ? pending_tokens() : 1); }
  // What is in flight is its last chunk, whatever comes of it.
  bool ends_in_flight() const { return in_flight_ && pending_tokens() == 0 && tokens_to_come() <= 1; }

  // Its cache is gone, and its list of blocks with it: everything is computed again, under a new number, to the same
  // bits. Not while in flight.
  void restart(SequenceId id);
  // Its blocks are given back, and it waits for restart() with the tokens that it has. Not while in flight.
  void preempt(CacheBlocks& cache);
  // Begins behind the blocks that others have filled with the beginning of its tokens: a prefix hit, with at least one
  // token left to compute. Does nothing where the request may not (Request::may_reuse_prefix). Only before it has
  // begun.
  void reuse_prefix(CacheBlocks& cache);

  // The next chunk of at most `max_tokens` pending tokens; blocks allocated from `cache` join the list as it grows.
  // The sequence is in flight until take_results().
  SequenceChunk next_chunk(int max_tokens, CacheBlocks& cache);
  // What the chunk in flight asked for; consumes it from the front of `results`. `now_s` in seconds after the start of
  // the job.
  void take_results(PassResults& results, double now_s);

  // Cache blocks that it uses, in the order of its tokens.
  const std::vector<std::uint32_t>& blocks() const { return blocks_; }
  // Prompt, then generated.
  std::span<const TokenId> tokens() const { return tokens_; }
  // Once it is finished.
  Completion take_completion() { return std::move(completion_); }

 private:
  std::optional<SamplingParams> sampling() const;
  SequenceChunk::Output output_of_chunk(int end) const;
  void take_values(std::span<const std::vector<float>>& encoded, double now_s);
  void take_rows(std::span<const SampledRow>& rows, double now_s);
  void score_prompt_row(std::size_t position, const SampledRow& row);
  void append_sampled(const SampledRow& row, double now_s);
  void fail(const char* code, const char* message);

  Request request_;
  SequenceId id_;
  std::vector<TokenId> stop_tokens_;
  std::vector<TokenId> tokens_;  // prompt, then generated
  std::vector<std::uint32_t> blocks_;
  std::size_t blocks_told_ = 0;  // so many of them have been in a step
  int computed_ = 0;
  int lost_ = -1;  // computed tokens that were lost, at most; -1: none ever
  bool begun_ = false;
  bool in_flight_ = false;
  bool finished_ = false;
  SequenceChunk::Output chunk_output_ = SequenceChunk::kNone;  // of the chunk in flight
  int chunk_start_ = 0, chunk_tokens_ = 0;
  Completion completion_;
};

}  // namespace computron
