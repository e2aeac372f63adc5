#include "computron/serve/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "computron/base/log.h"
#include "computron/base/status_signal.h"
#include "computron/base/stop.h"
#include "computron/base/time.h"

namespace computron {

namespace {

// In a row, before rank 0 goes back to what it computes.
constexpr double kDecideFor_s = 100e-6;
constexpr double kCollectFor_s = 100e-6;
constexpr double kBetweenLooks_s = 0.01;
constexpr double kBetweenShows_s = 0.001;

std::vector<int> group_of_rank(const Mesh& mesh) {
  std::vector<int> groups;
  for (const RankGroup& group : mesh.groups) groups.insert(groups.end(), group.shape.ranks(), group.index);
  return groups;
}

}  // namespace

Engine::Engine(Job& job, Dispatcher& dispatcher, FrontEnd& front_end, Metrics& metrics, double start_s,
               const Drain& drain, const JobHeartbeat& heartbeat, StepRecorder* recorder)
    : job_(job),
      dispatcher_(dispatcher),
      front_end_(front_end),
      start_s_(start_s),
      recorder_(recorder),
      activity_(job.mesh().groups.size()),
      stalls_(job.mesh().groups.size(), false),
      heartbeat_(heartbeat),
      stops_(job.mesh()),
      drain_(drain) {
  for (const RankGroup& group : job.mesh().groups) {
    const auto number = static_cast<std::size_t>(group.index);
    GroupEngine::StepWatch watch;
    if (recorder != nullptr) {
      watch = [this, number](const PlannedStep& planned) { recorder_->sent(number, planned, now()); };
    }
    groups_.emplace_back(job.mesh().job, group, /*names_group=*/job.mesh().groups.size() > 1,
                         dispatcher.scheduler(number), metrics, std::move(watch));
  }
  heartbeat_.form_groups(group_of_rank(job.mesh()));
}

double Engine::now() const { return now_s() - start_s_; }

bool Engine::run() {
  job_.progress().set_hook([this] { poll(); });
  heartbeat_.enter(SignOfLife::kServe);
  Idler idler(job_.progress().idle());
  while ((!dispatcher_.all_done() && !stopping_) || any_in_flight()) {
    bool progressed = take_input();
    progressed |= poll();
    progressed |= put_results();
    progressed |= execute();
    look_for_stall();
    front_end_.check();
    progressed ? idler.reset() : idler.pause();
  }
  const bool all_done = dispatcher_.all_done();
  put_results();
  heartbeat_.enter(SignOfLife::kFinish);
  if (all_done) {
    front_end_.finish(now());
  } else {
    heartbeat_.run_beside([this] { front_end_.stop(/*in_order=*/true, now()); });
  }
  shut_down(all_done ? Step::kShutdown : Step::kStop);
  return all_done;
}

bool Engine::any_in_flight() const {
  return std::ranges::any_of(groups_, [](const GroupEngine& group) { return !group.in_flight().empty(); });
}

// Also the progress hook: steps may be sent and their fetches started while another step is executed here.
bool Engine::poll() {
  heartbeat_.poll();
  look_for_stop();
  for (GroupEngine& group : groups_) group.poll();
  job_.executor().poll();
  bool progressed = take_reports();
  progressed |= dispatch();
  progressed |= send_held();
  show();
  return progressed;
}

// A look at every group: not at every poll.
void Engine::show() {
  if (now() < show_s_) return;
  show_s_ = now() + kBetweenShows_s;
  front_end_.show(activity(), now());
}

// No step is sent once somebody has asked to stop. Steps on their way are the other ranks' as well: they end in order,
// or with the whole job. A launcher asks, too, when another rank has gone down: its silence tells.
void Engine::look_for_stop() {
  const int signals = std::max(stop_signals(), stops_.poll());
  if (signals == 0) return;
  if (!stopping_) begin_to_stop();
  if (!any_in_flight()) return;
  if (signals > 1) leave(/*in_order=*/true);
  const bool all_there = stops_.all_answered();
  if (now() > leave_at_s_ || (too_late_ && all_there)) leave(all_there);
}

void Engine::begin_to_stop() {
  stopping_ = true;
  for (GroupEngine& group : groups_) group.drop_held();
  const bool warned = (stop_signals() == 0 || only_warned()) && stops_.only_warned();
  leave_at_s_ = now() + (warned ? drain_.warned_s : drain_.asked_s);
  if (!any_in_flight()) return;
  for (const GroupEngine& group : groups_) {  // what was held is not waited for
    if (!group.in_flight().empty()) too_late_ |= scheduler_of(group).predicted_end_s() > leave_at_s_;
  }
  stops_.ask();
}

void Engine::leave(bool in_order) {
  put_results();
  heartbeat_.enter(SignOfLife::kFinish);
  front_end_.stop(in_order, now());
  if (in_order && recorder_ != nullptr) recorder_->finish(/*all_done=*/false, now());
  if (in_order) {  // else another rank may have failed, and said so
    report_failure(0, stopped_early());
    heartbeat_.remove_records();
  }
  MpiSession::abort(ExitCode::kStopped);
}

bool Engine::take_input() { return !stopping_ && front_end_.take_input(dispatcher_, now()); }

// The receives of every rank of a group are tested: of many groups that takes longer than this rank's own pass should
// wait for.
bool Engine::take_reports() {
  bool took = false;
  const double until_s = now() + kCollectFor_s;
  for (std::size_t looked_at = 0; looked_at < groups_.size(); ++looked_at) {
    GroupEngine& group = groups_[next_group_];
    next_group_ = (next_group_ + 1) % groups_.size();
    while (take_reports(group)) took = true;
    if (now() > until_s) break;
  }
  return took;
}

bool Engine::take_reports(GroupEngine& group) {
  const std::optional<GroupEngine::Done> done = group.take_reports();
  if (!done) return false;
  expect_oldest(group);
  const TraceSpan span(job_.trace(), TraceTrack::kControl, "take reports", {}, {"step", done->step.id});
  const double start = now_s();
  const Report& last = done->reports[static_cast<std::size_t>(job_.mesh().groups[group.index()].sampler())];
  const auto number = static_cast<std::size_t>(group.index());
  const std::vector<StageTimes> times = group.stage_times(done->reports);
  const double reported_s = now();
  if (recorder_ != nullptr) recorder_->reported(number, done->step.id, times, done->reports, group.tp(), reported_s);
  dispatcher_.completed(number, done->step.id, {last.rows, last.encoded}, reported_s, times);
  group.steps_of(done->step.model).overhead_s += now_s() - start;
  front_end_.step_done(done->reports, now());
  return true;
}

bool Engine::put_results() {
  std::vector<Completion> completions = dispatcher_.take_completions();
  if (completions.empty()) return false;
  front_end_.put_results(std::move(completions), now());
  return true;
}

bool Engine::dispatch() {
  bool sent = false;
  const double until_s = now() + kDecideFor_s;
  while (!stopping_) {
    const double start = now_s();
    const std::optional<std::size_t> group = dispatcher_.due(now());
    if (!group) break;
    Decision decision = dispatcher_.next(*group, now());
    if (auto* planned = std::get_if<PlannedStep>(&decision)) {
      const ModelId model = planned->step.model;
      const StepId id = planned->step.id;
      dispatch(groups_[*group], std::move(*planned));
      groups_[*group].steps_of(model).overhead_s += now_s() - start;
      trace_since(start, job_.trace(), TraceTrack::kControl, "decide and send",
                  job_.models().id(dispatcher_.job_model(*group, model)), {{"step", id}});
      sent = true;
    } else if (stalls_[*group]) {
      look_for_stall(groups_[*group]);  // what it had may be another group's now
    }
    if (now() > until_s) break;
  }
  return sent;
}

void Engine::dispatch(GroupEngine& group, PlannedStep planned) {
  const Ticket begun = planned.begun.empty() ? 0 : front_end_.begin(planned.begun);
  const double end_s = scheduler_of(group).predicted_end_s();
  planned.step.predicted_s = static_cast<float>(std::max(end_s - now(), 0.0));
  front_end_.step_planned(planned.step, now());
  std::optional<Step> own = group.send(std::move(planned), begun);
  if (!own) return;
  job_.executor().accept(*own);
  if (group.in_flight().size() == 1) expect_oldest(group);
  todo_.push_back({std::move(*own), begun});
}

bool Engine::send_held() {
  bool sent = false;
  for (GroupEngine& group : groups_) {
    const bool none = group.in_flight().empty();
    if (!group.holds() || !group.send_held([this](Ticket begun) { return front_end_.noted(begun); })) continue;
    sent = true;
    if (none) expect_oldest(group);
  }
  return sent;
}

// Tells the watchdog what every rank of the group should get on with.
void Engine::expect_oldest(const GroupEngine& group) {
  if (group.in_flight().empty()) return heartbeat_.expect(std::nullopt, 0, group.index());
  const GroupEngine::InFlight& oldest = group.in_flight().front();
  heartbeat_.expect(oldest.id, std::max(oldest.sent_s + oldest.predicted_s - now_s(), 0.0), group.index());
}

// The next step of rank 0's own group, once it is on the disk which requests it begins.
bool Engine::execute() {
  if (todo_.empty()) return false;
  GroupEngine& own = groups_.front();
  if (!front_end_.noted(todo_.front().begun)) {
    expect_oldest(own);  // a slow disk is nobody's standstill
    return false;
  }
  const Step step = std::move(todo_.front().step);
  todo_.pop_front();
  own.put_own(job_.run(step));
  return true;
}

// Each part of this rank waits for another one and all of them are asked again and again: nobody hangs, and yet nothing
// would ever happen.
void Engine::look_for_stall() {
  if (now() < look_for_stall_s_) return;
  look_for_stall_s_ = now() + kBetweenLooks_s;
  for (const GroupEngine& group : groups_) look_for_stall(group);
}

void Engine::look_for_stall(const GroupEngine& group) {
  const auto index = static_cast<std::size_t>(group.index());
  const bool stalls = owes_a_step(group);
  if (!stalls && !stalls_[index]) return;
  stalls_[index] = stalls;
  heartbeat_.expect_a_step(stalls ? what_it_waits_for(group) : std::string(), group.index());
}

// Requests whose time comes later are waited for, and so is an input that is open: where nothing is to be done, or
// where the policy wants all of it first; and a disk, where it is being noted what a step begins.
bool Engine::owes_a_step(const GroupEngine& group) const {
  if (!group.in_flight().empty() || group.holds() || dispatcher_.all_done() || stopping_) return false;
  const bool open = front_end_.input_open();
  const bool waits_for_input = scheduler_of(group).waits_for_input(now());
  if (scheduler_of(group).has_work(now())) return !open || !waits_for_input;
  // Nobody has anything to do, nothing is to come, and yet it is not over: said once, of the first group.
  return group.index() == 0 && !open && dispatcher_.waiting() == 0 && !any_in_flight() && !dispatcher_.has_work(now());
}

std::string Engine::what_it_waits_for(const GroupEngine& group) const {
  const bool has_work = scheduler_of(group).has_work(now());
  return fmt::format("{}{}; {}", groups_.size() > 1 ? fmt::format("group {} ", group.index()) : std::string(),
                     scheduler_of(group).waits_for_input(now())
                         ? "waits for the end of the input before it decides anything"
                     : has_work ? "has requests to serve and plans none of them"
                                : "has nothing to serve and waits for more",
                     front_end_.unfinished());
}

Activity Engine::activity() {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::optional<ModelId> running = dispatcher_.scheduler(g).running_model();
    activity_[g].running = running ? std::optional(dispatcher_.job_model(g, *running)) : std::nullopt;
    activity_[g].swapping = std::ranges::any_of(groups_[g].in_flight(), &GroupEngine::InFlight::swap);
  }
  return {
      .groups = activity_, .dispatcher = &dispatcher_, .status_requests = status_signals() + stops_.status_requests()};
}

void Engine::shut_down(Step::Kind kind) {
  for (GroupEngine& group : groups_) group.shut_down(kind);
  job_.progress().set_hook([this] {
    heartbeat_.poll();
    for (GroupEngine& group : groups_) group.poll();
  });
  job_.progress().wait_until([this] { return std::ranges::all_of(groups_, &GroupEngine::idle); });
  job_.progress().set_hook({});
}

}  // namespace computron
