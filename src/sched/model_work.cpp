#include "computron/sched/model_work.h"

#include <algorithm>
#include <cmath>

namespace computron {

using State = AdmittedSequences::State;

Backlog ModelWork::backlog() const {
  Backlog backlog = waiting_.backlog();
  backlog += sequences_.totals().backlog;
  return backlog;
}

const Request& ModelWork::oldest() const {
  const Request* oldest = waiting_.empty() ? nullptr : &waiting_.front();
  const auto consider = [&oldest](const Request& request) {
    if (oldest == nullptr || arrives_earlier(request, *oldest)) oldest = &request;
  };
  if (next_is_preempted()) consider(sequences_.first_preempted().sequence().request());
  const auto& by_age = sequences_.running_by_age();
  if (!by_age.empty()) consider((*by_age.begin())->sequence().request());
  return *oldest;
}

std::size_t ModelWork::to_admit() const { return waiting_.size() + sequences_.count(State::kPreempted); }

std::size_t ModelWork::ready() const { return sequences_.count(State::kPrefill) + sequences_.count(State::kDecoding); }

int ModelWork::blocks_expected(int sequences) const {
  const double ratio = sequences_.growth_ratio();
  const auto to_admit = static_cast<int>(this->to_admit());
  const int more = std::clamp(sequences - sequences_.running(), 0, to_admit);
  CacheNeed to_come = waiting_.total_cache_need();
  to_come += sequences_.preempted_need();
  const int all = to_come.blocks + expected_growth(to_come.growth, ratio);
  const int coming = more == 0 ? 0 : static_cast<int>(std::ceil(static_cast<double>(all) * more / to_admit));
  const CacheNeed& running = sequences_.forecast().sum();
  return running.blocks + expected_growth(running.growth, ratio) + coming;
}

void ModelWork::enqueue(Request request) {
  arrivals_.observe(request.arrival_s);
  waiting_.push(std::move(request));
}

int ModelWork::peak_with_next() const {
  CacheNeed need;
  if (next_is_preempted()) {
    const Sequence& next = sequences_.first_preempted().sequence();
    need = cache_need(next.request(), static_cast<int>(next.tokens().size()), cache().block_tokens());
    if (next.request().may_reuse_prefix()) {
      need.blocks -= cache().prefix_hit_blocks(next.tokens(), next.request().prefix_root());
    }
  } else {
    const Request& next = waiting_.front();
    need = waiting_.cache_need_of_front();
    if (next.may_reuse_prefix()) need.blocks -= cache().prefix_hit_blocks(next.prompt, next.prefix_root());
  }
  return sequences_.forecast().peak(need, sequences_.growth_ratio());
}

void ModelWork::admit_next(SequenceId id) {
  if (next_is_preempted()) {
    sequences_.admit_preempted(id);
  } else {
    sequences_.admit(Sequence(waiting_.pop(), id, eos_tokens_));
  }
}

std::vector<ModelWork::Handle> ModelWork::begin_pass(const PassPlan& pass, StepId step, double now_s,
                                                     std::vector<SequenceChunk>& chunks) {
  std::vector<Handle> members;
  const std::size_t first = chunks.size();
  members.reserve(pass.parts.size());
  chunks.reserve(first + pass.parts.size());
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
  return sequences_.take_results(member, results, now_s);
}

std::vector<SequenceId> ModelWork::restart_running(SequenceId& last) {
  std::vector<SequenceId> told = sequences_.restart_running(last);
  set_blocks(0);
  return told;
}

}  // namespace computron
