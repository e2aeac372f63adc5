// Puts together the next pass of a model: which of its running sequences take part, and with how many tokens each.
//
// Decoding sequences come first, the one that has been without a token longest foremost; then prompts, the oldest
// foremost, in prefill chunks. Neither takes the last of the other's room: while prompts wait, a quarter of the pass is
// theirs, and what they leave of it goes back to decoding sequences. Before all of these come sequences that are more
// urgent than the others (Request::urgency). Where blocks of cache run out, sequences are preempted for more urgent and
// older ones.
#pragma once

#include <limits>
#include <vector>

#include "computron/sched/admitted_sequences.h"

namespace computron {

// What a pass may hold.
struct PassLimits {
  int micro_batches = 1;                            // the running sequences are split into so many; a pass takes one
  int sequences = std::numeric_limits<int>::max();  // at most, whatever a micro-batch has
  int tokens = 0;
  int prompt_tokens = 0;  // of prompts that can be cut into prefill chunks
  int reserved = 0;  // of `tokens`, for riders: the least urgent leave them, where more urgent ones are in the pass
  int logit_rows = 0;
  int blocks = 0;           // that the cache may have
  int spare_blocks = 0;     // that it may have before cached ones are used for something else
  bool may_preempt = true;  // the youngest makes room when blocks run out; the only one may have any number
};

struct PassPlan {
  struct Part {
    AdmittedSequences::Handle member;
    int tokens = 0;
  };
  std::vector<Part> parts;  // in the order of the pass's rows
  int rows = 0, prompt_rows = 0, logit_rows = 0, decoding = 0;
  int blocks = 0;                    // that the cache must have
  bool full = false;                 // no more fits into a pass
  std::vector<SequenceId> released;  // numbers under which the ranks know sequences that were preempted for it
};

// Preempts, and looks prefixes up anew; beyond that, it changes nothing. `prompts_first`: where a pass has room for
// nothing but one token, a prompt's goes first.
PassPlan plan_pass(AdmittedSequences& sequences, const PassLimits& limits, bool prompts_first);

}  // namespace computron
