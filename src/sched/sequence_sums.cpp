#include "computron/sched/sequence_sums.h"

#include <algorithm>
#include <utility>

namespace computron {
namespace {

SequenceTotals totals_of(const Sequence& sequence, bool preempted) {
  SequenceTotals totals;
  if (sequence.finished()) return totals;
  const bool ends = sequence.ends_in_flight();
  if (!preempted) {
    totals.unfinished = ends ? 0 : 1;
    totals.decoding = sequence.pending_tokens() <= 1 ? 1 : 0;
  }
  if (ends) return totals;
  totals.backlog = {.prompt_tokens = static_cast<std::size_t>(sequence.pending_tokens()),
                    .generated_tokens = static_cast<std::size_t>(std::max(sequence.tokens_to_come(), 1)),
                    .arrivals_s = sequence.request().arrival_s};
  return totals;
}

}  // namespace

void SequenceSums::count(Counted& counted, const Sequence& sequence, bool preempted, int shared_blocks,
                         int block_tokens) {
  const SequenceTotals now = totals_of(sequence, preempted);
  totals_ -= std::exchange(counted.totals, now);
  totals_ += now;
  count_need(counted, sequence, preempted, shared_blocks, block_tokens);
  count_urgency(counted, sequence, preempted);
}

void SequenceSums::count_need(Counted& counted, const Sequence& sequence, bool preempted, int shared_blocks,
                              int block_tokens) {
  using In = Counted::NeedIn;
  const In in = sequence.finished() ? In::kNone : preempted ? In::kPreempted : In::kForecast;
  CacheNeed need;
  int owned = 0;
  if (in != In::kNone) {
    need = cache_need(sequence.request(), static_cast<int>(sequence.tokens().size()), block_tokens);
    need.blocks -= shared_blocks;  // another one owns them, or nobody (AdmittedSequences::unowned_blocks())
    owned = static_cast<int>(sequence.blocks().size()) - shared_blocks;
  }
  owned_blocks_ += owned - std::exchange(counted.owned_blocks, owned);
  if (in == counted.need_in && need == counted.need) return;
  if (counted.need_in == In::kForecast) forecast_.remove(counted.need);
  if (counted.need_in == In::kPreempted) preempted_need_ -= counted.need;
  if (in == In::kForecast) forecast_.add(need);
  if (in == In::kPreempted) preempted_need_ += need;
  counted.need_in = in;
  counted.need = need;
}

void SequenceSums::count_urgency(Counted& counted, const Sequence& sequence, bool preempted) {
  const bool counts = counted.totals.backlog.generated_tokens > 0;
  const std::optional<std::int32_t> urgency = counts ? std::optional(sequence.request().urgency()) : std::nullopt;
  UrgencyTotals now;
  if (counts) now = {1, preempted ? 0 : 1, !preempted && sequence.catching_up() ? 1 : 0};
  if (urgency == counted.urgency && now == counted.of_urgency) return;  // with almost every token
  if (counted.urgency) {
    const auto before = urgencies_.find(*counted.urgency);
    before->second -= counted.of_urgency;
    if (before->second.all == 0) urgencies_.erase(before);
  }
  if (urgency) urgencies_[*urgency] += now;
  counted.urgency = urgency;
  counted.of_urgency = now;
}

UrgencyTotals SequenceSums::of_urgency(std::int32_t urgency) const {
  const auto found = urgencies_.find(urgency);
  return found == urgencies_.end() ? UrgencyTotals{} : found->second;
}

}  // namespace computron
