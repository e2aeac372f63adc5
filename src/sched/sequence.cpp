#include "computron/sched/sequence.h"

#include <algorithm>
#include <cmath>

namespace computron {
namespace {

constexpr int kReserved = 64;  // generated tokens that there is room for from the start

}  // namespace

Sequence::Sequence(Request request, SequenceId id, std::span<const TokenId> eos_tokens)
    : request_(std::move(request)), id_(id), stop_tokens_(request_.stop_tokens) {
  const auto to_come = static_cast<std::size_t>(std::clamp(request_.encodes() ? 0 : request_.max_tokens, 0, kReserved));
  tokens_.reserve(request_.prompt.size() + to_come);
  tokens_.assign(request_.prompt.begin(), request_.prompt.end());
  if (!request_.ignore_eos) stop_tokens_.insert(stop_tokens_.end(), eos_tokens.begin(), eos_tokens.end());
  completion_ = ended(request_);  // what needs no pass ends as it arrives
  completion_.tokens.reserve(to_come);
  if (request_.echo) {
    for (const TokenId token : request_.prompt) completion_.prompt.push_back({.token = token, .top = {}});
  }
}

void Sequence::restart(SequenceId id) {
  ensure(!in_flight_, "a sequence in flight cannot begin again");
  id_ = id;
  if (begun_) lost_ = std::max(lost_, computed_);
  computed_ = 0;
  begun_ = false;
  blocks_.clear();
  blocks_told_ = 0;
}

// What it had computed is no loss to be caught up with: catching_up() is about models that evict each other's caches.
void Sequence::preempt(CacheBlocks& cache) {
  cache.release(blocks_);
  restart(id_);
  lost_ = -1;
}

void Sequence::reuse_prefix(CacheBlocks& cache) {
  ensure(!begun_, "a sequence that has begun cannot begin elsewhere");
  if (!request_.may_reuse_prefix()) return;
  cache.release(blocks_);
  blocks_ = cache.acquire_prefix(tokens_, request_.prefix_root());
  computed_ = static_cast<int>(blocks_.size()) * cache.block_tokens();
}

SequenceChunk::Output Sequence::output_of_chunk(int end) const {
  if (request_.encodes() && end < static_cast<int>(tokens_.size())) return SequenceChunk::kNone;
  if (request_.task == Task::kEmbed) return SequenceChunk::kPooledEmbedding;
  if (request_.task == Task::kClassify) return SequenceChunk::kScores;
  if (chunk_start_ < completion_.prompt_tokens && request_.wants_prompt_scores()) return SequenceChunk::kAll;
  return end == static_cast<int>(tokens_.size()) ? SequenceChunk::kLast : SequenceChunk::kNone;
}

SequenceChunk Sequence::next_chunk(int max_tokens, CacheBlocks& cache) {
  ensure(!in_flight_ && !finished_ && pending_tokens() > 0 && fits_in(max_tokens), "sequence has nothing to compute");
  chunk_start_ = computed_;
  chunk_tokens_ = std::min(pending_tokens(), max_tokens);
  const int end = chunk_start_ + chunk_tokens_;
  chunk_output_ = output_of_chunk(end);
  SequenceChunk chunk{
      .sequence = id_,
      .start = static_cast<std::uint32_t>(chunk_start_),
      .tokens = {tokens_.begin() + chunk_start_, tokens_.begin() + end},
      .new_blocks = {},
      .output = chunk_output_,
      .top = static_cast<std::uint8_t>(std::max(request_.logprobs, 0)),
      .long_factors = request_.long_factors,
      .after_last = end == static_cast<int>(tokens_.size()) ? -1 : tokens_[end],
      .values = chunk_output_ < SequenceChunk::kPooledEmbedding ? 0 : static_cast<std::uint32_t>(request_.values),
      .sampling = begun() ? std::nullopt : sampling(),
      .token_type_ids = std::move(request_.token_type_ids),
      .patches = std::move(request_.patches)};  // an encoder's only chunk: nobody wants them again
  while (static_cast<int>(blocks_.size()) * cache.block_tokens() < end) blocks_.push_back(cache.allocate());
  chunk.new_blocks.assign(blocks_.begin() + static_cast<std::ptrdiff_t>(blocks_told_), blocks_.end());
  blocks_told_ = blocks_.size();
  begun_ = true;
  computed_ = end;
  in_flight_ = true;
  return chunk;
}

// For the ranks, which see prompt and generated tokens alike.
std::optional<SamplingParams> Sequence::sampling() const {
  if (!request_.sampling.samples()) return std::nullopt;
  SamplingParams params = request_.sampling;
  params.prompt_tokens = static_cast<std::uint32_t>(completion_.prompt_tokens);
  params.stop_tokens = stop_tokens_;
  if (params.guide) params.generated.assign(tokens_.begin() + completion_.prompt_tokens, tokens_.end());
  return params;
}

void Sequence::take_results(PassResults& results, double now_s) {
  in_flight_ = false;
  request_.encodes() ? take_values(results.encoded, now_s) : take_rows(results.rows, now_s);
}

void Sequence::take_values(std::span<const std::vector<float>>& encoded, double now_s) {
  if (chunk_output_ == SequenceChunk::kNone) return;
  ensure(!encoded.empty() && std::ssize(encoded.front()) == request_.values, "other values than the step asked for");
  const std::vector<float>& mine = encoded.front();
  encoded = encoded.subspan(1);
  if (!std::all_of(mine.begin(), mine.end(), [](float value) { return std::isfinite(value); })) {
    fail("numerical_error", "the model's output holds a NaN or an infinity");
    return;
  }
  completion_.values = mine;
  completion_.first_token_s = now_s;
  finished_ = true;
}

void Sequence::take_rows(std::span<const SampledRow>& rows, double now_s) {
  const std::size_t count = chunk_output_ == SequenceChunk::kNone   ? 0
                            : chunk_output_ == SequenceChunk::kLast ? 1
                                                                    : static_cast<std::size_t>(chunk_tokens_);
  ensure(count <= rows.size(), "fewer rows of logits than the step asked for");
  const auto mine = rows.first(count);
  rows = rows.subspan(count);
  if (!std::all_of(mine.begin(), mine.end(), [](const SampledRow& row) { return row.finite; })) {
    fail("numerical_error", "the model's logits hold a NaN or an infinity");
    return;
  }
  if (chunk_output_ == SequenceChunk::kAll) {
    for (std::size_t i = 0; i < count; ++i) score_prompt_row(chunk_start_ + i, mine[i]);
  }
  if (count > 0 && computed_ == static_cast<int>(tokens_.size())) append_sampled(mine.back(), now_s);
}

// The row at a position tells of the token behind it.
void Sequence::score_prompt_row(std::size_t position, const SampledRow& row) {
  if (position + 1 >= request_.prompt.size()) return;
  ScoredToken& next = completion_.prompt[position + 1];
  next.has_logprob = true;
  next.logprob = row.target_logprob;
  next.top.assign(row.top.begin(), row.top.begin() + std::min<std::size_t>(row.top.size(), request_.logprobs));
}

void Sequence::append_sampled(const SampledRow& row, double now_s) {
  if (completion_.generated_tokens == 0) completion_.first_token_s = now_s;
  if (request_.max_tokens == 0) {
    finished_ = true;
    return;
  }
  if (row.token < 0) {
    fail("guide_dead_end", "no token of the model's vocabulary continues what was generated as the request asks");
    return;
  }
  ++completion_.generated_tokens;
  if (std::find(stop_tokens_.begin(), stop_tokens_.end(), row.token) != stop_tokens_.end()) {
    completion_.finish_reason = FinishReason::kStop;
    finished_ = true;
    return;
  }
  tokens_.push_back(row.token);
  ScoredToken token{.token = row.token, .has_logprob = request_.logprobs >= 0, .logprob = row.logprob, .top = {}};
  if (token.has_logprob) {
    token.top.assign(row.top.begin(), row.top.begin() + std::min<std::size_t>(row.top.size(), request_.logprobs));
  }
  completion_.tokens.push_back(std::move(token));
  finished_ = completion_.generated_tokens >= request_.max_tokens;
  if (request_.watch == nullptr || !request_.watch->ends_with(row.token)) return;
  completion_.finish_reason = FinishReason::kStop;
  finished_ = true;
}

void Sequence::fail(const char* code, const char* message) {
  completion_.error_code = code;
  completion_.error_message = message;
  finished_ = true;
}

}  // namespace computron
