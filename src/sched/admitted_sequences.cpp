#include "computron/sched/admitted_sequences.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace computron {
namespace {

// Of a sequence that has no chunk in flight and is not preempted.
AdmittedSequences::State state_to_run(const Sequence& sequence) {
  return sequence.pending_tokens() == 1 ? AdmittedSequences::State::kDecoding : AdmittedSequences::State::kPrefill;
}

}  // namespace

// Equal requests are told apart by where they are.
bool AdmittedSequences::Older::operator()(const Handle& a, const Handle& b) const {
  const Request &x = a->sequence().request(), &y = b->sequence().request();
  return arrives_earlier(x, y) || (!arrives_earlier(y, x) && std::less<>{}(&*a, &*b));
}

bool AdmittedSequences::GoesBefore::operator()(const Handle& a, const Handle& b) const {
  const std::int32_t of_a = a->sequence().request().urgency(), of_b = b->sequence().request().urgency();
  return of_a != of_b ? of_a < of_b : Older{}(a, b);
}

// --- Coming and going -------------------------------------------------------------------------------------------

void AdmittedSequences::admit(Sequence&& sequence) {
  std::list<Member>& preempted = list_of(State::kPreempted);  // for a moment: run() moves it on
  preempted.emplace_front(std::move(sequence));
  run(preempted.begin());
}

void AdmittedSequences::admit_preempted(SequenceId id) {
  const Handle member = list_of(State::kPreempted).begin();
  preempted_.erase(member);
  member->sequence_.restart(id);
  run(member);
}

// The state is that of a sequence without a cache; where a prefix hit leaves it one token, it joins the decoding ones
// behind its first pass.
void AdmittedSequences::run(Handle member) {
  change(member, [&](Sequence& sequence) {
    running_.insert(member);
    move(member, state_to_run(sequence));
    find_prefix(*member);
  });
}

void AdmittedSequences::reuse_prefix(Handle member) {
  change(member, [&](Sequence&) { find_prefix(*member); });
}

void AdmittedSequences::find_prefix(Member& member) {
  member.sequence_.reuse_prefix(cache_);
  const std::vector<std::uint32_t>& blocks = member.sequence_.blocks();
  member.shared_blocks_ = static_cast<int>(
      std::count_if(blocks.begin(), blocks.end(), [this](std::uint32_t b) { return cache_.ref_count(b) > 1; }));
}

void AdmittedSequences::next_chunk(Handle member, int max_tokens, std::vector<SequenceChunk>& chunks) {
  change(member, [&](Sequence& sequence) {
    const bool first = !sequence.begun();
    chunks.push_back(sequence.next_chunk(max_tokens, cache_));
    if (first) cache_use_.prefix_hit_tokens += chunks.back().start;
    move(member, State::kInFlight);
  });
}

void AdmittedSequences::age_oldest() {
  const Member* const first = oldest();
  std::list<Member>& of_state = list_of(first->state_);
  const Handle member = std::ranges::find_if(of_state, [first](const Member& other) { return &other == first; });
  change(member, [&](Sequence& sequence) {
    sequence.set_aged(true);
    move(member, member->state_);
  });
}

std::optional<Completion> AdmittedSequences::take_results(Handle member, PassResults& results, double now_s) {
  change(member, [&](Sequence& sequence) {
    const int to_come = sequence.tokens_to_come();
    sequence.take_results(results, now_s);
    if (sequence.tokens_to_come() < to_come) sequence.set_aged(false);
    if (!sequence.finished()) move(member, state_to_run(sequence));
  });
  Sequence& sequence = member->sequence_;
  if (!sequence.finished()) return std::nullopt;
  cache_.release(sequence.blocks());
  running_.erase(member);
  Completion completion = sequence.take_completion();
  growth_ratio_.observe(sequence.request(), completion);
  list_of(State::kInFlight).erase(member);
  return completion;
}

void AdmittedSequences::preempt(Handle member) {
  change(member, [&](Sequence& sequence) {
    sequence.preempt(cache_);
    running_.erase(member);
    preempted_.insert(member);
    member->shared_blocks_ = 0;
    move(member, State::kPreempted);
  });
  ++cache_use_.preemptions;
}

std::vector<SequenceId> AdmittedSequences::restart_running(SequenceId& last) {
  std::vector<SequenceId> told;
  for (const Handle member : running_) {
    change(member, [&](Sequence& sequence) {
      if (sequence.begun()) told.push_back(sequence.id());
      cache_.release(sequence.blocks());
      sequence.restart(sequence.begun() ? ++last : sequence.id());
      member->shared_blocks_ = 0;
      move(member, state_to_run(sequence));
    });
  }
  return told;
}

// --- Lists ------------------------------------------------------------------------------------------------------

std::vector<AdmittedSequences::Handle> AdmittedSequences::in_state(State state) {
  std::list<Member>& list = list_of(state);
  std::vector<Handle> members;
  members.reserve(list.size());
  for (auto member = list.begin(); member != list.end(); ++member) members.push_back(member);
  return members;
}

const AdmittedSequences::Member* AdmittedSequences::oldest() const {
  const bool runs = !running_.empty() && (preempted_.empty() || Older{}(*running_.begin(), *preempted_.begin()));
  const std::set<Handle, Older>& first = runs ? running_ : preempted_;
  return first.empty() ? nullptr : &**first.begin();
}

const AdmittedSequences::Member* AdmittedSequences::oldest(std::int32_t urgency) const {
  const auto is_urgent = [urgency](const Member& member) { return member.sequence().request().urgency() == urgency; };
  const auto runs = std::ranges::find_if(running_, [&](const Handle& member) { return is_urgent(*member); });
  const Member* first = runs == running_.end() ? nullptr : &**runs;
  // Of the preempted ones it would be in front.
  if (lists_.back().empty() || !is_urgent(lists_.back().front())) return first;
  const Member& preempted = lists_.back().front();
  const bool is_older =
      first == nullptr || arrives_earlier(preempted.sequence().request(), first->sequence().request());
  return is_older ? &preempted : first;
}

std::optional<AdmittedSequences::Handle> AdmittedSequences::last_behind(std::int32_t urgency) {
  std::optional<Handle> last;
  for (const Handle& member : running_) {
    const bool may = member->state() != State::kInFlight && urgency < member->sequence().request().urgency();
    if (may && (!last || GoesBefore{}(*last, member))) last = member;
  }
  return last;
}

// To the list's end, but prefill and preempted ones in the order of GoesBefore: almost always the last or the first.
void AdmittedSequences::move(Handle member, State state) {
  std::list<Member>&from = list_of(member->state_), &to = list_of(state);
  auto place = to.end();
  const bool by_age = state == State::kPrefill || state == State::kPreempted;
  const auto first = by_age && !to.empty() && to.begin() != member ? to.begin() : to.end();
  if (first != to.end() && GoesBefore{}(member, first)) place = first;
  while (by_age && place != to.begin()) {
    const auto before = std::prev(place);
    if (before != member && !GoesBefore{}(member, before)) break;
    place = before;
  }
  to.splice(place, from, member);
  member->state_ = state;
}

// --- Sums -------------------------------------------------------------------------------------------------------

// Everything that changes a sequence, its state or its blocks happens in `edit`.
template <class Edit>
void AdmittedSequences::change(Handle member, Edit&& edit) {
  edit(member->sequence_);
  sums_.count(member->counted_, member->sequence_, member->state_ == State::kPreempted, member->shared_blocks_,
              cache_.block_tokens());
}

int running_as_urgent(const AdmittedSequences& sequences, std::int32_t urgency) {
  if (sequences.sums().all_as_urgent(urgency)) return sequences.running();
  return static_cast<int>(std::ranges::count_if(sequences.running_by_age(), [urgency](const auto& member) {
    return member->sequence().request().urgency() <= urgency;
  }));
}

// A block that nobody owns stays until the last of those that use it has ended: it is counted all the time.
int peak_as_urgent(const AdmittedSequences& sequences, std::int32_t urgency, CacheNeed next,
                   std::span<const std::uint32_t> prefix) {
  const CacheBlocks& cache = sequences.cache();
  const double ratio = sequences.growth_ratio();
  if (sequences.sums().all_as_urgent(urgency)) {
    next.blocks -= static_cast<int>(std::ranges::count_if(prefix, [&](auto b) { return cache.ref_count(b) > 0; }));
    return sequences.unowned_blocks() + sequences.sums().forecast().peak(next, ratio);
  }
  CacheForecast forecast;
  std::vector<bool> used(static_cast<std::size_t>(cache.prefix_caching() ? cache.count() : 0));
  int owned = 0;
  for (const auto& member : sequences.running_by_age()) {
    if (member->sequence().request().urgency() > urgency) continue;
    forecast.add(member->counted().need);
    if (used.empty()) continue;
    owned += member->counted().owned_blocks;
    for (const std::uint32_t block : member->sequence().blocks()) used[block] = true;
  }
  next.blocks -= static_cast<int>(std::ranges::count_if(prefix, [&](auto b) { return used[b]; }));
  const auto all = static_cast<int>(std::ranges::count(used, true));
  return all - owned + forecast.peak(next, ratio);
}

int AdmittedSequences::computed_tokens() const {
  int tokens = 0;
  for (const Handle member : running_) tokens += member->sequence().computed_tokens();
  return tokens;
}

}  // namespace computron
