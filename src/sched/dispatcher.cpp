#include "computron/sched/dispatcher.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace computron {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kLinesAtOnce = 32;  // dispatched by one call of due(): that is about 50 µs

std::vector<ModelId> all_models(const Scheduler& scheduler) {
  std::vector<ModelId> models(scheduler.models());
  std::iota(models.begin(), models.end(), ModelId{0});
  return models;
}

}  // namespace

Dispatcher::Dispatcher(std::vector<DispatchGroup> groups, std::size_t models)
    : hosts_(models), plans_ahead_(groups.front().scheduler->waits_for_input()), turns_(groups.size()) {
  for (DispatchGroup& group : groups) {
    for (ModelId local = 0; local < group.models.size(); ++local) {
      hosts_[group.models[local]].push_back({groups_.size(), local});
    }
    groups_.push_back({.scheduler = group.scheduler, .models = std::move(group.models)});
  }
}

Dispatcher::Dispatcher(Scheduler& scheduler) : Dispatcher({{&scheduler, all_models(scheduler)}}, scheduler.models()) {}

// --- Requests ---------------------------------------------------------------------------------------------------

void Dispatcher::submit(Request request) {
  if (!alone() && (collects() || request.arrival_s > now_s_)) return hold(std::move(request));
  dispatch(std::move(request));
}

void Dispatcher::hold(Request request) {
  held_bytes_ += request.bytes();
  held_.push_back(std::move(request));
  std::push_heap(held_.begin(), held_.end(), Later{});
}

Request Dispatcher::take_held() {
  std::pop_heap(held_.begin(), held_.end(), Later{});
  Request request = std::move(held_.back());
  held_.pop_back();
  held_bytes_ -= request.bytes();
  return request;
}

// Gives what has arrived to the groups, whole lines, and no more than fits between two polls.
void Dispatcher::release(double now_s) {
  if (collects()) {
    if (!input_ended_ && !is_full()) return;
    plan();
  }
  for (int lines = 0; !held_.empty() && held_.front().arrival_s <= now_s;) {
    if (held_.front().id != line_ && ++lines > kLinesAtOnce) return;
    dispatch(take_held());
  }
  pass_on_input_end();
}

// All that is known is given to the groups at once, and they may begin.
void Dispatcher::plan() {
  planned_ = true;
  while (!held_.empty()) dispatch(take_held());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    groups_[group].scheduler->note_input_end();
    wake(group);
  }
}

void Dispatcher::dispatch(Request request) {
  const Host host = choose(request);
  line_ = request.id;
  line_group_ = host.group;
  Group& group = groups_[host.group];
  ++group.open;
  request.model = host.model;
  group.scheduler->submit(std::move(request));
  refresh(host.group);
  wake(host.group);
}

// The parts of a line stay together.
Dispatcher::Host Dispatcher::choose(const Request& request) const {
  const std::vector<Host>& hosts = hosts_[request.model];
  if (line_ == request.id) {
    const auto host = std::find_if(hosts.begin(), hosts.end(), [this](Host h) { return h.group == line_group_; });
    if (host != hosts.end()) return *host;
  }
  const auto cost = [this](Host host) { return groups_[host.group].open; };
  return *std::min_element(hosts.begin(), hosts.end(), [&](Host a, Host b) { return cost(a) < cost(b); });
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
  if (!alone() && (collects() || !held_.empty())) return;
  const bool end = input_ended_ && !std::exchange(end_passed_on_, input_ended_);
  const bool close = input_closed_ && !std::exchange(close_passed_on_, input_closed_);
  if (!end && !close) return;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (end) groups_[group].scheduler->note_input_end();
    if (close) groups_[group].scheduler->close_input();
    wake(group);
  }
}

bool Dispatcher::is_full() const {
  if (alone()) return groups_.front().scheduler->is_full();
  const SchedulerOptions& options = groups_.front().scheduler->options();
  return waiting() >= options.max_waiting || waiting_bytes() >= options.max_waiting_bytes;
}

std::size_t Dispatcher::waiting() const { return held_.size() + waiting_; }

std::size_t Dispatcher::waiting_bytes() const { return held_bytes_ + waiting_bytes_; }

bool Dispatcher::waits_for_input() const {
  if (alone()) return groups_.front().scheduler->waits_for_input();
  return collects() && !input_ended_ && !is_full();
}

bool Dispatcher::has_work(double now_s) const {
  if (!held_.empty() && held_.front().arrival_s <= now_s) return true;
  return std::any_of(groups_.begin(), groups_.end(),
                     [now_s](const Group& group) { return group.scheduler->has_work(now_s); });
}

// --- Groups -----------------------------------------------------------------------------------------------------

double Dispatcher::resident_ratio(ModelId model) const {
  double most = 0;
  for (const Host host : hosts_[model]) {
    most = std::max(most, groups_[host.group].scheduler->resident_ratio(host.model));
  }
  return most;
}

double Dispatcher::predicted_end_s() const {
  double latest_s = 0;
  for (const Group& group : groups_) latest_s = std::max(latest_s, group.scheduler->predicted_end_s());
  return latest_s;
}

std::optional<std::size_t> Dispatcher::due(double now_s) {
  now_s_ = std::max(now_s_, now_s);
  if (!alone()) release(now_s);
  return turns_.front(now_s);
}

double Dispatcher::due_s() const {
  const bool counts = !held_.empty() && !collects();
  return std::min(turns_.wakes_s(), counts ? held_.front().arrival_s : kNever);
}

Decision Dispatcher::next(std::size_t group, double now_s) {
  now_s_ = std::max(now_s_, now_s);
  Decision decision = groups_[group].scheduler->next(now_s);
  refresh(group);
  if (const auto* wait = std::get_if<WaitUntil>(&decision)) turns_.sleep(group, wait->time_s);
  if (std::holds_alternative<PlannedStep>(decision)) turns_.yield(group);
  if (std::holds_alternative<AllDone>(decision)) {
    turns_.sleep(group, kNever);
    groups_done_ += !std::exchange(groups_[group].done, true);
  }
  return decision;
}

void Dispatcher::completed(std::size_t group, StepId step, PassResults results, double now_s,
                           std::span<const StageTimes> times) {
  now_s_ = std::max(now_s_, now_s);
  groups_[group].scheduler->completed(step, results, now_s, times);
  refresh(group);
  wake(group);
}

// Takes over what the group's scheduler has to tell after a change.
void Dispatcher::refresh(std::size_t number) {
  Group& group = groups_[number];
  for (Completion& completion : group.scheduler->take_completions()) {
    group.open -= std::min<std::size_t>(group.open, 1);
    completion.model = group.models[completion.model];
    completions_.push_back(std::move(completion));
  }
  const std::size_t waiting = group.scheduler->waiting(), bytes = group.scheduler->waiting_bytes();
  waiting_ += waiting - std::exchange(group.waiting, waiting);
  waiting_bytes_ += bytes - std::exchange(group.waiting_bytes, bytes);
}

void Dispatcher::wake(std::size_t group) {
  groups_done_ -= std::exchange(groups_[group].done, false);
  turns_.wake(group);
}

}  // namespace computron
