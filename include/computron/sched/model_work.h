// The requests of one model: those waiting, those begun, and the blocks of cache that these have.
#pragma once

#include <deque>
#include <list>
#include <tuple>
#include <vector>

#include "computron/sched/sequence.h"

namespace computron {

class ModelWork {
 public:
  ModelWork(int block_tokens, std::vector<TokenId> eos_tokens)
      : block_tokens_(block_tokens), eos_tokens_(std::move(eos_tokens)) {}

  static bool earlier(const Request& a, const Request& b) {
    return std::tie(a.arrival_s, a.id, a.part) < std::tie(b.arrival_s, b.id, b.part);
  }

  // One that was read late goes before those that arrived after it.
  void enqueue(Request request);
  const std::deque<Request>& waiting() const { return waiting_; }
  std::size_t waiting_bytes() const { return waiting_bytes_; }
  // Admitted and not ended; the longest without a chunk first.
  std::list<Sequence>& open() { return open_; }
  const std::list<Sequence>& open() const { return open_; }

  int blocks_of(const Request& request) const { return ceil_div(Sequence::cache_tokens(request), block_tokens_); }
  // Blocks that the open sequences may come to fill together.
  int blocks_wanted() const { return blocks_wanted_; }
  // Blocks that exist: what the model's cache frames have been made to hold.
  int blocks() const { return blocks_; }
  void set_blocks(int blocks);

  // The first waiting request becomes an open sequence; its blocks must be wanted (blocks_wanted() grows by them).
  void admit_first(SequenceId id);
  // What a step may hold.
  struct Limits {
    int sequences = 0;
    int tokens = 0;
    int logit_rows = 0;
  };
  // Chunks of the first sequences not in flight; blocks() must have been made enough for them. One that does not fit
  // into what is left of the limits is among the first the next time.
  std::vector<Sequence*> take_chunks(Limits limits, std::vector<SequenceChunk>& chunks);
  // The sequence has ended: its blocks are free.
  Completion close(Sequence* sequence);
  // The cache is gone: open sequences begin again, numbered from ++last. Returns the numbers that the ranks know.
  std::vector<SequenceId> restart_all(SequenceId& last);

  // Open sequences that do not end with what is in flight.
  std::size_t unfinished() const;
  bool any_in_flight() const;
  bool any_ready() const;
  bool any_catching_up() const;
  // Of all requests so far, and a moving mean of the time between two.
  double last_arrival_s() const { return last_arrival_s_; }
  double arrival_gap_s() const { return arrival_gap_s_; }
  double arrival_gap2_s2() const { return arrival_gap2_s2_; }
  // Of the waiting and open ones; there is one.
  const Request& oldest() const;

  // Sums for predictions.
  struct Backlog {
    std::size_t prompt_tokens = 0;     // to be computed
    std::size_t generated_tokens = 0;  // at most
    double arrivals_s = 0;
  };
  Backlog backlog() const;
  // Blocks that the first `sequences` of open and waiting may come to fill.
  int blocks_for(int sequences) const;

  StepId last_used = 0;    // its latest pass; 0: none
  double last_pass_s = 0;  // when that was planned

 private:
  void note_arrival(double arrival_s);

  int block_tokens_;
  std::vector<TokenId> eos_tokens_;
  std::deque<Request> waiting_;  // the earliest first
  Backlog waiting_backlog_;
  std::size_t waiting_bytes_ = 0;
  std::list<Sequence> open_;
  std::size_t arrivals_ = 0;
  double last_arrival_s_ = 0, arrival_gap_s_ = 0, arrival_gap2_s2_ = 0;
  std::deque<std::uint32_t> free_blocks_;
  int blocks_ = 0;
  int blocks_wanted_ = 0;
};

}  // namespace computron
