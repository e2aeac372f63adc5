#include "computron/dispatch/dispatcher.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "computron/dispatch/request_dealing.h"
#include "computron/dispatch/stealing.h"

namespace computron {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kLinesAtOnce = 8;  // given to groups by one call of due(), at 10 µs or so each: it has to stay short

std::vector<ModelId> all_models(const Scheduler& scheduler) {
  std::vector<ModelId> models(scheduler.costs().models());
  std::iota(models.begin(), models.end(), ModelId{0});
  return models;
}

// Of the first that does; infinity where none is held.
double arrival_s_of(const ArrivalQueue& held) { return held.empty() ? kNever : held.next_arrival_s(); }

// Of each group: those that share a model with it.
std::vector<std::vector<std::size_t>> partners_of(const std::vector<std::vector<std::size_t>>& hosts,
                                                  std::size_t groups) {
  std::vector<std::set<std::size_t>> partners(groups);
  for (const std::vector<std::size_t>& sharing : hosts) {
    for (const std::size_t group : sharing) partners[group].insert(sharing.begin(), sharing.end());
  }
  std::vector<std::vector<std::size_t>> result;
  for (std::size_t group = 0; group < groups; ++group) {
    partners[group].erase(group);
    result.emplace_back(partners[group].begin(), partners[group].end());
  }
  return result;
}

}  // namespace

Dispatcher::Dispatcher(std::vector<DispatchGroup> groups, std::size_t models)
    : states_(groups.size()),
      hosts_(models),
      plans_ahead_(groups.front().scheduler->plans_ahead()),
      rejection_(groups.front().scheduler->options().on_late == OnLate::kReject),
      holds_(groups.size() > 1 || rejection_.wanted()),
      held_(models),
      held_interactive_(models),
      turns_(groups.size()) {
  for (DispatchGroup& group : groups) {
    for (const ModelId model : group.models) hosts_[model].push_back(serving_.size());
    serving_.emplace_back(std::move(group));
  }
  auto partners = partners_of(hosts_, serving_.size());
  for (std::size_t group = 0; group < serving_.size(); ++group) states_[group].partners = std::move(partners[group]);
}

Dispatcher::Dispatcher(Scheduler& scheduler)
    : Dispatcher({{&scheduler, all_models(scheduler)}}, scheduler.costs().models()) {}

// --- Requests ---------------------------------------------------------------------------------------------------

void Dispatcher::submit(Request request) {
  const bool held = holds_ && (collects() || request.arrival_s > now_s_);
  if (held) return (request.priority < 0 ? held_interactive_ : held_).push(std::move(request));
  const std::size_t group = choose(request);
  give(group, std::move(request));
}

// Gives what has arrived to the groups, whole lines, and no more than fits between two polls. Nobody who is waited for
// waits until all batch work is known, and nothing of that is dealt sooner for it.
void Dispatcher::release(double now_s) {
  int lines = 0;
  const auto give_arrived = [&](ArrivalQueue& held) {
    while (arrival_s_of(held) <= now_s) {
      if (lines >= kLinesAtOnce && held.front().id != line_) return false;  // too many at once
      Request request = held.pop();
      lines += request.id != line_;
      const std::size_t group = choose(request);
      give(group, std::move(request));
    }
    return true;
  };
  if (!give_arrived(held_interactive_)) return;
  if (collects()) {
    if (waits_for_input(now_s)) return;
    plan();
  }
  if (give_arrived(held_)) pass_on_input_end();
}

// All batch work that is known is dealt to the groups at once, and all of them may begin. Where late ones are rejected,
// it matters when each ends and not when the last does: they are given away one by one, those that arrive first before
// the others.
void Dispatcher::plan() {
  planned_ = true;
  std::vector<Request> requests;
  while (!held_.empty()) requests.push_back(held_.pop());
  if (rejection_.wanted()) {
    for (Request& request : requests) {
      const std::size_t group = choose(request);
      give(group, std::move(request));
    }
    requests.clear();
  }
  std::vector<std::vector<Request>> dealt = deal_requests(std::move(requests), hosts_.size(), serving_);
  for (std::size_t group = 0; group < serving_.size(); ++group) {
    for (Request& request : dealt[group]) give(group, std::move(request));
    serving_[group].scheduler().note_input_end();
    wake(group);
  }
  line_.reset();
}

// The group that costs least; the parts of a line stay together where one group can serve them all.
std::size_t Dispatcher::choose(const Request& request) const {
  const std::vector<std::size_t>& hosts = hosts_[request.model];
  if (hosts.size() == 1) return hosts.front();
  if (line_ == request.id && std::find(hosts.begin(), hosts.end(), line_group_) != hosts.end() &&
      serving_[line_group_].accepts(request, *serving_[line_group_].local(request.model))) {
    return line_group_;
  }
  std::size_t best = hosts.front();
  ServingGroup::Cost least = serving_[best].cost_of(request, now_s_);
  for (const std::size_t group : std::span(hosts).subspan(1)) {
    const ServingGroup::Cost cost = serving_[group].cost_of(request, now_s_);
    if (!is_better(cost, least)) continue;
    best = group;
    least = cost;
  }
  return best;
}

// `accepted`: a group had it before.
void Dispatcher::give(std::size_t group, Request request, bool accepted) {
  line_ = request.id;
  line_group_ = group;
  std::optional<Completion> rejected;
  if (!accepted) rejected = rejection_.end_of(request, serving_[group], now_s_);
  if (rejected) {
    rejected->group = static_cast<std::uint32_t>(group);
    return completions_.push_back(*std::move(rejected));
  }
  serving_[group].give(std::move(request));
  refresh(group);
  wake(group);
}

// A group of which no request waits takes some that it can serve from a partner that has too many. What a request takes
// is known of the mean only, so that each of two groups might gain by taking it from the other for ever: not at one and
// the same time.
void Dispatcher::steal(std::size_t thief) {
  if (states_[thief].held.waiting > 0 || waiting_ == 0 || collects()) return;
  std::vector<std::size_t> victims = states_[thief].partners;
  std::erase_if(victims, [this](std::size_t group) { return states_[group].stole_s == now_s_; });
  const std::optional<Theft> theft = worth_stealing(serving_, thief, victims);
  if (!theft) return;
  std::vector<Request> taken = serving_[theft->from].take_back(theft->model, theft->requests, serving_[thief]);
  if (taken.empty()) return;
  states_[thief].stole_s = now_s_;
  for (Request& request : taken) {
    give(thief, std::move(request), /*accepted=*/true);
  }
  refresh(theft->from);
  wake(theft->from);
  line_.reset();
}

// More requests wait for the group than did when it was last tried: a partner of which none does is asked, in turn.
void Dispatcher::offer(std::size_t number) {
  State& state = states_[number];
  if (state.held.waiting <= 2 * state.offered) return;
  state.offered = state.held.waiting;
  const auto idle = std::find_if(state.partners.begin(), state.partners.end(),
                                 [this](std::size_t partner) { return states_[partner].held.waiting == 0; });
  if (idle == state.partners.end()) return;
  turns_.wake(*idle);
  std::rotate(state.partners.begin(), idle + 1, state.partners.end());
}

// --- The end of the input ---------------------------------------------------------------------------------------

void Dispatcher::note_input_end() {
  input_ended_ = true;
  pass_on_input_end();
}

void Dispatcher::close_input() {
  input_ended_ = input_closed_ = true;
  pass_on_input_end();
}

// A scheduler's input ends when nothing is held that it might be given.
void Dispatcher::pass_on_input_end() {
  if (holds_ && (collects() || !held_.empty() || !held_interactive_.empty())) return;
  const bool end = input_ended_ && !std::exchange(end_passed_on_, input_ended_);
  const bool close = input_closed_ && !std::exchange(close_passed_on_, input_closed_);
  if (!end && !close) return;
  for (std::size_t group = 0; group < serving_.size(); ++group) {
    if (end) serving_[group].scheduler().note_input_end();
    if (close) serving_[group].scheduler().close_input();
    wake(group);
  }
}

bool Dispatcher::is_full() const {
  if (!holds_) return scheduler(0).is_full();
  const SchedulerOptions& options = scheduler(0).options();
  return waiting() + set_aside_ >= options.max_waiting || waiting_bytes() >= options.max_waiting_bytes;
}

std::size_t Dispatcher::waiting() const { return held_.size() + held_interactive_.size() + waiting_; }

std::size_t Dispatcher::waiting_bytes() const { return held_.bytes() + held_interactive_.bytes() + waiting_bytes_; }

bool Dispatcher::waits_for_input(double now_s) const {
  if (!holds_) return scheduler(0).waits_for_input(now_s);
  return collects() && !input_ended_ && !is_full();
}

bool Dispatcher::has_work(double now_s) const {
  if (arrival_s_of(held_) <= now_s || arrival_s_of(held_interactive_) <= now_s) return true;
  return std::any_of(serving_.begin(), serving_.end(),
                     [now_s](const ServingGroup& group) { return group.scheduler().has_work(now_s); });
}

// --- Groups -----------------------------------------------------------------------------------------------------

double Dispatcher::resident_ratio(ModelId model) const {
  double most = 0;
  for (const std::size_t group : hosts_[model]) {
    most = std::max(most, scheduler(group).resident_ratio(*serving_[group].local(model)));
  }
  return most;
}

double Dispatcher::predicted_end_s() const {
  double latest_s = 0;
  for (const ServingGroup& group : serving_) latest_s = std::max(latest_s, group.scheduler().predicted_end_s());
  return latest_s;
}

std::optional<std::size_t> Dispatcher::due(double now_s) {
  now_s_ = std::max(now_s_, now_s);
  if (holds_) release(now_s);
  return turns_.front(now_s);
}

double Dispatcher::due_s() const {
  const double held_s = collects() ? kNever : arrival_s_of(held_);
  return std::min({turns_.wakes_s(), held_s, arrival_s_of(held_interactive_)});
}

Decision Dispatcher::next(std::size_t group, double now_s) {
  now_s_ = std::max(now_s_, now_s);
  steal(group);
  Decision decision = serving_[group].scheduler().next(now_s);
  refresh(group);
  if (const auto* wait = std::get_if<WaitUntil>(&decision)) turns_.sleep(group, wait->time_s);
  if (std::holds_alternative<PlannedStep>(decision)) turns_.yield(group);
  if (std::holds_alternative<AllDone>(decision)) {
    turns_.sleep(group, kNever);
    groups_done_ += !std::exchange(states_[group].done, true);
  }
  offer(group);
  return decision;
}

void Dispatcher::completed(std::size_t group, StepId step, PassResults results, double now_s,
                           std::span<const StageTimes> times) {
  now_s_ = std::max(now_s_, now_s);
  serving_[group].scheduler().completed(step, results, now_s, times);
  refresh(group);
  wake(group);
}

// Takes over what the group's scheduler has to tell after a change.
void Dispatcher::refresh(std::size_t group) {
  for (Completion& completion : serving_[group].take_completions()) {
    completion.group = static_cast<std::uint32_t>(group);
    completions_.push_back(std::move(completion));
  }
  State& state = states_[group];
  const Scheduler::Held held = scheduler(group).held();
  waiting_ += held.waiting - std::exchange(state.held.waiting, held.waiting);
  waiting_bytes_ += held.waiting_bytes - std::exchange(state.held.waiting_bytes, held.waiting_bytes);
  set_aside_ += held.set_aside - std::exchange(state.held.set_aside, held.set_aside);
  state.offered = std::min(state.offered, held.waiting);
}

void Dispatcher::wake(std::size_t group) {
  groups_done_ -= std::exchange(states_[group].done, false);
  turns_.wake(group);
}

}  // namespace computron
