#include "computron/sched/pass_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "computron/model/pass.h"

namespace computron {

// The most rows of a pass, `least` at least, that are short enough, where fewer are, too.
template <class IsShortEnough>
int PassPlanner::most_rows(int least, const IsShortEnough& is_short_enough) const {
  int rows = least, too_many = state_.options.max_batch_tokens + 1;  // the most lie between them
  while (too_many - rows > 1) {
    const int middle = std::midpoint(rows, too_many);
    (is_short_enough(middle) ? rows : too_many) = middle;
  }
  return rows;
}

std::optional<PassPlanner::Filler> PassPlanner::model_to_fill_in(double now_s) const {
  const RunOrder& order = state_.agenda.run_order();
  if (order.size() < 2 || !state_.agenda.policy().continuous_batching() || !prefetcher_.can_go_on(order.front())) {
    return std::nullopt;
  }
  const double time_s = prefetcher_.wait_s(order.front(), now_s) - state_.costs.pass_s(order.front(), 1);
  for (const ModelId model : order.models().subspan(1)) {
    if (!prefetcher_.is_ready(model, now_s)) continue;
    const auto most = static_cast<std::size_t>(state_.options.max_batch_tokens);
    const auto rows = std::clamp<std::size_t>(state_.work[model].backlog().prompt_tokens, 1, most);
    const auto in_time = [&](int n) { return state_.costs.pass_s(model, n) < time_s; };
    if (in_time(static_cast<int>(rows))) return Filler{model, most_rows(static_cast<int>(rows), in_time)};
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
// ones will probably come to. Without continuous batching a request joins running sequences where it goes before all of
// them, and an interactive one unless an older one of another model waits.
void PassPlanner::admit(ModelId model) {
  const ModelWork& work = state_.work[model];
  if (work.to_admit() == 0) return;
  const bool joins = state_.agenda.policy().continuous_batching() || work.sequences().sums().totals().unfinished == 0;
  const std::int32_t least = joins ? 0 : work.sequences().sums().urgencies().begin()->first;
  const auto may_join = [&] {
    if (joins || work.next_is_preempted()) return true;
    const Request& next = work.next_to_admit();
    return next.urgency() < least || (next.priority < 0 && is_oldest_of_its_urgency(next));
  };
  while (work.to_admit() > 0 && may_join() && admits(model) && make_room(model)) admit_next(model);
}

void PassPlanner::admit_next(ModelId model) {
  state_.work.edit(model, [this](ModelWork& work) { work.admit_next(++state_.last_sequence); });
}

bool PassPlanner::is_oldest_of_its_urgency(const Request& request) const {
  return std::ranges::none_of(state_.agenda.run_order().models(), [&](ModelId other) {
    const ModelView& view = state_.agenda.view(other);
    return other != request.model && view.urgency == request.urgency() && view.oldest_arrival_s < request.arrival_s;
  });
}

// Sequences that are less urgent than others run beyond `max_seqs` with their caches, but no more than as many: however
// many urgencies there are, those that go before them preempt the last ones. Only the first model preempts anybody.
bool PassPlanner::make_room(ModelId model) {
  while (state_.work[model].sequences().running() >= 2 * state_.options.max_seqs) {
    if (!state_.agenda.is_first(model)) return false;
    std::vector<SequenceId> released;
    if (!state_.work.edit(model, [&](ModelWork& edited) { return edited.preempt_for_next(released); })) return false;
    for (const SequenceId id : released) state_.close(id);
  }
  return true;
}

// Others make room for the first model's only sequence, whatever it takes. Sequences that are less urgent than the next
// one keep their caches as long as there is room for them, but count for nothing here: they may have no part in passes,
// or be preempted (pass_plan.h).
bool PassPlanner::admits(ModelId model) const {
  const ModelWork& work = state_.work[model];
  const int running = running_as_urgent(work.sequences(), work.next_to_admit().urgency());
  if (running >= state_.options.max_seqs) return false;
  const bool first = state_.agenda.is_first(model);
  if (first && running == 0) return true;
  const int peak = work.peak_with_next();
  return peak <= caches_.blocks_beside_others(model) &&
         (first || peak <= caches_.blocks_in_reach(model, family_before(model), work.next_to_admit().urgency()));
}

// The first of the run order, if this is another model of its family.
std::optional<ModelId> PassPlanner::family_before(ModelId model) const {
  const ModelId first = state_.agenda.run_order().front();
  return first != model && state_.may_share_pass(first, model) ? std::optional(first) : std::nullopt;
}

// Calls visit(model) for the model and the others of its family that have work, in the order in which they run.
template <class Visit>
void PassPlanner::visit_family(ModelId model, Visit&& visit) const {
  if (state_.families[model] == SchedulerState::kAlone) return visit(model);
  for (const ModelId other : state_.agenda.run_order().models()) {
    if (state_.may_share_pass(model, other)) visit(other);
  }
}

// Where riders will be in the pass that are more urgent than the last sequences of its own model, those leave them what
// they have to come. Riders themselves give way as they stand in the run order.
int PassPlanner::tokens_for_riders(ModelId lead) const {
  const RunOrder& order = state_.agenda.run_order();
  const auto& urgencies = state_.work[lead].sequences().sums().urgencies();
  if (state_.families[lead] == SchedulerState::kAlone || urgencies.size() < 2) return 0;
  if (!state_.agenda.policy().continuous_batching()) return 0;
  const std::int32_t last = urgencies.rbegin()->first;
  std::size_t tokens = 0;
  for (const ModelId model : order.models().subspan(order.place(lead) + 1)) {
    if (state_.agenda.view(model).urgency >= last) break;
    if (!state_.may_share_pass(lead, model) || state_.misses_pages(model) || is_offloaded(model)) continue;
    // What waits for its turn, or for room beside others, is no reason for a pass that is nearly empty.
    const ModelWork& work = state_.work[model];
    tokens += running_tokens_before(work, last);
    if (work.to_admit() > 0 && admits(model)) tokens += work.waiting().prompt_tokens_before(last);
  }
  return static_cast<int>(std::min(tokens, static_cast<std::size_t>(state_.options.max_batch_tokens)));
}

// Blocks of the cache may make the model exceed the pool that did not: fewer rows may have logits then.
PassPlan PassPlanner::choose(ModelId model) {
  const int prompt_tokens = this->prompt_tokens(model), for_riders = tokens_for_riders(model);
  const auto choose = [&](bool exceeds) {
    PassLimits limits = this->limits(model, exceeds, prompt_tokens);
    limits.reserved = for_riders;
    return this->choose(model, limits);
  };
  const bool exceeded = caches_.exceeds_pool(model, state_.work[model].cache().count());
  PassPlan pass = choose(exceeded);
  const bool too_many_rows = pass.logit_rows > Workspace::kLogitRows;
  return !exceeded && too_many_rows && caches_.exceeds_pool(model, pass.blocks) ? choose(true) : pass;
}

PassPlan PassPlanner::choose(ModelId model, const PassLimits& limits) {
  PassPlan pass = state_.work.edit(model, [&limits](ModelWork& work) { return work.choose(limits); });
  for (const SequenceId id : pass.released) state_.close(id);
  return pass;
}

// A pass takes one micro-batch of as many as there are stages, so that all stages have work.
PassLimits PassPlanner::limits(ModelId model, bool exceeds_pool, int prompt_tokens) const {
  const bool first = state_.agenda.is_first(model), prefixes = state_.options.prefix_caching;
  const int beside_others = caches_.blocks_beside_others(model);
  return {
      .micro_batches = static_cast<int>(state_.stages()),
      .sequences = state_.options.max_seqs,
      .tokens = state_.options.max_batch_tokens,
      .prompt_tokens = prompt_tokens,
      // Beyond that many rows the head visits its pages again, and a page that rotates may be gone
      // (shard_layout.h).
      .logit_rows = exceeds_pool ? Workspace::kLogitRows : state_.options.max_batch_tokens,
      .blocks = first ? beside_others : std::min(beside_others, caches_.blocks_in_reach(model, family_before(model))),
      .spare_blocks = prefixes ? std::min(beside_others, caches_.blocks_in_free_frames(model)) : 0,
      .may_preempt = first};
}

// Passes that are in flight at once must take about equally long, or the stages wait for each other; and where
// interactive requests come, each of them may wait for any pass of batch work. So prompts are spread over the passes
// that their answers will take; but a pass may always take twice as long as one that decodes only, else it would be
// long until many sequences decode together. Riders of the pass have their part of it.
int PassPlanner::prompt_tokens(ModelId model) const {
  const auto stages = static_cast<int>(state_.stages()), most = state_.options.max_batch_tokens;
  if (stages == 1 && !(state_.interactive && any_batch_work(model))) return most;
  int together = 0;
  Backlog backlog;
  visit_family(model, [&](ModelId other) {
    const ModelWork& work = state_.work[other];
    const auto requests = static_cast<int>(work.to_admit()) + work.sequences().running();
    together += std::min(requests, state_.options.max_seqs);
    backlog += work.backlog();
  });
  if (together == 1) return most;
  const double passes = std::max(static_cast<double>(backlog.generated_tokens) / together, 1.0) * stages;
  const int level = static_cast<int>(std::min(std::ceil(backlog.prompt_tokens / passes), static_cast<double>(most)));
  const int decoding = ceil_div(together, stages);
  const double longest_s = 2 * state_.costs.bottleneck_s(model, decoding);
  const int rows = most_rows(
      level, [&](int n) { return state_.costs.bottleneck_s(model, std::min(n + decoding, most)) <= longest_s; });
  return std::max(rows, 1);
}

// Among the running sequences of its family, and those of others of it that may join them.
bool PassPlanner::any_batch_work(ModelId model) const {
  bool any = false;
  visit_family(model, [&](ModelId other) {
    const ModelWork& work = state_.work[other];
    const auto& urgencies = work.sequences().sums().urgencies();
    any |= (!urgencies.empty() && urgencies.rbegin()->first >= 0) || (other != model && work.waiting().any_batch());
  });
  return any;
}

bool PassPlanner::is_offloaded(ModelId model) const {
  return std::ranges::any_of(state_.pools, [model](const StagePool& pool) { return pool.offloaded(model); });
}

// That the model, or another of its family, has rows in.
int PassPlanner::passes_in_flight(ModelId model) const {
  return static_cast<int>(std::ranges::count_if(state_.in_flight, [&](const StepInFlight& step) {
    return step.rows > 0 && state_.may_share_pass(step.model, model);
  }));
}

// Whether as many passes of the model are in flight as there are stages, and the sequences that are left are no whole
// micro-batch: they wait for others to come back, else micro-batches would fall apart into ever smaller ones.
bool PassPlanner::waits_for_micro_batch(ModelId model, const PassPlan& pass) const {
  if (std::cmp_less(passes_in_flight(model), state_.stages())) return false;
  if (state_.families[model] == SchedulerState::kAlone) return !pass.full;
  return pass.rows < state_.options.max_batch_tokens && !is_whole_micro_batch(model);
}

// Of those of the family that a pass could take and those in flight, a p-th is not in flight.
bool PassPlanner::is_whole_micro_batch(ModelId model) const {
  std::size_t ready = 0, in_flight = 0;
  visit_family(model, [&](ModelId other) {
    const ModelWork& work = state_.work[other];
    in_flight += work.in_flight();
    if (state_.misses_pages(other)) return;
    ready += work.ready();
    // Of the model itself all that can be admitted have been.
    if (other != model && work.sequences().running() < state_.options.max_seqs) ready += work.to_admit();
  });
  return ready * state_.stages() >= ready + in_flight;
}

// --- Riders -----------------------------------------------------------------------------------------------------

// Nobody before whom the first one waits for room. Those that are left wait for a whole micro-batch, too.
std::vector<ModelId> PassPlanner::other_leads(double now_s) const {
  const RunOrder& order = state_.agenda.run_order();
  if (order.size() < 2 || !state_.agenda.policy().continuous_batching()) return {};
  const ModelId first = order.front();
  if (state_.families[first] == SchedulerState::kAlone || state_.work[first].any_ready()) return {};
  if (std::cmp_greater_equal(passes_in_flight(first), state_.stages()) && !is_whole_micro_batch(first)) return {};
  std::vector<ModelId> leads;
  for (const ModelId model : order.models().subspan(1)) {
    const ModelWork& work = state_.work[model];
    const bool any = work.any_ready() || work.to_admit() > 0;
    if (any && state_.may_share_pass(first, model) && prefetcher_.is_ready(model, now_s)) leads.push_back(model);
  }
  return leads;
}

std::vector<ModelId> PassPlanner::riders(ModelId lead, bool fills_in, double now_s) const {
  const RunOrder& order = state_.agenda.run_order();
  const bool may = state_.families[lead] != SchedulerState::kAlone && state_.agenda.policy().continuous_batching() &&
                   !caches_.exceeds_pool(lead, state_.work[lead].cache().count());
  if (!may) return {};
  const double wait_s = prefetcher_.wait_s(lead, now_s);
  std::vector<ModelId> riders;
  for (const ModelId model : order.models().subspan(order.place(lead) + 1)) {
    if (!state_.may_share_pass(lead, model) || state_.misses_pages(model)) continue;
    if (is_offloaded(model)) continue;
    if (fills_in ? prefetcher_.is_ready(model, now_s) : prefetcher_.wait_s(model, now_s) <= wait_s) {
      riders.push_back(model);
    }
  }
  return riders;
}

void PassPlanner::Room::take(const PassPlan& pass) {
  sequences -= static_cast<int>(pass.parts.size());
  tokens -= pass.rows;
  prompt_tokens -= pass.prompt_rows;
  logit_rows -= pass.logit_rows;
}

// A micro-batch is one of all of the family's sequences, those of riders among them that will be admitted.
PassPlanner::Room PassPlanner::room_beside(ModelId lead, const PassPlan& pass, std::span<const ModelId> riders,
                                           const std::optional<Filler>& filler) const {
  int running = 0;
  visit_family(lead, [&](ModelId model) {
    const ModelWork& work = state_.work[model];
    running += work.sequences().running();
    if (std::ranges::find(riders, model) == riders.end() || work.to_admit() == 0 || !admits(model)) return;
    running += std::clamp(state_.options.max_seqs - work.sequences().running(), 0, static_cast<int>(work.to_admit()));
  });
  const auto& urgencies = state_.work[lead].sequences().sums().urgencies();
  Room room{.last = urgencies.empty() ? std::numeric_limits<std::int32_t>::min() : urgencies.rbegin()->first,
            .sequences = ceil_div(running, static_cast<int>(state_.stages())),
            .tokens = filler ? filler->most_rows : state_.options.max_batch_tokens,
            .prompt_tokens = prompt_tokens(lead),
            .logit_rows = state_.options.max_batch_tokens,
            .fills_in = filler.has_value()};
  room.take(pass);
  return room;
}

// Without changing anybody's residency, where the pass fills in.
int PassPlanner::blocks_of_rider(ModelId model, bool fills_in) const {
  return fills_in ? caches_.blocks_to_spare(model, state_.agenda.run_order().front()) : std::numeric_limits<int>::max();
}

// As many as the pass has room for: of sequences, and of tokens, of which each takes one at least; and one that is more
// urgent than all that run, which passes take first. The policy lets requests join running sequences, or nobody would
// ride.
void PassPlanner::admit_riders(ModelId model, const Room& room) {
  const int blocks = blocks_of_rider(model, room.fills_in);
  const ModelWork& work = state_.work[model];
  while (work.to_admit() > 0) {
    const auto ready = static_cast<int>(work.ready());
    const auto prompts = static_cast<int>(work.sequences().sums().totals().backlog.prompt_tokens);
    const auto& urgencies = work.sequences().sums().urgencies();
    const bool goes_first = !urgencies.empty() && work.next_to_admit().urgency() < urgencies.begin()->first;
    const bool before_lead = work.next_to_admit().urgency() < room.last;
    const int most = before_lead ? room.tokens - ready : std::min(room.prompt_tokens, room.tokens - ready);
    const bool full = ready >= room.sequences || prompts >= most;
    if (full && !goes_first) return;
    if (work.peak_with_next() > blocks || !admits(model) || !make_room(model)) return;
    admit_next(model);
  }
}

std::optional<PassPlan> PassPlanner::plan_rider(ModelId model, const Room& room) {
  admit_riders(model, room);
  if (!state_.work[model].any_ready()) return std::nullopt;
  // Nobody's prompt is spread over passes for the sake of those that are less urgent.
  const auto& urgencies = state_.work[model].sequences().sums().urgencies();
  const bool before_lead = !urgencies.empty() && urgencies.rbegin()->first < room.last;
  const int prompt_tokens = before_lead ? room.tokens : std::max(room.prompt_tokens, 0);
  PassLimits limits = this->limits(model, /*exceeds_pool=*/false, prompt_tokens);
  limits.blocks = std::min(limits.blocks, blocks_of_rider(model, room.fills_in));
  limits.spare_blocks = std::min(limits.spare_blocks, limits.blocks);
  limits.sequences = room.sequences;
  limits.tokens = room.tokens;
  limits.logit_rows = room.logit_rows;
  PassPlan pass = choose(model, limits);
  return pass.parts.empty() ? std::nullopt : std::optional(std::move(pass));
}

}  // namespace computron
