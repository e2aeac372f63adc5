#include "computron/sched/model_work.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace computron {
namespace {

constexpr double kGapWeight = 0.1;      // of the latest time between two arrivals
constexpr double kGrowthWeight = 0.05;  // of the latest sequence that ended
constexpr int kReserve = 4;             // a 1/kReserve of a pass is kept for prompts that wait beside decoding ones
constexpr int kAnyNumber = std::numeric_limits<int>::max() / 2;

std::size_t generated_tokens(const Request& request) {
  return static_cast<std::size_t>(request.encodes() ? 1 : std::max(request.max_tokens, 1));
}

int grown(int growth, double share) { return static_cast<int>(std::ceil(growth * share)); }

}  // namespace

// --- Blocks to come ---------------------------------------------------------------------------------------------

void CacheForecast::add(const Need& need) {
  Group& group = groups_[need.growth];
  ++group.sequences;
  group.blocks += need.blocks;
  sum_ = {sum_.blocks + need.blocks, sum_.growth + need.growth};
}

void CacheForecast::remove(const Need& need) {
  const auto group = groups_.find(need.growth);
  group->second.blocks -= need.blocks;
  sum_ = {sum_.blocks - need.blocks, sum_.growth - need.growth};
  if (--group->second.sequences == 0) groups_.erase(group);
}

int CacheForecast::peak(const Need& more, double share) const {
  int sequences = 0, blocks = 0, peak = 0;
  bool counted = false;
  const auto add = [&](int growth, int count, int now) {
    sequences += count;
    blocks += now;
    peak = std::max(peak, blocks + sequences * grown(growth, share));
  };
  for (const auto& [growth, group] : groups_) {
    if (!counted && more.growth >= growth) add(more.growth, 1, more.blocks), counted = true;
    add(growth, group.sequences, group.blocks);
  }
  if (!counted) add(more.growth, 1, more.blocks);
  return peak;
}

// --- Coming and going -------------------------------------------------------------------------------------------

void ModelWork::enqueue(Request request) {
  note_arrival(request.arrival_s);
  waiting_backlog_.prompt_tokens += request.prompt.size();
  waiting_backlog_.generated_tokens += generated_tokens(request);
  waiting_backlog_.arrivals_s += request.arrival_s;
  waiting_bytes_ += request.bytes();
  const CacheForecast::Need need = need_of(request, static_cast<int>(request.prompt.size()));
  need_to_come_ = {need_to_come_.blocks + need.blocks, need_to_come_.growth + need.growth};
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

// Of a sequence with so many tokens.
CacheForecast::Need ModelWork::need_of(const Request& request, int tokens) const {
  const int most = blocks_of(request), now = std::min(blocks_for(tokens), most);
  return {now, most - now};
}

int ModelWork::peak_with_next() const {
  CacheForecast::Need need;
  if (next_was_preempted()) {
    const Sequence& next = preempted_.front().sequence;
    need = preempted_.front().need;
    if (next.may_share()) need.blocks -= cache_.known(next.tokens());
  } else {
    const Request& next = waiting_.front();
    need = need_of(next, static_cast<int>(next.prompt.size()));
    if (Sequence::may_share(next)) need.blocks -= cache_.known(next.prompt);
  }
  return forecast_.peak(need, growth_share_);
}

void ModelWork::admit_next(SequenceId id) {
  if (next_was_preempted()) {
    Member& member = preempted_.front();
    discount(member);
    need_to_come_ = {need_to_come_.blocks - member.need.blocks, need_to_come_.growth - member.need.growth};
    member.sequence.restart(id);
  } else {
    Request& request = waiting_.front();
    const CacheForecast::Need need = need_of(request, static_cast<int>(request.prompt.size()));
    need_to_come_ = {need_to_come_.blocks - need.blocks, need_to_come_.growth - need.growth};
    waiting_backlog_.prompt_tokens -= request.prompt.size();
    waiting_backlog_.generated_tokens -= generated_tokens(request);
    waiting_backlog_.arrivals_s -= request.arrival_s;
    waiting_bytes_ -= request.bytes();
    preempted_.push_front({.sequence = Sequence(std::move(request), id, eos_tokens_), .state = Member::kPreempted});
    waiting_.pop_front();
  }
  const Handle member = preempted_.begin();
  by_age_.insert(member);
  move(member, member->sequence.pending_tokens() == 1 ? Member::kDecoding : Member::kPrompt);
  forecast_.add(member->need = {});
  share(*member);
  count(*member);
}

// Begins behind what others have computed, as far as that is known by now.
void ModelWork::share(Member& member) {
  member.sequence.share(cache_);
  const std::vector<std::uint32_t>& blocks = member.sequence.blocks();
  member.shared = static_cast<int>(
      std::count_if(blocks.begin(), blocks.end(), [this](std::uint32_t b) { return cache_.holders(b) > 1; }));
}

std::optional<Completion> ModelWork::land(Handle member, PassResults& results, double now_s) {
  Sequence& sequence = member->sequence;
  discount(*member);
  sequence.take_results(results, now_s);
  if (!sequence.finished()) {
    move(member, sequence.pending_tokens() == 1 ? Member::kDecoding : Member::kPrompt);
    count(*member);
    return std::nullopt;
  }
  cache_.release(sequence.blocks());
  forecast_.remove(member->need);
  by_age_.erase(member);
  Completion completion = sequence.take_completion();
  note_growth(sequence.request(), completion);
  in_flight_.erase(member);
  return completion;
}

// How much of what sequences might grow they do grow.
void ModelWork::note_growth(const Request& request, const Completion& completion) {
  if (request.encodes() || request.max_tokens < 2 || !completion.error_code.empty()) return;
  const double weight = std::max(kGrowthWeight, 1.0 / static_cast<double>(++ended_ + 1));
  growth_share_ += weight * (completion.generated_tokens / static_cast<double>(request.max_tokens) - growth_share_);
}

std::vector<SequenceId> ModelWork::restart_all(SequenceId& last) {
  std::vector<SequenceId> known;
  forget_choice();
  for (const Handle member : by_age_) {
    Sequence& sequence = member->sequence;
    discount(*member);
    if (sequence.begun()) known.push_back(sequence.id());
    cache_.release(sequence.blocks());
    sequence.restart(sequence.begun() ? ++last : sequence.id());
    member->shared = 0;
    move(member, sequence.pending_tokens() == 1 ? Member::kDecoding : Member::kPrompt);
    count(*member);
  }
  set_blocks(0);
  return known;
}

// --- Sums -------------------------------------------------------------------------------------------------------

void ModelWork::count(Member& member) {
  sum_up(member, 1);
  CacheForecast::Need need = need_of(member.sequence.request(), static_cast<int>(member.sequence.tokens().size()));
  need.blocks -= member.shared;
  if (need == member.need) return;
  if (member.state != Member::kPreempted) {
    forecast_.remove(member.need);
    forecast_.add(need);
  }
  member.need = need;
}

void ModelWork::sum_up(const Member& member, int sign) {
  const Sequence& sequence = member.sequence;
  if (member.state != Member::kPreempted) {
    catching_up_ += sequence.catching_up() ? sign : 0;
    decoders_ += sequence.pending_tokens() <= 1 ? sign : 0;
    unfinished_ += static_cast<std::size_t>(sequence.ends_in_flight() ? 0 : sign);
  }
  if (sequence.ends_in_flight()) return;
  begun_backlog_.prompt_tokens += static_cast<std::size_t>(sign * sequence.pending_tokens());
  begun_backlog_.generated_tokens += static_cast<std::size_t>(sign * std::max(sequence.tokens_to_come(), 1));
  begun_backlog_.arrivals_s += sign * sequence.request().arrival_s;
}

// Into the list of those in that state: to its end, but prompts by age.
void ModelWork::move(Handle member, Member::State state) {
  const auto list_of = [this](Member::State s) -> std::list<Member>& {
    return s == Member::kPrompt     ? prompts_
           : s == Member::kDecoding ? decoding_
           : s == Member::kPreempted    ? preempted_
                                    : in_flight_;
  };
  std::list<Member>&from = list_of(member->state), &to = list_of(state);
  auto place = to.end();
  if (state == Member::kPrompt || state == Member::kPreempted) {
    place = to.begin();
    while (place != to.end() && (place == member || Older{}(place, member))) ++place;
  }
  to.splice(place, from, member);
  member->state = state;
}

ModelWork::Backlog ModelWork::backlog() const {
  return {waiting_backlog_.prompt_tokens + begun_backlog_.prompt_tokens,
          waiting_backlog_.generated_tokens + begun_backlog_.generated_tokens,
          waiting_backlog_.arrivals_s + begun_backlog_.arrivals_s};
}

const Request& ModelWork::oldest() const {
  const Request* oldest = waiting_.empty() ? nullptr : &waiting_.front();
  const auto consider = [&oldest](const Request& request) {
    if (oldest == nullptr || earlier(request, *oldest)) oldest = &request;
  };
  if (!preempted_.empty()) consider(preempted_.front().sequence.request());
  if (!by_age_.empty()) consider((*by_age_.begin())->sequence.request());
  return *oldest;
}

int ModelWork::blocks_expected(int sequences) const {
  const auto waiting = static_cast<int>(waiting_.size() + preempted_.size());
  const int more = std::clamp(sequences - open(), 0, waiting);
  const int to_come = need_to_come_.blocks + grown(need_to_come_.growth, growth_share_);
  const int coming = more == 0 ? 0 : static_cast<int>(std::ceil(static_cast<double>(to_come) * more / waiting));
  return forecast_.blocks() + grown(forecast_.growth(), growth_share_) + coming;
}

int ModelWork::computed_tokens() const {
  int tokens = 0;
  for (const Handle member : by_age_) tokens += member->sequence.computed_tokens();
  return tokens;
}

// --- A pass -----------------------------------------------------------------------------------------------------

ModelWork::Pass ModelWork::choose(const Limits& limits, std::vector<SequenceId>& closed) {
  Pass pass;
  forget_choice();
  const bool prompts = !prompts_.empty();
  const auto for_prompts = [&](int most, int part) {
    return !prompts ? 0 : most > 1 ? std::max(most / part, 1) : prompts_next_;
  };
  Room room = room_left(limits, pass);
  const int share = std::min(ceil_div(decoders_, limits.shares), room.sequences);
  room.sequences = std::min(share, room.sequences - for_prompts(room.sequences, room.sequences));
  room.tokens -= for_prompts(room.tokens, kReserve);
  room.logit_rows -= for_prompts(room.logit_rows, kReserve);
  choose_from(decoding_, room, limits, pass, closed);
  choose_from(prompts_, room_left(limits, pass), limits, pass, closed);
  room = room_left(limits, pass);
  room.sequences = std::min(share - pass.decoding, room.sequences);
  if (prompts) choose_from(decoding_, room, limits, pass, closed);  // what they have left
  pass.blocks = blocks_after_promises(limits);
  pass.full = room_left(limits, pass).sequences <= 0 || pass.parts.size() < prompts_.size() + decoding_.size();
  return pass;
}

ModelWork::Room ModelWork::room_left(const Limits& limits, const Pass& pass) const {
  return {.sequences = ceil_div(open(), limits.shares) - static_cast<int>(pass.parts.size()),
          .tokens = limits.tokens - pass.rows,
          .prompt_tokens = limits.prompt_tokens - pass.prompt_rows,
          .logit_rows = limits.logit_rows - pass.logit_rows};
}

void ModelWork::choose_from(std::list<Member>& list, Room room, const Limits& limits, Pass& pass,
                            std::vector<SequenceId>& closed) {
  std::vector<Handle> candidates;  // as they are now: some may be preempted on the way
  candidates.reserve(list.size());
  for (auto member = list.begin(); member != list.end(); ++member) candidates.push_back(member);
  const bool cut = &list == &prompts_;
  for (const Handle member : candidates) {
    if (room.sequences <= 0 || room.tokens <= 0 || room.logit_rows <= 0 || (cut && room.prompt_tokens <= 0)) return;
    if (member->chosen || member->state == Member::kPreempted) continue;
    const Sequence& sequence = member->sequence;
    if (cache_.keeps() && !sequence.begun()) {
      discount(*member);
      share(*member);
      count(*member);
    }
    int tokens = tokens_that_fit(sequence, room);
    if (tokens > 0) tokens = tokens_with_blocks(member, tokens, limits, closed);
    if (tokens == 0) continue;
    const int logit_rows = sequence.wants_prompt_scores() ? tokens : 1;
    room = {room.sequences - 1, room.tokens - tokens, room.prompt_tokens - tokens, room.logit_rows - logit_rows};
    pass.prompt_rows += cut ? tokens : 0;
    pass.decoding += cut ? 0 : 1;
    add(member, tokens, logit_rows, pass);
  }
}

void ModelWork::add(Handle member, int tokens, int logit_rows, Pass& pass) {
  pass.rows += tokens;
  pass.logit_rows += logit_rows;
  pass.parts.push_back({member, tokens});
  member->chosen = true;
  chosen_.push_back(member);
}

int ModelWork::tokens_that_fit(const Sequence& sequence, const Room& room) {
  const bool encodes = sequence.request().encodes();
  int tokens = std::min(sequence.pending_tokens(), room.tokens);
  if (!encodes && tokens > 1) tokens = std::min(tokens, room.prompt_tokens);
  if (sequence.wants_prompt_scores()) tokens = std::min(tokens, room.logit_rows);
  return sequence.fits_in(tokens) ? tokens : 0;
}

// As many of the tokens as there are blocks for; 0 if none, after younger ones have been preempted for them.
int ModelWork::tokens_with_blocks(Handle member, int tokens, const Limits& limits, std::vector<SequenceId>& closed) {
  const Sequence& sequence = member->sequence;
  const int computed = sequence.computed_tokens();
  const auto held = static_cast<int>(sequence.blocks().size());
  for (;;) {
    const int most = open() == 1 && limits.may_preempt ? kAnyNumber : limits.blocks;
    const int free = cache_.unheld() + std::max(most - cache_.count(), 0) - promised_;
    const int needed = std::max(blocks_for(computed + tokens) - held, 0);
    if (needed <= free) {
      promised_ += needed;
      return tokens;
    }
    const int fitting = (held + free) * cache_.block_tokens() - computed;
    if (fitting > 0 && sequence.fits_in(fitting)) {
      tokens = fitting;
    } else if (!limits.may_preempt || !make_space(member, closed)) {
      return 0;
    }
  }
}

// Preempts the youngest, if it is younger than this one; this one itself if it is the youngest, and none that is
// about to end will leave its blocks behind. So the oldest always gets on. Whether somebody else has been.
bool ModelWork::make_space(Handle member, std::vector<SequenceId>& closed) {
  for (auto other = by_age_.rbegin(); *other != member; ++other) {
    if ((*other)->state == Member::kInFlight || (*other)->chosen) continue;
    preempt(*other, closed);
    return true;
  }
  if (*by_age_.rbegin() == member && std::cmp_equal(unfinished_, open())) preempt(member, closed);
  return false;
}

void ModelWork::preempt(Handle member, std::vector<SequenceId>& closed) {
  Sequence& sequence = member->sequence;
  discount(*member);
  if (sequence.begun()) closed.push_back(sequence.id());
  sequence.preempt(cache_);
  by_age_.erase(member);
  forecast_.remove(member->need);
  member->shared = 0;
  move(member, Member::kPreempted);
  count(*member);
  need_to_come_ = {need_to_come_.blocks + member->need.blocks, need_to_come_.growth + member->need.growth};
  ++cache_use_.preemptions;
}

// Blank ones first, then more, then kept ones, then more still.
int ModelWork::blocks_after_promises(const Limits& limits) const {
  const int missing = std::max(promised_ - cache_.blank(), 0);
  const int spare = std::clamp(limits.spare_blocks - cache_.count(), 0, missing);
  const int kept = std::min(missing - spare, cache_.unheld() - cache_.blank());
  return cache_.count() + missing - kept;
}

std::vector<ModelWork::Handle> ModelWork::take_chunks(const Pass& pass, std::vector<SequenceChunk>& chunks) {
  std::vector<Handle> members;
  members.reserve(pass.parts.size());
  chunks.reserve(pass.parts.size());
  for (const auto& [member, tokens] : pass.parts) {
    discount(*member);
    const bool first = !member->sequence.begun();
    chunks.push_back(member->sequence.next_chunk(tokens, cache_));
    if (first) cache_use_.shared_tokens += chunks.back().start;
    move(member, Member::kInFlight);
    count(*member);
    members.push_back(member);
  }
  // Only now: nobody finds in a pass what that pass computes.
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Sequence& sequence = members[i]->sequence;
    const int size = cache_.block_tokens();
    if (sequence.may_share()) {
      cache_.fill(sequence.blocks(), sequence.tokens(), static_cast<int>(chunks[i].start) / size,
                  sequence.computed_tokens() / size);
    }
  }
  prompts_next_ = pass.prompt_rows == 0;
  forget_choice();
  return members;
}

void ModelWork::forget_choice() {
  for (const Handle member : chosen_) member->chosen = false;
  chosen_.clear();
  promised_ = 0;
}

}  // namespace computron
