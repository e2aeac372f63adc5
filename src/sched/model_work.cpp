#include "computron/sched/model_work.h"

#include <algorithm>

namespace computron {
namespace {

constexpr double kGapWeight = 0.1;  // of the latest time between two arrivals

std::size_t generated_tokens(const Request& request) {
  return static_cast<std::size_t>(request.encodes() ? 1 : std::max(request.max_tokens, 1));
}

}  // namespace

void ModelWork::enqueue(Request request) {
  note_arrival(request.arrival_s);
  waiting_backlog_.prompt_tokens += request.prompt.size();
  waiting_backlog_.generated_tokens += generated_tokens(request);
  waiting_backlog_.arrivals_s += request.arrival_s;
  waiting_bytes_ += request.bytes();
  const auto place = std::upper_bound(waiting_.begin(), waiting_.end(), request, earlier);
  waiting_.insert(place, std::move(request));
}

void ModelWork::note_arrival(double arrival_s) {
  const double gap_s = std::max(arrival_s - last_arrival_s_, 0.0);
  if (arrivals_ > 0) {
    const double weight = std::max(kGapWeight, 1.0 / static_cast<double>(arrivals_));
    arrival_gap_s_ += weight * (gap_s - arrival_gap_s_);
    arrival_gap2_s2_ += weight * (gap_s * gap_s - arrival_gap2_s2_);
  }
  ++arrivals_;
  last_arrival_s_ = std::max(last_arrival_s_, arrival_s);
}

void ModelWork::set_blocks(int blocks) {
  ensure(blocks >= blocks_ || blocks == 0, "a cache in use cannot shrink");
  if (blocks == 0) free_blocks_.clear();
  for (int b = blocks_; b < blocks; ++b) free_blocks_.push_back(static_cast<std::uint32_t>(b));
  blocks_ = blocks;
}

void ModelWork::admit_first(SequenceId id) {
  Request& request = waiting_.front();
  waiting_backlog_.prompt_tokens -= request.prompt.size();
  waiting_backlog_.generated_tokens -= generated_tokens(request);
  waiting_backlog_.arrivals_s -= request.arrival_s;
  waiting_bytes_ -= request.bytes();
  blocks_wanted_ += blocks_of(request);
  open_.emplace_back(std::move(request), id, eos_tokens_);
  waiting_.pop_front();
}

std::vector<Sequence*> ModelWork::take_chunks(Limits limits, std::vector<SequenceChunk>& chunks) {
  std::vector<Sequence*> chosen;
  auto next = open_.begin();
  for (std::size_t left = open_.size(); left > 0; --left) {
    const auto sequence = next++;
    if (std::ssize(chosen) == limits.sequences || limits.tokens == 0 || limits.logit_rows == 0) break;
    if (sequence->in_flight()) continue;
    const bool scored = sequence->wants_prompt_scores();
    const int tokens = scored ? std::min(limits.tokens, limits.logit_rows) : limits.tokens;
    if (!sequence->fits_in(tokens)) continue;
    chunks.push_back(sequence->next_chunk(tokens, block_tokens_, free_blocks_));
    const auto taken = static_cast<int>(chunks.back().tokens.size());
    limits.tokens -= taken;
    limits.logit_rows -= scored ? taken : 1;
    chosen.push_back(&*sequence);
    open_.splice(open_.end(), open_, sequence);
  }
  return chosen;
}

Completion ModelWork::close(Sequence* sequence) {
  blocks_wanted_ -= blocks_of(sequence->request());
  free_blocks_.insert(free_blocks_.end(), sequence->blocks().begin(), sequence->blocks().end());
  Completion completion = sequence->take_completion();
  open_.remove_if([sequence](const Sequence& member) { return &member == sequence; });
  return completion;
}

std::vector<SequenceId> ModelWork::restart_all(SequenceId& last) {
  std::vector<SequenceId> known;
  for (Sequence& sequence : open_) {
    if (!sequence.begun()) continue;
    known.push_back(sequence.id());
    sequence.restart(++last);
  }
  set_blocks(0);
  return known;
}

std::size_t ModelWork::unfinished() const {
  return static_cast<std::size_t>(
      std::count_if(open_.begin(), open_.end(), [](const Sequence& s) { return !s.ends_in_flight(); }));
}

bool ModelWork::any_in_flight() const {
  return std::any_of(open_.begin(), open_.end(), [](const Sequence& s) { return s.in_flight(); });
}

bool ModelWork::any_ready() const {
  return std::any_of(open_.begin(), open_.end(), [](const Sequence& s) { return !s.in_flight(); });
}

bool ModelWork::any_catching_up() const {
  return std::any_of(open_.begin(), open_.end(), [](const Sequence& s) { return s.catching_up(); });
}

const Request& ModelWork::oldest() const {
  const Request* oldest = waiting_.empty() ? &open_.front().request() : &waiting_.front();
  for (const Sequence& sequence : open_) {
    if (earlier(sequence.request(), *oldest)) oldest = &sequence.request();
  }
  return *oldest;
}

ModelWork::Backlog ModelWork::backlog() const {
  Backlog sum = waiting_backlog_;
  for (const Sequence& sequence : open_) {
    if (sequence.ends_in_flight()) continue;
    sum.prompt_tokens += static_cast<std::size_t>(sequence.pending_tokens());
    sum.generated_tokens += static_cast<std::size_t>(std::max(sequence.tokens_to_come(), 1));
    sum.arrivals_s += sequence.request().arrival_s;
  }
  return sum;
}

int ModelWork::blocks_for(int sequences) const {
  int blocks = blocks_wanted_;
  const auto more = static_cast<std::size_t>(std::max<std::ptrdiff_t>(sequences - std::ssize(open_), 0));
  for (std::size_t i = 0; i < std::min(more, waiting_.size()); ++i) blocks += blocks_of(waiting_[i]);
  return blocks;
}

}  // namespace computron
