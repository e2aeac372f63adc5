// The rules of the first-in-first-out schedule, checked on the record of a finished run by an independent replay.
//
//   turn      begins with nothing in flight and nothing unfinished, as early as that; the model whose waiting request
//   is
//             oldest gets it, with the longest prefix of its queue that max_seqs and the pool allow
//   pool      the turn's first step brings in exactly the missing pages, in order; the model's cache is as long as its
//             requests may need, no other model has any; pages go only for want of frames, from the least recently used
//             model's last page on
//   progress  while a sequence waits for its next chunk, no other of the turn gets two
#pragma once

#include "tests/sched/driver.h"

namespace computron::test {

// The rule that was broken, or "".
std::string broken_fifo_rule(const Driver& driver);

}  // namespace computron::test
