// The requests of one model: those waiting, those open, and the blocks of cache that these have.
//
//   waiting ──admit──> open: prompts | decoding | in flight ──> ended
//                        │ ^
//                        v │ (before all that wait)
//                     set aside: the youngest, when blocks run out; its tokens stay, its cache does not
//
// Sums over them are kept up to date, so that looking at a model costs the same however many there are.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "computron/sched/cache_blocks.h"
#include "computron/sched/sequence.h"

namespace computron {

// How many blocks sequences will hold at most, all of them together, if each grows as it may, and the one that is done
// gives back its own: when those that grow by g have grown so far, all that grow further have grown by g as well.
class CacheForecast {
 public:
  struct Need {
    int blocks = 0;  // for the tokens that there are
    int growth = 0;  // for those that may still come
    bool operator==(const Need&) const = default;
  };
  void add(const Need& need);
  void remove(const Need& need);
  // With one more. `share`: how much of their growth sequences really come to.
  int peak(const Need& more, double share) const;
  int blocks() const { return sum_.blocks; }
  int growth() const { return sum_.growth; }

 private:
  struct Group {
    int sequences = 0, blocks = 0;
  };
  std::map<int, Group, std::greater<>> groups_;  // by growth
  Need sum_;
};

// What a model's cache was spared, and what it had to take back.
struct CacheUse {
  std::size_t preemptions = 0;     // sequences preempted because blocks ran out
  std::size_t shared_tokens = 0;  // of prompts, not computed because another request's were there
};

class ModelWork {
 public:
  struct Member {
    enum State : std::uint8_t { kPrompt, kDecoding, kInFlight, kPreempted };
    Sequence sequence;
    State state = kPrompt;
    bool chosen = false;            // for the pass being planned
    int shared = 0;                 // blocks that others had when it began
    CacheForecast::Need need = {};  // as counted
  };
  // Stays good until the sequence ends.
  using Handle = std::list<Member>::iterator;

  ModelWork(int block_tokens, std::vector<TokenId> eos_tokens, bool share_prefixes = false)
      : eos_tokens_(std::move(eos_tokens)), cache_(block_tokens, share_prefixes) {}
  ModelWork(ModelWork&&) = default;

  static bool earlier(const Request& a, const Request& b) {
    return std::tie(a.arrival_s, a.id, a.part) < std::tie(b.arrival_s, b.id, b.part);
  }

  // One that was read late goes before those that arrived after it.
  void enqueue(Request request);
  // Requests that no step has begun.
  std::size_t waiting() const { return waiting_.size(); }
  std::size_t waiting_bytes() const { return waiting_bytes_; }
  // Sequences that wait to be resumed.
  std::size_t preempted() const { return preempted_.size(); }
  const CacheUse& cache_use() const { return cache_use_; }
  // Sequences that have been admitted, are not preempted and have not ended.
  int open() const { return static_cast<int>(by_age_.size()); }
  // Those that do not end with what is in flight.
  std::size_t unfinished() const { return unfinished_; }
  bool any_in_flight() const { return !in_flight_.empty(); }
  bool any_ready() const { return !prompts_.empty() || !decoding_.empty(); }
  bool any_catching_up() const { return catching_up_ > 0; }

  int blocks_of(const Request& request) const { return blocks_for(Sequence::cache_tokens(request)); }
  // Blocks that exist: what the model's cache frames have been made to hold; from end_of_held() on nobody holds one.
  int blocks() const { return cache_.count(); }
  int end_of_held() const { return cache_.end_of_held(); }
  void set_blocks(int blocks) { cache_.resize(blocks); }
  // Blocks that the first `sequences` of all will need together, if they grow as sequences did so far.
  int blocks_expected(int sequences) const;
  // Computed tokens of the open ones.
  int computed_tokens() const;

  // The next to be admitted: who was preempted before who waits.
  bool any_to_admit() const { return !preempted_.empty() || !waiting_.empty(); }
  bool next_was_preempted() const { return !preempted_.empty(); }
  // Blocks that the open ones and the next will come to need at once.
  int peak_with_next() const;
  void admit_next(SequenceId id);

  // What a step may hold.
  struct Limits {
    int shares = 1;  // of the open sequences; a pass takes one
    int tokens = 0;
    int prompt_tokens = 0;  // of prompts that can be cut
    int logit_rows = 0;
    int blocks = 0;         // that the cache may have
    int spare_blocks = 0;   // that it may have before kept ones are used for something else
    bool may_preempt = true;  // the youngest makes room when blocks run out; the only one may have any number
  };
  struct Pass {
    struct Part {
      Handle member;
      int tokens = 0;
    };
    std::vector<Part> parts;
    int rows = 0, prompt_rows = 0, logit_rows = 0, decoding = 0;
    int blocks = 0;     // that the cache must have
    bool full = false;  // no more fits into a pass
  };
  // Decoding ones first, the longest without a token foremost; then prompts, the oldest foremost; neither takes the
  // last of the other's room. Numbers that the ranks know of sequences that were preempted join `closed`.
  Pass choose(const Limits& limits, std::vector<SequenceId>& closed);
  // The chunks of a pass that was just chosen; blocks() must have been made enough. Returns who is in flight now.
  std::vector<Handle> take_chunks(const Pass& pass, std::vector<SequenceChunk>& chunks);
  // What the sequence's chunk came to; if that was its end, its completion. `results` as in Sequence.
  std::optional<Completion> land(Handle member, PassResults& results, double now_s);
  // The cache is gone: open sequences begin again, numbered from ++last. Returns the numbers that the ranks know.
  std::vector<SequenceId> restart_all(SequenceId& last);

  // Of all requests so far, and a moving mean of the time between two.
  double last_arrival_s() const { return last_arrival_s_; }
  double arrival_gap_s() const { return arrival_gap_s_; }
  double arrival_gap2_s2() const { return arrival_gap2_s2_; }
  // Of those that have not ended; there is one.
  const Request& oldest() const;

  // Sums for predictions, of all that does not end in flight.
  struct Backlog {
    std::size_t prompt_tokens = 0;     // to be computed
    std::size_t generated_tokens = 0;  // at most
    double arrivals_s = 0;
  };
  Backlog backlog() const;

  StepId last_used = 0;    // its latest pass; 0: none
  double last_pass_s = 0;  // when that was planned

 private:
  struct Older {
    bool operator()(const Handle& a, const Handle& b) const {
      const Request &x = a->sequence.request(), &y = b->sequence.request();
      return earlier(x, y) || (!earlier(y, x) && std::less<>{}(&*a, &*b));
    }
  };
  struct Room {
    int sequences = 0, tokens = 0, prompt_tokens = 0, logit_rows = 0;
  };

  int blocks_for(int tokens) const { return ceil_div(tokens, cache_.block_tokens()); }
  CacheForecast::Need need_of(const Request& request, int tokens) const;
  void note_arrival(double arrival_s);
  void note_growth(const Request& request, const Completion& completion);
  // Around every change of a sequence.
  void discount(const Member& member) { sum_up(member, -1); }
  void count(Member& member);
  void sum_up(const Member& member, int sign);
  void move(Handle member, Member::State state);
  void share(Member& member);

  Room room_left(const Limits& limits, const Pass& pass) const;
  void choose_from(std::list<Member>& list, Room room, const Limits& limits, Pass& pass,
                   std::vector<SequenceId>& closed);
  void add(Handle member, int tokens, int logit_rows, Pass& pass);
  static int tokens_that_fit(const Sequence& sequence, const Room& room);
  int tokens_with_blocks(Handle member, int tokens, const Limits& limits, std::vector<SequenceId>& closed);
  bool make_space(Handle member, std::vector<SequenceId>& closed);
  void preempt(Handle member, std::vector<SequenceId>& closed);
  int blocks_after_promises(const Limits& limits) const;
  void forget_choice();

  std::vector<TokenId> eos_tokens_;
  CacheBlocks cache_;
  std::deque<Request> waiting_;  // the earliest first
  Backlog waiting_backlog_;
  std::size_t waiting_bytes_ = 0;
  CacheForecast::Need need_to_come_;                          // of those waiting and preempted
  std::list<Member> prompts_, decoding_, in_flight_, preempted_;  // prompts and preempted: the oldest first
  std::set<Handle, Older> by_age_;                            // open ones
  Backlog begun_backlog_;
  CacheForecast forecast_;
  std::size_t unfinished_ = 0;
  int catching_up_ = 0, decoders_ = 0;
  bool prompts_next_ = true;  // where a pass has no room for both
  std::vector<Handle> chosen_;
  int promised_ = 0;  // blocks that the chosen ones will take
  double growth_share_ = 1;
  CacheUse cache_use_;
  std::size_t ended_ = 0;
  std::size_t arrivals_ = 0;
  double last_arrival_s_ = 0, arrival_gap_s_ = 0, arrival_gap2_s2_ = 0;
};

}  // namespace computron
