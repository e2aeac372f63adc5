// The sequences of one model that have been admitted and have not ended, with the blocks of cache that they use:
//
//   admit() ──> prefill or decoding ──next_chunk()──> in flight ──take_results()──> prefill or decoding, or ended
//                  │           ^
//            preempt()   admit_preempted()
//                  v           │
//                  preempted: its cache is gone, its tokens stay; all of it is computed again, to the same bits
//
// Those that are not preempted are running. The methods below are all that changes a sequence, and every one of them
// goes through change(), which counts the sequence anew: sums() are always those of the lists.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "computron/sched/cache_blocks.h"
#include "computron/sched/cache_forecast.h"
#include "computron/sched/sequence.h"
#include "computron/sched/sequence_sums.h"
#include "computron/sched/waiting_queue.h"

namespace computron {

// Counts of a model's cache since the start.
struct CacheUse {
  std::size_t preemptions = 0;        // of sequences, because blocks ran out
  std::size_t prefix_hit_tokens = 0;  // of prompts, not computed because another request's were in the cache
};

class AdmittedSequences {
 public:
  enum class State : std::uint8_t { kPrefill, kDecoding, kInFlight, kPreempted };

  // Read by everybody, changed by the methods below alone.
  class Member {
   public:
    explicit Member(Sequence&& sequence) : sequence_(std::move(sequence)) {}
    const Sequence& sequence() const { return sequence_; }
    State state() const { return state_; }
    // In sums().
    const SequenceSums::Counted& counted() const { return counted_; }

    bool chosen = false;  // for the pass that is being put together (pass_plan.cpp)

   private:
    friend class AdmittedSequences;
    Sequence sequence_;
    State state_ = State::kPreempted;
    int shared_blocks_ = 0;  // of its first ones, that others used already when it came
    SequenceSums::Counted counted_;
  };
  // Stays good until the sequence ends.
  using Handle = std::list<Member>::iterator;
  struct Older {
    bool operator()(const Handle& a, const Handle& b) const;
  };
  // The more urgent one, of two that are equally urgent the older (request.h).
  struct GoesBefore {
    bool operator()(const Handle& a, const Handle& b) const;
  };

  // With no blocks; those that there are come by cache().resize().
  AdmittedSequences(int block_tokens, bool prefix_caching) : cache_(block_tokens, prefix_caching) {}
  // Handles of a copy would point into the original.
  AdmittedSequences(const AdmittedSequences&) = delete;
  AdmittedSequences(AdmittedSequences&&) = default;

  // It runs from now on; behind a prefix hit, if it may.
  void admit(Sequence&& sequence);
  // The first preempted one runs again, under a new number. Requires one.
  void admit_preempted(SequenceId id);
  // Looks up its prefix anew: others may have computed more of it by now. Only before it has begun.
  void reuse_prefix(Handle member);
  // Its next chunk of at most `max_tokens` joins `chunks` and is in flight from now on; free or cached blocks join its
  // list.
  void next_chunk(Handle member, int max_tokens, std::vector<SequenceChunk>& chunks);
  // The oldest goes before all others, until it has got a token or has ended (Request::aged). Requires one.
  void age_oldest();
  // What the chunk in flight came to; its completion if that was its end, and then the handle is void. `results` as in
  // Sequence.
  std::optional<Completion> take_results(Handle member, PassResults& results, double now_s);
  // It gives its blocks back. Not while in flight, nor while preempted.
  void preempt(Handle member);
  // The cache is gone: running sequences begin again, those that the ranks know with numbers from ++last. Returns the
  // numbers that the ranks know. Not while any is in flight.
  std::vector<SequenceId> restart_running(SequenceId& last);

  // Prefill and preempted ones: as GoesBefore says; others: the longest in that state first.
  std::vector<Handle> in_state(State state);
  std::size_t count(State state) const { return lists_[static_cast<std::size_t>(state)].size(); }
  // The preempted one that is admitted before the others; requires one.
  const Member& first_preempted() const { return lists_.back().front(); }
  // The oldest of all, running and preempted; null if there is none.
  const Member* oldest() const;
  // The same of those of this urgency, than which no preempted one has a lower. Looks at running ones until one has it.
  const Member* oldest(std::int32_t urgency) const;
  // The last in line (GoesBefore) of those that run, are not in flight and are less urgent than that.
  std::optional<Handle> last_behind(std::int32_t urgency);
  const std::set<Handle, Older>& running_by_age() const { return running_; }  // the oldest first
  int running() const { return static_cast<int>(running_.size()); }
  const SequenceSums& sums() const { return sums_; }
  // Blocks in use that sums() counts with no sequence: whoever used them first has ended, and others use them still.
  int unowned_blocks() const { return cache_.used() - sums_.owned_blocks(); }
  // Of those that have ended.
  double growth_ratio() const { return growth_ratio_.value(); }
  // Tokens in the cache, summed up over the running ones; looks at each.
  int computed_tokens() const;
  const CacheUse& cache_use() const { return cache_use_; }
  // Blocks are given to sequences and taken from them by the methods above.
  CacheBlocks& cache() { return cache_; }
  const CacheBlocks& cache() const { return cache_; }

 private:
  template <class Edit>
  void change(Handle member, Edit&& edit);
  void find_prefix(Member& member);
  void run(Handle member);
  void move(Handle member, State state);
  std::list<Member>& list_of(State state) { return lists_[static_cast<std::size_t>(state)]; }

  CacheBlocks cache_;
  std::array<std::list<Member>, 4> lists_;  // [state]; preempted ones are the last
  std::set<Handle, Older> running_, preempted_;
  SequenceSums sums_;
  GrowthRatio growth_ratio_;
  CacheUse cache_use_;
};

// Running ones of this urgency or a lower one. Looks at all, unless all are as urgent.
int running_as_urgent(const AdmittedSequences& sequences, std::int32_t urgency);
// Most blocks that these will use at any one time with one sequence more, which needs `next`, the blocks of `prefix`
// among that (CacheBlocks::find_prefix()). Each block counts once. Looks at all, unless all are as urgent.
int peak_as_urgent(const AdmittedSequences& sequences, std::int32_t urgency, CacheNeed next,
                   std::span<const std::uint32_t> prefix);

}  // namespace computron
