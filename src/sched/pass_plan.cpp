#include "computron/sched/pass_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace computron {
namespace {

using Handle = AdmittedSequences::Handle;
using State = AdmittedSequences::State;

constexpr int kReserve = 4;  // one token in kReserve of a pass is for prompts while they wait
constexpr int kAnyNumber = std::numeric_limits<int>::max() / 2;

class PassBuilder {
 public:
  // Writes into `pass`, which is empty.
  PassBuilder(AdmittedSequences& sequences, const PassLimits& limits, PassPlan& pass)
      : sequences_(sequences), cache_(sequences.cache()), limits_(limits), pass_(pass) {}
  ~PassBuilder() {
    for (const PassPlan::Part& part : pass_.parts) part.member->chosen = false;
  }
  PassBuilder(const PassBuilder&) = delete;
  PassBuilder& operator=(const PassBuilder&) = delete;

  void build(bool prompts_first);

 private:
  struct Room {
    int sequences = 0, tokens = 0, prompt_tokens = 0, logit_rows = 0;
    bool any() const { return sequences > 0 && tokens > 0 && logit_rows > 0; }
  };
  Room room_left() const;
  void choose_urgent();
  void choose_from(State state, Room room);
  void choose(Handle member, Room& room);
  void add(Handle member, int tokens, int logit_rows);
  static int tokens_that_fit(const Sequence& sequence, const Room& room);
  int tokens_with_blocks(Handle member, int tokens);
  bool preempt_for(Handle member);
  void preempt(Handle member);
  int blocks_needed() const;

  AdmittedSequences& sequences_;
  const CacheBlocks& cache_;
  const PassLimits& limits_;
  PassPlan& pass_;
  int reserved_ = 0;         // tokens, once the more urgent ones have been chosen
  int reserved_blocks_ = 0;  // that the chosen ones will take
};

void PassBuilder::build(bool prompts_first) {
  const int full = room_left().sequences;
  choose_urgent();
  reserved_ = pass_.parts.empty() ? 0 : limits_.reserved;
  const bool prompts =
      sequences_.count(State::kPrefill) > pass_.parts.size() - static_cast<std::size_t>(pass_.decoding);
  const auto for_prompts = [&](int most, int part) {
    return !prompts ? 0 : most > 1 ? std::max(most / part, 1) : prompts_first ? 1 : 0;
  };
  Room room = room_left();
  const int micro_batch = std::min(ceil_div(sequences_.sums().totals().decoding, limits_.micro_batches), full);
  room.sequences = std::min(micro_batch - pass_.decoding, room.sequences - for_prompts(room.sequences, room.sequences));
  room.tokens -= for_prompts(room.tokens, kReserve);
  room.logit_rows -= for_prompts(room.logit_rows, kReserve);
  choose_from(State::kDecoding, room);
  choose_from(State::kPrefill, room_left());
  room = room_left();
  room.sequences = std::min(micro_batch - pass_.decoding, room.sequences);
  if (prompts) choose_from(State::kDecoding, room);  // what prompts have left
  pass_.blocks = blocks_needed();
  pass_.full = room_left().sequences <= 0 ||
               pass_.parts.size() < sequences_.count(State::kPrefill) + sequences_.count(State::kDecoding);
}

PassBuilder::Room PassBuilder::room_left() const {
  const int micro_batch = std::min(ceil_div(sequences_.running(), limits_.micro_batches), limits_.sequences);
  return {.sequences = micro_batch - static_cast<int>(pass_.parts.size()),
          .tokens = limits_.tokens - pass_.rows - reserved_,
          .prompt_tokens = limits_.prompt_tokens - pass_.prompt_rows,
          .logit_rows = limits_.logit_rows - pass_.logit_rows};
}

// Whoever is more urgent than the last, in this order and whatever is to be computed of it: nobody's prompt is spread
// over passes for the sake of those that are less urgent. Of equally urgent ones those that decode go first.
void PassBuilder::choose_urgent() {
  if (sequences_.sums().urgencies().size() < 2) return;
  const std::int32_t last = sequences_.sums().urgencies().rbegin()->first;
  std::vector<Handle> urgent;
  for (const State state : {State::kDecoding, State::kPrefill}) {
    for (const Handle member : sequences_.in_state(state)) {
      if (member->sequence().request().urgency() < last) urgent.push_back(member);
    }
  }
  std::ranges::stable_sort(urgent, {}, [](Handle member) { return member->sequence().request().urgency(); });
  Room room = room_left();
  room.prompt_tokens = room.tokens;
  for (const Handle member : urgent) {
    if (!room.any()) return;
    choose(member, room);
  }
}

void PassBuilder::choose_from(State state, Room room) {
  const bool prefill = state == State::kPrefill;
  for (const Handle member : sequences_.in_state(state)) {
    if (!room.any() || (prefill && room.prompt_tokens <= 0)) return;
    choose(member, room);
  }
}

// If it fits, and is not in the pass, and has not been preempted for another on the way.
void PassBuilder::choose(Handle member, Room& room) {
  if (member->chosen || member->state() == State::kPreempted) return;
  const bool prefill = member->state() == State::kPrefill;
  const Sequence& sequence = member->sequence();
  if (cache_.prefix_caching() && !sequence.begun()) sequences_.reuse_prefix(member);
  int tokens = tokens_that_fit(sequence, room);
  if (tokens > 0) tokens = tokens_with_blocks(member, tokens);
  if (tokens == 0) return;
  const int logit_rows = sequence.request().wants_prompt_scores() ? tokens : 1;
  room = {room.sequences - 1, room.tokens - tokens, room.prompt_tokens - tokens, room.logit_rows - logit_rows};
  pass_.prompt_rows += prefill ? tokens : 0;
  pass_.decoding += prefill ? 0 : 1;
  add(member, tokens, logit_rows);
}

void PassBuilder::add(Handle member, int tokens, int logit_rows) {
  pass_.rows += tokens;
  pass_.logit_rows += logit_rows;
  pass_.parts.push_back({member, tokens});
  member->chosen = true;
}

int PassBuilder::tokens_that_fit(const Sequence& sequence, const Room& room) {
  int tokens = std::min(sequence.pending_tokens(), room.tokens);
  if (!sequence.request().is_whole() && tokens > 1) tokens = std::min(tokens, room.prompt_tokens);
  if (sequence.request().wants_prompt_scores()) tokens = std::min(tokens, room.logit_rows);
  return sequence.fits_in(tokens) ? tokens : 0;
}

// As many of the tokens as there are blocks for; 0 if none, after younger ones have been preempted for them.
int PassBuilder::tokens_with_blocks(Handle member, int tokens) {
  const Sequence& sequence = member->sequence();
  const int computed = sequence.computed_tokens();
  const auto used = static_cast<int>(sequence.blocks().size());
  for (;;) {
    const int most = sequences_.running() == 1 && limits_.may_preempt ? kAnyNumber : limits_.blocks;
    const int available = cache_.available() + std::max(most - cache_.count(), 0) - reserved_blocks_;
    const int needed = std::max(cache_.blocks_for(computed + tokens) - used, 0);
    if (needed <= available) {
      reserved_blocks_ += needed;
      return tokens;
    }
    const int fitting = (used + available) * cache_.block_tokens() - computed;
    if (fitting > 0 && sequence.fits_in(fitting)) {
      tokens = fitting;
    } else if (!limits_.may_preempt || !preempt_for(member)) {
      return 0;
    }
  }
}

// Preempts the last in line (GoesBefore), if it stands behind this one; this one itself if it is the last, and none
// that is about to end will leave its blocks behind. So the first always gets on. Whether another one has been
// preempted.
bool PassBuilder::preempt_for(Handle member) {
  Handle last = member;
  bool is_last = true;
  for (const Handle& other : sequences_.running_by_age()) {
    if (!AdmittedSequences::GoesBefore{}(last, other)) continue;
    is_last = false;
    if (other->state() != State::kInFlight && !other->chosen) last = other;
  }
  if (last != member) {
    preempt(last);
    return true;
  }
  const bool none_ends = std::cmp_equal(sequences_.sums().totals().unfinished, sequences_.running());
  if (is_last && none_ends) preempt(member);
  return false;
}

void PassBuilder::preempt(Handle member) {
  if (member->sequence().begun()) pass_.released.push_back(member->sequence().id());
  sequences_.preempt(member);
}

// Free ones first, then more, then cached ones, then more still.
int PassBuilder::blocks_needed() const {
  const int missing = std::max(reserved_blocks_ - cache_.free(), 0);
  const int spare = std::clamp(limits_.spare_blocks - cache_.count(), 0, missing);
  const int cached = std::min(missing - spare, cache_.available() - cache_.free());
  return cache_.count() + missing - cached;
}

}  // namespace

PassPlan plan_pass(AdmittedSequences& sequences, const PassLimits& limits, bool prompts_first) {
  PassPlan pass;
  PassBuilder(sequences, limits, pass).build(prompts_first);
  return pass;
}

}  // namespace computron
