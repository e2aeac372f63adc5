#include "computron/sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace computron {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// But for what changes with time.
ModelView view_of(const SchedulerState& state, ModelId model) {
  const ModelWork& work = state.work[model];
  ModelView view{.model = model,
                 .waiting = work.to_admit(),
                 .running = work.sequences().sums().totals().unfinished,
                 .last_arrival_s = work.arrivals().last_s(),
                 .arrival_gap_s = work.arrivals().gap_s(),
                 .arrival_gap2_s2 = work.arrivals().gap2_s2(),
                 .last_used = work.last_step(),
                 .pinned = state.models[model].pinned,
                 .priority = state.models[model].priority};
  if (!view.has_work()) return view;
  const Request& oldest = work.oldest_urgent();
  const Backlog backlog = work.backlog();
  view.oldest_arrival_s = oldest.arrival_s;
  view.oldest_request = oldest.id;
  view.waiting_since_s = std::max(view.oldest_arrival_s, work.last_pass_s());
  view.arrivals_s = backlog.arrivals_s;
  view.urgency = work.urgency();
  const UrgencyTotals urgent = work.sequences().sums().of_urgency(view.urgency);
  view.running_urgent = static_cast<std::size_t>(urgent.running);
  view.catching_up = urgent.catching_up > 0;
  view.compute_s = state.costs.backlog_s(model, {view.requests(), backlog.prompt_tokens, backlog.generated_tokens},
                                         state.options.max_batch_tokens, state.options.max_seqs);
  return view;
}

Completion refusal(const Request& request, std::string message) {
  Completion completion = ended(request);
  completion.error_code = "context_length_exceeded";
  completion.error_message = std::move(message);
  return completion;
}

// On all stages: tokens are hashed once, and beforehand where that is worth it.
void extend(SchedulerState& state, const Step& step) {
  const bool hash = state.stages() > 1 || std::cmp_greater(step.rows(), 2 * step.chunks.size());
  for (const auto& [model, chunks] : step.by_model()) {
    std::vector<std::uint64_t> histories;
    if (hash) histories = state.pools.front().state().histories(model, chunks);
    std::span<const std::uint64_t> left = histories;
    for (const SequenceChunk& chunk : chunks) {
      const std::size_t tokens = hash ? chunk.tokens.size() : 0;
      for (StagePool& pool : state.pools) pool.state().extend(model, chunk, left.first(tokens));
      left = left.subspan(tokens);
    }
  }
}

// Fetches of the one before count as a new swap from now on.
void activate(ModelId model, double now_s, ActiveModel& active, Prefetcher& prefetcher) {
  if (active.model == model) return;
  if (active.model) prefetcher.forget_swap(*active.model);
  active = {model, now_s};
}

void count_anew(OpenRequests& open, const SchedulerState& state, ModelId model) {
  open.count_anew(model, state.costs, state.work[model].sequences().growth_ratio());
}

// Of the passes in flight, what the slowest stage has computed.
double computed_in_flight_s(const SchedulerState& state, double now_s) {
  double all_s = 0;
  for (const StepInFlight& step : state.in_flight) {
    if (step.rows > 0) all_s += state.costs.bottleneck_s(step.model, step.rows);
  }
  return std::max(all_s - (state.computed_s(now_s) - now_s), 0.0);
}

// Who has lost a cache gets it back before anybody ages, else two models might evict each other's for ever: of the
// active model the most urgent ones, which nobody goes before.
bool catches_up(const SchedulerState& state, const ActiveModel& active) {
  if (!active.model) return false;
  const ModelWork& work = state.work[*active.model];
  return work.sequences().sums().of_urgency(work.urgency()).catching_up > 0;
}

// Of all that has arrived and has not ended, also of what will with what is in flight.
std::int32_t least_urgency(const SchedulerState& state) {
  std::int32_t least = std::numeric_limits<std::int32_t>::max();
  for (const ModelId model : state.work.with_work()) least = std::min(least, state.work[model].urgency());
  const auto consider = [&least](const std::vector<ModelWork::Handle>& members) {
    for (const ModelWork::Handle& member : members) least = std::min(least, member->sequence().request().urgency());
  };
  for (const StepInFlight& step : state.in_flight) {
    consider(step.members);
    for (const StepInFlight::Rider& rider : step.riders) consider(rider.members);
  }
  return least;
}

// Ends the requests of a model that wait and whose deadlines have passed.
void drop_late(SchedulerState& state, ModelId model, double now_s, OpenRequests& open, std::vector<Completion>& ends) {
  const auto take_late = [now_s](ModelWork& work) { return work.take_late(now_s); };
  for (const Request& request : state.work.edit(model, take_late)) {
    open.remove(model, OpenRequests::work_of(request));
    ends.push_back(late_completion(
        request, fmt::format("it had not begun when its deadline of {} s had passed", request.deadline_s), now_s));
  }
  count_anew(open, state, model);
}

// Looks at the models that have work, and at requests only where some are late.
void drop_late(SchedulerState& state, double now_s, OpenRequests& open, std::vector<Completion>& ends) {
  std::vector<ModelId> models;  // a model may have no work afterwards
  for (const ModelId model : state.work.with_work()) {
    if (state.work[model].waiting().first_due_s() < now_s) models.push_back(model);
  }
  for (const ModelId model : models) drop_late(state, model, now_s, open, ends);
}

// Puts the sequences into the step that is being planned. Returns them.
std::vector<ModelWork::Handle> begin_pass(SchedulerState& state, ModelId model, const PassPlan& pass, double now_s,
                                          PlannedStep& planned) {
  Step& step = planned.step;
  for (const auto& part : pass.parts) {
    const Sequence& sequence = part.member->sequence();
    if (!sequence.begun()) planned.begun.push_back(sequence.request().id);
  }
  return state.work.edit(model, [&](ModelWork& work) { return work.begin_pass(pass, step.id, now_s, step.chunks); });
}

// Puts riders into the step, in what its own model's part `lead` leaves. What room a rider's cache takes may be pages
// of one that runs behind it, which then does not ride.
std::vector<StepInFlight::Rider> add_riders(SchedulerState& state, PassPlanner& passes, CacheAllocator& caches,
                                            const PassPlan& lead, const std::optional<PassPlanner::Filler>& filler,
                                            double now_s, PlannedStep& planned) {
  Step& step = planned.step;
  std::vector<StepInFlight::Rider> riders;
  const std::vector<ModelId> models = passes.riders(step.model, filler.has_value(), now_s);
  if (models.empty()) return riders;
  PassPlanner::Room room = passes.room_beside(step.model, lead, models, filler);
  for (const ModelId model : models) {
    if (room.is_full()) break;
    if (state.misses_pages(model)) continue;
    const std::optional<PassPlan> pass = passes.plan_rider(model, room);
    if (!pass || !caches.allocate_in_reach(model, pass->blocks)) continue;
    const std::size_t first = step.chunks.size();
    riders.push_back({model, begin_pass(state, model, *pass, now_s, planned)});
    for (SequenceChunk& chunk : std::span(step.chunks).subspan(first)) chunk.rider = model;
    for (StagePool& pool : state.pools) pool.ride_along(step.id, model);
    room.take(*pass);
  }
  return riders;
}

// The members of a model take theirs from the front; those that have ended are completions.
void take_results(SchedulerState& state, OpenRequests& open, ModelId model, std::span<const ModelWork::Handle> members,
                  PassResults& results, double now_s, std::vector<Completion>& ends) {
  state.work.edit(model, [&](ModelWork& work) {
    for (const ModelWork::Handle member : members) {
      const SequenceId id = member->sequence().id();
      const OpenRequests::Work of_member = OpenRequests::work_of(member->sequence().request());
      std::optional<Completion> completion = work.take_results(member, results, now_s);
      if (!completion) continue;
      state.close(id);
      open.remove(model, of_member);
      completion->finished_s = now_s;
      ends.push_back(std::move(*completion));
    }
  });
  count_anew(open, state, model);
}

}  // namespace

Scheduler::Scheduler(std::vector<ModelShape> models, std::vector<std::string> names, std::unique_ptr<Policy> policy,
                     const SchedulerOptions& options)
    : names_(std::move(names)),
      state_(std::make_unique<SchedulerState>(std::move(models), std::move(policy), options)),
      caches_(*state_, names_),
      prefetcher_(*state_, caches_),
      passes_(*state_, caches_, prefetcher_),
      arriving_(state_->models.size()),
      aging_(state_->models.size(), state_->agenda.policy().max_wait_s()),
      open_(state_->models.size(), options.max_batch_tokens,
            ceil_div(options.max_seqs, static_cast<int>(state_->stages()))) {}

// --- Requests ---------------------------------------------------------------------------------------------------

void Scheduler::submit(Request request) {
  const ModelId model = request.model;
  if (request.needs_no_pass()) {
    completions_.push_back(Sequence(std::move(request), 0, {}).take_completion());
  } else if (std::string reason = why_refused(request, model); !reason.empty()) {
    completions_.push_back(refusal(request, std::move(reason)));
  } else {
    open_.add(model, OpenRequests::work_of(request));
    count_anew(open_, *state_, model);
    any_urgency_ |= request.priority != 0;
    if (request.priority < 0) interactive_s_ = std::min(interactive_s_, request.arrival_s);
    arriving_.push(std::move(request));
  }
}

// An encoder's input is computed in one pass.
std::string Scheduler::why_refused(const Request& request, ModelId model) const {
  if (!caches_.can_ever_fit(model, state_->work[model].cache().blocks_for(request.cache_tokens()))) {
    return fmt::format("{} tokens of cache can never fit beside the weights of {} in the device memory",
                       request.cache_tokens(), names_[model]);
  }
  if (request.is_whole() && std::cmp_greater(request.prompt.size(), state_->options.max_batch_tokens)) {
    return fmt::format("{} tokens for {} are more than the {} of a step, and an encoder takes all at once",
                       request.prompt.size(), names_[model], state_->options.max_batch_tokens);
  }
  return {};
}

double Scheduler::quote_s(ModelId model, const Request& request, double now_s) const {
  const double growth_ratio = state_->work[model].sequences().growth_ratio();
  if (!request.needs_no_pass() && !why_refused(request, model).empty()) return kNever;
  const std::size_t rank = OpenRequests::work_of(request).rank;
  const bool before_others = open_.count_before(rank) < open_.count();
  // The passes in flight end before it begins, whoever's they are.
  const double queue_s = before_others ? open_.work_before_s(rank) + state_->computed_s(now_s) - now_s
                                       : open_.work_s() - computed_in_flight_s(*state_, now_s);
  const double transfer_s = before_others ? prefetcher_.wait_behind_s(model, open_.models_before(rank), now_s)
                                          : prefetcher_.wait_behind_s(model, open_.models(), now_s);
  return std::max({queue_s, transfer_s, request.arrival_s - now_s}) +
         open_.alone_s(model, request, state_->costs, growth_ratio);
}

std::vector<Request> Scheduler::recall(ModelId model, std::size_t n, const Accepts& accepts) {
  std::vector<Request> taken = arriving_.take_youngest(model, n, accepts);
  const auto take_rest = [&](ModelWork& work) { return work.take_youngest(n - taken.size(), accepts); };
  std::ranges::move(state_->work.edit(model, take_rest), std::back_inserter(taken));
  for (const Request& request : taken) open_.remove(model, OpenRequests::work_of(request));
  count_anew(open_, *state_, model);
  return taken;
}

bool Scheduler::has_work(double now_s) const {
  return !state_->work.with_work().empty() || (!arriving_.empty() && arriving_.next_arrival_s() <= now_s);
}

double Scheduler::resident_ratio(ModelId model) const {
  int pages = 0, missing = 0;
  for (const StagePool& pool : state_->pools) {
    pages += pool.state().layout(model).pages();
    missing += pool.missing_pages(model);
  }
  return pages > 0 ? 1 - static_cast<double>(missing) / pages : 0;
}

// --- Decisions --------------------------------------------------------------------------------------------------

Decision Scheduler::next(double now_s) {
  if (waits_for_input(now_s)) return WaitUntil{interactive_s_};
  begun_ = true;
  decide_run_order(now_s);
  const std::deque<StepInFlight>& in_flight = state_->in_flight;
  const auto fetch_steps = std::ranges::count_if(in_flight, [](const StepInFlight& step) { return step.rows == 0; });
  std::optional<PlannedStep> planned;
  if (std::ssize(in_flight) - fetch_steps < state_->options.steps_in_flight) planned = plan_pass(now_s);
  if (!planned && fetch_steps < kMaxFetchSteps) planned = plan_fetch_step(now_s);
  if (planned) return seal(std::move(*planned));
  const bool idle = state_->agenda.run_order().empty() && in_flight.empty() && arriving_.empty();
  if (idle && input_closed_) return AllDone{};
  const double arrival_s = arriving_.empty() ? kNever : arriving_.next_arrival_s();
  return WaitUntil{std::min(arrival_s, prefetcher_.wakes_s(now_s))};
}

// Of what has arrived and is not late. The policy is shown anew what has changed since the last decision, and what
// changes with time.
void Scheduler::decide_run_order(double now_s) {
  SchedulerState& state = *state_;
  while (!arriving_.empty() && arriving_.next_arrival_s() <= now_s) {
    Request request = arriving_.pop();
    state.interactive |= request.priority < 0;
    state.work.edit(request.model, [&request](ModelWork& work) { work.enqueue(std::move(request)); });
  }
  if (state.options.on_late == OnLate::kDrop) drop_late(state, now_s, open_, completions_);
  if (any_urgency_ && !catches_up(state, active_)) aging_.age(state.work, now_s);
  const auto show = [&state](ModelId model) { state.agenda.show(view_of(state, model)); };
  state.work.visit_edited(WorkTable::Reader::kPolicy, show);
  for (const ModelId model : state.work.with_work()) {
    const double swap_s = model == active_.model ? state.costs.swap_s(model) : 0;
    state.agenda.show_times(model, prefetcher_.wait_s(model, now_s), swap_s);
  }
  state.agenda.decide(state.work.with_work(), active_, !input_ended_ || !arriving_.empty(), now_s);
}

std::optional<PlannedStep> Scheduler::plan_pass(double now_s) {
  if (const std::optional<PassPlanner::Filler> filler = passes_.model_to_fill_in(now_s)) {
    if (auto planned = plan_pass_of(filler->model, filler, now_s)) return planned;
  }
  const RunOrder& order = state_->agenda.run_order();
  if (order.empty()) return std::nullopt;
  if (auto planned = plan_pass_of(order.front(), std::nullopt, now_s)) return planned;
  for (const ModelId other : passes_.other_leads(now_s)) {
    if (auto planned = plan_pass_of(other, std::nullopt, now_s)) return planned;
  }
  return std::nullopt;
}

std::optional<PlannedStep> Scheduler::plan_pass_of(ModelId model, const std::optional<PassPlanner::Filler>& filler,
                                                   double now_s) {
  SchedulerState& state = *state_;
  const std::optional<PassPlan> pass = passes_.plan(model);
  if (!pass || !caches_.allocate(model, pass->blocks)) return std::nullopt;
  PlannedStep planned;
  Step& step = planned.step;
  step.id = ++last_step_;
  step.model = model;
  std::vector<ModelWork::Handle> members = begin_pass(state, model, *pass, now_s, planned);
  const ModelWork& work = state.work[model];
  const bool again = work.sequences().sums().totals().unfinished > 0 || work.to_admit() > 0;
  prefetcher_.fetch_missing(step.id, model, again, now_s);
  if (state.agenda.is_first(model)) activate(model, now_s, active_, prefetcher_);
  // All of it is there or on its way.
  if (!caches_.exceeds_pool(model, work.cache().count())) prefetcher_.forget_swap(model);
  std::vector<StepInFlight::Rider> riders = add_riders(state, passes_, caches_, *pass, filler, now_s, planned);
  for (const StepInFlight::Rider& rider : riders) prefetcher_.forget_swap(rider.model);
  const double end_s = std::max(state.computed_s(now_s) + state.costs.bottleneck_s(model, step.rows()),
                                now_s + prefetcher_.wait_s(model, now_s));
  state.in_flight.push_back({step.id, model, step.rows(), std::move(members), end_s, std::move(riders)});
  if (any_urgency_) aging_.note_pass(state.work, least_urgency(state), now_s);
  prefetcher_.prefetch(now_s);
  return planned;
}

std::optional<PlannedStep> Scheduler::plan_fetch_step(double now_s) {
  const std::optional<ModelId> model = prefetcher_.plan_fetch_step(now_s);
  if (!model) return std::nullopt;
  PlannedStep planned;
  planned.step.id = ++last_step_;
  planned.step.model = *model;
  const double end_s = state_->in_flight.empty() ? now_s : state_->in_flight.back().end_s;
  state_->in_flight.push_back({planned.step.id, *model, 0, {}, end_s});
  return planned;
}

// Brings the stages' states up to date and notes what the ranks must report.
PlannedStep Scheduler::seal(PlannedStep planned) {
  planned.step.closed = std::exchange(state_->closed, {});
  planned.swaps = prefetcher_.take_swaps();
  extend(*state_, planned.step);
  for (StagePool& pool : state_->pools) {
    planned.step.stages.push_back(pool.take_plan());
    planned.expected.push_back(pool.state().digest_after(planned.step));
  }
  return planned;
}

void Scheduler::completed(StepId step, PassResults results, double now_s, std::span<const StageTimes> times) {
  SchedulerState& state = *state_;
  ensure(!state.in_flight.empty() && state.in_flight.front().id == step, "steps complete out of order");
  const StepInFlight done = std::move(state.in_flight.front());
  state.in_flight.pop_front();
  prefetcher_.observe(done, times, now_s);
  take_results(state, open_, done.model, done.members, results, now_s, completions_);
  for (const auto& [model, members] : done.riders) {
    take_results(state, open_, model, members, results, now_s, completions_);
  }
  ensure(results.rows.empty() && results.encoded.empty(), "more results than the step asked for");
}

}  // namespace computron
