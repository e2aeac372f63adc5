#include "computron/sched/pass_planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "computron/model/pass.h"

namespace computron {

std::optional<ModelId> PassPlanner::model_to_fill_in(double now_s) const {
  const RunOrder& order = state_.agenda.run_order();
  if (order.size() < 2 || !state_.agenda.policy().continuous_batching() || !prefetcher_.can_go_on(order.front())) {
    return std::nullopt;
  }
  const double time_s = prefetcher_.wait_s(order.front(), now_s) - state_.costs.pass_s(order.front(), 1);
  for (const ModelId model : order.models().subspan(1)) {
    if (!prefetcher_.is_ready(model, now_s)) continue;
    const auto most = static_cast<std::size_t>(state_.options.max_batch_tokens);
    const auto rows = std::clamp<std::size_t>(state_.work[model].backlog().prompt_tokens, 1, most);
    if (state_.costs.pass_s(model, static_cast<int>(rows)) < time_s) return model;
  }
  return std::nullopt;
}

std::optional<PassPlan> PassPlanner::plan(ModelId model) {
  admit(model);
  if (!state_.work[model].any_ready()) return std::nullopt;
  PassPlan pass = choose(model);
  if (pass.parts.empty() || waits_for_micro_batch(model, pass)) return std::nullopt;
  return pass;
}

// Preempted sequences and waiting requests run from now on, while there is room for the cache that they and the running
// ones will probably come to.
void PassPlanner::admit(ModelId model) {
  const bool joins =
      state_.agenda.policy().continuous_batching() || state_.work[model].sequences().totals().unfinished == 0;
  while (state_.work[model].to_admit() > 0 && (joins || state_.work[model].next_is_preempted()) && admits(model)) {
    state_.work.edit(model, [this](ModelWork& work) { work.admit_next(++state_.last_sequence); });
  }
}

// Others make room for the first model's only sequence, whatever it takes.
bool PassPlanner::admits(ModelId model) const {
  const ModelWork& work = state_.work[model];
  if (work.sequences().running() >= state_.options.max_seqs) return false;
  const bool first = state_.agenda.is_first(model);
  if (first && work.sequences().running() == 0) return true;
  const int peak = work.peak_with_next();
  return peak <= caches_.blocks_beside_others(model) && (first || peak <= caches_.blocks_in_reach(model));
}

// Blocks of the cache may make the model exceed the pool that did not: fewer rows may have logits then.
PassPlan PassPlanner::choose(ModelId model) {
  const auto choose = [&](bool exceeds) {
    const PassLimits limits = this->limits(model, exceeds);
    PassPlan pass = state_.work.edit(model, [&limits](ModelWork& work) { return work.choose(limits); });
    for (const SequenceId id : pass.released) state_.close(id);
    return pass;
  };
  const bool exceeded = caches_.exceeds_pool(model, state_.work[model].cache().count());
  PassPlan pass = choose(exceeded);
  const bool too_many_rows = pass.logit_rows > Workspace::kLogitRows;
  return !exceeded && too_many_rows && caches_.exceeds_pool(model, pass.blocks) ? choose(true) : pass;
}

// A pass takes one micro-batch of as many as there are stages, so that all stages have work.
PassLimits PassPlanner::limits(ModelId model, bool exceeds_pool) const {
  const bool first = state_.agenda.is_first(model), prefixes = state_.options.prefix_caching;
  const int beside_others = caches_.blocks_beside_others(model);
  return {.micro_batches = static_cast<int>(state_.stages()),
          .tokens = state_.options.max_batch_tokens,
          .prompt_tokens = prompt_tokens(model),
          // Beyond that many rows the head visits its pages again, and a page that rotates may be gone
          // (shard_layout.h).
          .logit_rows = exceeds_pool ? Workspace::kLogitRows : state_.options.max_batch_tokens,
          .blocks = first ? beside_others : std::min(beside_others, caches_.blocks_in_reach(model)),
          .spare_blocks = prefixes ? std::min(beside_others, caches_.blocks_in_free_frames(model)) : 0,
          .may_preempt = first};
}

// Passes that are in flight at once must take about equally long, or the stages wait for each other. So prompts are
// spread over the passes that their answers will take; but a pass may always take twice as long as one that decodes
// only, else it would be long until many sequences decode together.
int PassPlanner::prompt_tokens(ModelId model) const {
  const auto stages = static_cast<int>(state_.stages()), most = state_.options.max_batch_tokens;
  const ModelWork& work = state_.work[model];
  const auto requests = static_cast<int>(work.to_admit()) + work.sequences().running();
  const int together = std::min(requests, state_.options.max_seqs);
  if (stages == 1 || together == 1) return most;
  const Backlog backlog = work.backlog();
  const double passes = std::max(static_cast<double>(backlog.generated_tokens) / together, 1.0) * stages;
  const int level = static_cast<int>(std::min(std::ceil(backlog.prompt_tokens / passes), static_cast<double>(most)));
  const int decoding = ceil_div(together, stages);
  const double longest_s = 2 * state_.costs.bottleneck_s(model, decoding);
  int rows = level, too_many = most + 1;  // the most that take no longer lie between them
  while (too_many - rows > 1) {
    const int middle = std::midpoint(rows, too_many);
    const bool short_enough = state_.costs.bottleneck_s(model, std::min(middle + decoding, most)) <= longest_s;
    (short_enough ? rows : too_many) = middle;
  }
  return std::max(rows, 1);
}

// Whether as many passes of the model are in flight as there are stages, and the sequences that are left are no whole
// micro-batch: they wait for others to come back, else micro-batches would fall apart into ever smaller ones.
bool PassPlanner::waits_for_micro_batch(ModelId model, const PassPlan& pass) const {
  const auto passes = std::ranges::count_if(
      state_.in_flight, [model](const StepInFlight& step) { return step.model == model && step.rows > 0; });
  return !pass.full && passes >= std::ssize(state_.pools);
}

}  // namespace computron
