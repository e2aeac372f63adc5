// The work of one model: requests that wait (WaitingQueue), sequences that run or are preempted, with their cache
// (AdmittedSequences), and what becomes of both at a pass (PassPlan).
//
//   enqueue() ──> waiting ──admit_next()──> running ──choose(), begin_pass()──> in flight ──take_results()──> ended
//                               ^              │                                    │
//                               │              │<──────────── not ended ────────────┘
//                               └─ preempted <─┘
//
// Preempted sequences are admitted before anybody who waits and is no more urgent. Looking at a model costs the same
// however many requests and sequences it has.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "computron/sched/admitted_sequences.h"
#include "computron/sched/pass_plan.h"
#include "computron/sched/waiting_queue.h"

namespace computron {

class ModelWork {
 public:
  using Handle = AdmittedSequences::Handle;

  // `watches_deadlines`: as WaitingQueue's.
  ModelWork(int block_tokens, std::vector<TokenId> eos_tokens, bool prefix_caching = false,
            bool watches_deadlines = false)
      : eos_tokens_(std::move(eos_tokens)),
        waiting_(block_tokens, watches_deadlines),
        sequences_(block_tokens, prefix_caching) {}

  const WaitingQueue& waiting() const { return waiting_; }
  const AdmittedSequences& sequences() const { return sequences_; }
  const CacheBlocks& cache() const { return sequences_.cache(); }
  const ArrivalStatistics& arrivals() const { return arrivals_; }
  // Of all that has not ended, but for what ends with what is in flight.
  Backlog backlog() const;
  // The oldest request that has not ended; requires one.
  const Request& oldest() const;
  // The oldest of those of the least urgency. Requires work.
  const Request& oldest_urgent() const;
  // The least of all that have not ended, but for what ends with what is in flight. Requires work.
  std::int32_t urgency() const;
  // The oldest request goes before all others for a while (Request::aged): others have passed it by for too long.
  void age_oldest();
  // Requests that wait, and preempted sequences.
  std::size_t to_admit() const;
  std::size_t in_flight() const { return sequences_.count(AdmittedSequences::State::kInFlight); }
  bool any_in_flight() const { return in_flight() > 0; }
  // Sequences that a pass could take.
  std::size_t ready() const;
  bool any_ready() const { return ready() > 0; }
  StepId last_step() const { return last_step_; }      // that had a pass of the model; 0: none
  double last_pass_s() const { return last_pass_s_; }  // when that was planned

  // Blocks of cache that exist. Those in use must stay.
  void set_blocks(int blocks) { sequences_.cache().resize(blocks); }
  // Blocks that the first `sequences` of all, running and to be admitted, will need together, if they grow as
  // sequences did so far.
  int blocks_expected(int sequences) const;

  void enqueue(Request request);
  // As WaitingQueue::take_youngest.
  std::vector<Request> take_youngest(std::size_t n, const Accepts& accepts = {}) {
    return waiting_.take_youngest(n, accepts);
  }
  // As WaitingQueue::take_late.
  std::vector<Request> take_late(double now_s) { return waiting_.take_late(now_s); }
  // Whether the next to be admitted is one that was preempted.
  bool next_is_preempted() const;
  // The next to be admitted; requires one.
  const Request& next_to_admit() const;
  // Blocks that it will come to need at once with those that run and are as urgent, so need not make room for it.
  int peak_with_next() const;
  // Requires one. Its sequence has the number `id`.
  void admit_next(SequenceId id);
  // Of those that run the last in line behind the next to be admitted gives its blocks back. Returns whether there was
  // one that is not in flight; its number joins `released` if the ranks know it. Requires one to be admitted.
  bool preempt_for_next(std::vector<SequenceId>& released);

  PassPlan choose(const PassLimits& limits) { return plan_pass(sequences_, limits, prompts_first_); }
  // Appends the chunks of step `step`'s pass, which was just chosen; the cache must have `pass.blocks` blocks. Returns
  // who is in flight now.
  std::vector<Handle> begin_pass(const PassPlan& pass, StepId step, double now_s, std::vector<SequenceChunk>& chunks);
  // As AdmittedSequences::take_results.
  std::optional<Completion> take_results(Handle member, PassResults& results, double now_s);
  // The cache is gone: as AdmittedSequences::restart_running; no blocks exist then.
  std::vector<SequenceId> restart_running(SequenceId& last);

 private:
  std::vector<TokenId> eos_tokens_;
  ArrivalStatistics arrivals_;
  WaitingQueue waiting_;
  AdmittedSequences sequences_;
  bool prompts_first_ = true;  // the last pass had no prompts
  StepId last_step_ = 0;
  double last_pass_s_ = 0;
};

// Tokens that passes could compute now of running sequences that are more urgent than that. Looks at all, where some
// are.
std::size_t running_tokens_before(const ModelWork& work, std::int32_t urgency);

}  // namespace computron
