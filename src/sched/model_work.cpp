#include "computron/sched/model_work.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace computron {

using State = AdmittedSequences::State;

Backlog ModelWork::backlog() const {
  Backlog backlog = waiting_.backlog();
  backlog += sequences_.sums().totals().backlog;
  return backlog;
}

const Request& ModelWork::oldest() const {
  const auto* const admitted = sequences_.oldest();
  const bool waits =
      admitted == nullptr || (!waiting_.empty() && arrives_earlier(waiting_.oldest(), admitted->sequence().request()));
  return waits ? waiting_.oldest() : admitted->sequence().request();
}

const Request& ModelWork::oldest_urgent() const {
  const std::int32_t urgency = this->urgency();
  const auto* const admitted = sequences_.oldest(urgency);
  if (waiting_.empty() || waiting_.front().urgency() != urgency) return admitted->sequence().request();
  const Request& waits = waiting_.oldest_urgent();
  const bool is_older = admitted == nullptr || arrives_earlier(waits, admitted->sequence().request());
  return is_older ? waits : admitted->sequence().request();
}

std::int32_t ModelWork::urgency() const {
  std::int32_t least = std::numeric_limits<std::int32_t>::max();
  if (!waiting_.empty()) least = waiting_.front().urgency();
  const auto& urgencies = sequences_.sums().urgencies();
  return urgencies.empty() ? least : std::min(least, urgencies.begin()->first);
}

void ModelWork::age_oldest() {
  const auto* const admitted = sequences_.oldest();
  if (admitted != nullptr && &admitted->sequence().request() == &oldest()) {
    sequences_.age_oldest();
  } else {
    waiting_.age_oldest();
  }
}

bool ModelWork::next_is_preempted() const {
  if (sequences_.count(State::kPreempted) == 0) return false;
  return waiting_.empty() || waiting_.front().urgency() >= sequences_.first_preempted().sequence().request().urgency();
}

const Request& ModelWork::next_to_admit() const {
  return next_is_preempted() ? sequences_.first_preempted().sequence().request() : waiting_.front();
}

std::size_t ModelWork::to_admit() const { return waiting_.size() + sequences_.count(State::kPreempted); }

std::size_t ModelWork::ready() const { return sequences_.count(State::kPrefill) + sequences_.count(State::kDecoding); }

int ModelWork::blocks_expected(int sequences) const {
  const double ratio = sequences_.growth_ratio();
  const auto to_admit = static_cast<int>(this->to_admit());
  const int more = std::clamp(sequences - sequences_.running(), 0, to_admit);
  CacheNeed to_come = waiting_.total_cache_need();
  to_come += sequences_.sums().preempted_need();
  const int all = to_come.blocks + expected_growth(to_come.growth, ratio);
  const int coming = more == 0 ? 0 : static_cast<int>(std::ceil(static_cast<double>(all) * more / to_admit));
  const CacheNeed& running = sequences_.sums().forecast().sum();
  return sequences_.unowned_blocks() + running.blocks + expected_growth(running.growth, ratio) + coming;
}

void ModelWork::enqueue(Request request) {
  arrivals_.observe(request.arrival_s);
  waiting_.push(std::move(request));
}

int ModelWork::peak_with_next() const {
  const bool preempted = next_is_preempted();
  const Request& next = next_to_admit();
  const std::span<const TokenId> tokens =
      preempted ? sequences_.first_preempted().sequence().tokens() : std::span(next.prompt);
  const CacheNeed need = preempted ? cache_need(next, static_cast<int>(tokens.size()), cache().block_tokens())
                                   : waiting_.cache_need_of_front();
  std::vector<std::uint32_t> prefix;
  if (next.may_reuse_prefix()) prefix = cache().find_prefix(tokens, next.prefix_root());
  return peak_as_urgent(sequences_, next.urgency(), need, prefix);
}

void ModelWork::admit_next(SequenceId id) {
  if (next_is_preempted()) {
    sequences_.admit_preempted(id);
  } else {
    sequences_.admit(Sequence(waiting_.pop(), id, eos_tokens_));
  }
}

bool ModelWork::preempt_for_next(std::vector<SequenceId>& released) {
  const auto last = sequences_.last_behind(next_to_admit().urgency());
  if (!last) return false;
  if ((*last)->sequence().begun()) released.push_back((*last)->sequence().id());
  sequences_.preempt(*last);
  return true;
}

std::vector<ModelWork::Handle> ModelWork::begin_pass(const PassPlan& pass, StepId step, double now_s,
                                                     std::vector<SequenceChunk>& chunks) {
  std::vector<Handle> members;
  const std::size_t first = chunks.size();
  members.reserve(pass.parts.size());
  // Of many models one after the other: not to just this one's size each time.
  if (chunks.capacity() < first + pass.parts.size()) chunks.reserve(std::max(2 * first, first + pass.parts.size()));
  for (const auto& [member, tokens] : pass.parts) {
    sequences_.next_chunk(member, tokens, chunks);
    members.push_back(member);
  }
  // Only now: nobody finds in a pass what that pass computes.
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Sequence& sequence = members[i]->sequence();
    const int size = cache().block_tokens();
    if (sequence.request().may_reuse_prefix()) {
      sequences_.cache().cache_full_blocks(sequence.blocks(), sequence.tokens(),
                                           static_cast<int>(chunks[first + i].start) / size,
                                           sequence.computed_tokens() / size, sequence.request().prefix_root());
    }
  }
  prompts_first_ = pass.prompt_rows == 0;
  last_step_ = step;
  // A rider takes what the first model leaves, which ends nobody's wait who found no room.
  if (first == 0 || to_admit() == 0) last_pass_s_ = now_s;
  return members;
}

std::optional<Completion> ModelWork::take_results(Handle member, PassResults& results, double now_s) {
  const std::int32_t priority = member->sequence().request().priority;
  const std::uint64_t tenant = member->sequence().request().tenant;
  const int to_come = member->sequence().tokens_to_come();
  std::optional<Completion> completion = sequences_.take_results(member, results, now_s);
  const int left = completion ? std::max(to_come - 1, 0) : member->sequence().tokens_to_come();
  waiting_.charge_generated(priority, tenant, to_come - left);
  return completion;
}

std::vector<SequenceId> ModelWork::restart_running(SequenceId& last) {
  std::vector<SequenceId> told = sequences_.restart_running(last);
  set_blocks(0);
  return told;
}

std::size_t running_tokens_before(const ModelWork& work, std::int32_t urgency) {
  std::size_t tokens = 0;
  const auto& urgencies = work.sequences().sums().urgencies();
  if (urgencies.empty() || urgencies.begin()->first >= urgency) return tokens;
  for (const AdmittedSequences::Handle& member : work.sequences().running_by_age()) {
    if (member->state() == State::kInFlight || member->sequence().request().urgency() >= urgency) continue;
    tokens += static_cast<std::size_t>(member->sequence().pending_tokens());
  }
  return tokens;
}

}  // namespace computron
