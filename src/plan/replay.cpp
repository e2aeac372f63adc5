#include "computron/plan/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "computron/base/size.h"
#include "computron/plan/page_recut.h"
#include "computron/plan/virtual_mesh.h"
#include "computron/plan/virtual_run.h"
#include "src/plan/recorded_input.h"
#include "src/plan/recorded_passes.h"

namespace computron {
namespace {

constexpr double kUsualReport_s = 40e-6;  // where the record tells nothing
constexpr std::size_t kMostPoolFrames = std::size_t{1} << 24;
constexpr double kStalled_s = 1e-6;  // exposed time that counts

using Steps = std::vector<Record::Step>;
using RequestPart = std::pair<RequestId, std::uint32_t>;

// Values of which there may be none.
class Values {
 public:
  void add(double value) { values_.push_back(value); }
  double mean_or(double otherwise) const {
    if (values_.empty()) return otherwise;
    return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(values_.size());
  }
  double quantile_or(double q, double otherwise) {
    if (values_.empty()) return otherwise;
    const auto at = values_.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values_.size() - 1));
    std::nth_element(values_.begin(), at, values_.end());
    return *at;
  }
  // The mean, or the median of so few that one that was disturbed would count for all.
  double typical_or(double otherwise) {
    constexpr std::size_t kFew = 16;
    return values_.size() < kFew ? quantile_or(0.5, otherwise) : mean_or(otherwise);
  }
  std::size_t count() const { return values_.size(); }

 private:
  std::vector<double> values_;
};

double compute_s(const RecordedReport& report) {
  double sum_s = 0;
  for (const RecordedReport::Stage& stage : report.stages) sum_s += stage.times.compute_s;
  return sum_s;
}

// A pass that waited for no page.
bool ran_unhindered(const Steps& steps, std::size_t number) {
  if (steps[number].sent.rows == 0) return false;
  for (std::size_t stage = 0; stage < steps[number].report.stages.size(); ++stage) {
    const double before_s = number == 0 ? 0 : steps[number - 1].report.stages[stage].exposed_s;
    if (steps[number].report.stages[stage].exposed_s - before_s > kStalled_s) return false;
  }
  return true;
}

void add_latencies(Values latencies_s, ReplayOutcome& outcome) {
  outcome.served = latencies_s.count();
  outcome.mean_latency_s = latencies_s.mean_or(0);
  outcome.p99_latency_s = latencies_s.quantile_or(0.99, 0);
}

std::map<RequestPart, const RecordedRequest*> requests_of(const Record& record) {
  std::map<RequestPart, const RecordedRequest*> requests;
  for (const Record::Input& input : record.inputs) {
    if (const auto* request = std::get_if<RecordedRequest>(&input)) {
      requests.emplace(RequestPart(request->id, request->part), request);
    }
  }
  return requests;
}

// Of requests that were served; `ended_s(completion)` says when in this outcome.
template <class EndedAt>
Values latencies(const Record& record, const EndedAt& ended_s) {
  const auto requests = requests_of(record);
  Values latencies_s;
  for (const RecordedCompletion& completion : record.completions) {
    const auto request = requests.find({completion.id, completion.part});
    if (completion.failed || request == requests.end()) continue;
    latencies_s.add(ended_s(completion) - request->second->arrival_s);
  }
  return latencies_s;
}

// When requests, and the end of the input, could be seen by a decision: times that do not depend on the ranks.
class InputTimes {
 public:
  explicit InputTimes(const Record& record) {
    for (const Record::Input& input : record.inputs) {
      if (const auto* end = std::get_if<RecordedInputEnd>(&input)) {
        if (!end->deferred) times_s_.push_back(end->time_s);
        continue;
      }
      const auto& request = std::get<RecordedRequest>(input);
      if ((request.flags & RecordedRequest::kDeferred) != 0) continue;
      times_s_.push_back(std::max(request.submitted_s, request.arrival_s));
      by_request_.emplace(request.id, times_s_.back());
    }
    std::ranges::sort(times_s_);
  }

  // The latest by `time_s`; 0: none.
  double latest_s(double time_s) const {
    const auto behind = std::ranges::upper_bound(times_s_, time_s);
    return behind == times_s_.begin() ? 0 : *std::prev(behind);
  }
  // Since when all of the requests could be begun.
  double of_s(const std::vector<RequestId>& requests) const {
    double latest_s = 0;
    for (const RequestId id : requests) {
      const auto found = by_request_.find(id);
      if (found != by_request_.end()) latest_s = std::max(latest_s, found->second);
    }
    return latest_s;
  }

 private:
  std::vector<double> times_s_;  // ascending
  std::map<RequestId, double> by_request_;
};

// --- A group of the record on ranks of other speeds -------------------------------------------------------------

// Its layouts, as they were or cut anew, with what passes and copies take.
class ReplayedGroup {
 public:
  // Borrows `record`.
  ReplayedGroup(const Record& record, std::size_t number, const WhatIf& what_if)
      : record_(record), group_(record.header.groups[number]), steps_(record.steps[number]), what_if_(what_if) {
    overheads_ = overheads_of(record, number);
    for (const RecordHeader::Model& model : group_.models) {
      auto& stages = by_model_.emplace_back();
      for (const std::uint32_t layout : model.layouts) stages.push_back(&layout_of(layout));
    }
    for (std::size_t stage = 0; stage < stages(); ++stage) rates_.push_back(link_bytes_per_s(record, number, stage));
  }
  ReplayedGroup(const ReplayedGroup&) = delete;  // its layouts are pointed to
  ReplayedGroup& operator=(const ReplayedGroup&) = delete;

  std::size_t stages() const { return static_cast<std::size_t>(group_.pp); }
  const Steps& steps() const { return steps_; }
  const Overheads& overheads() const { return overheads_; }
  // Passes take what the record says of their sizes. `decides`: rank 0's time is part of a step's way, too.
  std::unique_ptr<VirtualMesh> make_mesh(bool decides) const {
    const double way_s = std::max(overheads_.report_s - overheads_.pass_s, 0.0) + (decides ? overheads_.decide_s : 0);
    const auto passes = std::make_shared<RecordedPasses>(
        steps_, [this](double compute_s) { return stage_s(compute_s); }, link_costs());
    auto mesh = std::make_unique<VirtualMesh>(by_model_, passes->costs(), way_s / 2);
    mesh->take_times_from([passes](const Step& step) { return passes->next_s(step); });
    return mesh;
  }
  std::vector<double> pass_s(const RecordedReport& report) const {
    std::vector<double> seconds;
    for (const RecordedReport::Stage& stage : report.stages) seconds.push_back(stage_s(stage.times.compute_s));
    return seconds;
  }
  std::unique_ptr<Scheduler> make_scheduler() const;
  std::vector<ModelId> job_models() const {
    std::vector<ModelId> models;
    for (const RecordHeader::Model& model : group_.models) models.push_back(model.job_model);
    return models;
  }
  std::size_t moved_bytes(const VirtualMesh& mesh) const {
    std::size_t bytes = 0;
    for (std::size_t stage = 0; stage < stages(); ++stage) bytes += mesh.bytes(stage);
    return bytes * static_cast<std::size_t>(group_.tp);
  }

 private:
  const ShardLayout& layout_of(std::uint32_t number) {
    const ShardLayout& layout = record_.header.layouts[number];
    if (!what_if_.page_bytes || *what_if_.page_bytes == layout.page_bytes) return layout;
    const auto [entry, is_new] = recut_.try_emplace(number);
    if (is_new) entry->second = recut(layout, *what_if_.page_bytes);
    return entry->second;
  }
  double stage_s(double compute_s) const {
    const double seconds = compute_s / what_if_.compute_scale;
    return std::max(seconds + overheads_.pass_s, seconds / 2);
  }
  double link_rate(std::size_t stage) const {
    if (what_if_.link_bytes_per_s) return *what_if_.link_bytes_per_s;
    return what_if_.link_scale * rates_[stage].value_or(group_.options.costs.link_bytes_per_s);
  }
  // Of those of the group's models that have some.
  std::size_t slot_bytes() const {
    std::size_t bytes = 0;
    for (const RecordHeader::Model& model : group_.models) {
      for (const std::uint32_t layout : model.layouts) {
        bytes = std::max(bytes, record_.header.layouts[layout].slot_bytes);
      }
    }
    return bytes;
  }
  CostModel link_costs() const;

  const Record& record_;
  const RecordHeader::Group& group_;
  const Steps& steps_;
  const WhatIf& what_if_;
  Overheads overheads_;
  std::map<std::uint32_t, ShardLayout> recut_;
  std::vector<std::vector<const ShardLayout*>> by_model_;
  std::vector<std::optional<double>> rates_;  // [stage]
};

// With the links' rates, told as transfers that outweigh what the cost model begins with.
CostModel ReplayedGroup::link_costs() const {
  constexpr std::size_t kTold = std::size_t{1} << 42;
  CostOptions options = group_.options.costs;
  options.link_bytes_per_s = link_rate(0);
  options.memory_bytes_per_s *= what_if_.compute_scale;
  options.flops_per_s *= what_if_.compute_scale;
  CostModel costs(by_model_, options);
  for (std::size_t stage = 0; stage < stages(); ++stage) {
    costs.observe_transfer(stage, kTold, static_cast<double>(kTold) / link_rate(stage));
  }
  return costs;
}

// A link whose rate the job was told would have had another one told.
std::unique_ptr<Scheduler> ReplayedGroup::make_scheduler() const {
  SchedulerOptions options = group_.options;
  const std::size_t old_page = record_.header.page_bytes(), page = what_if_.page_bytes.value_or(old_page);
  const std::size_t slots = static_cast<std::size_t>(options.adapter_slots) * slot_bytes();
  std::size_t pool = what_if_.device_bytes.value_or(static_cast<std::size_t>(options.frames) * old_page + slots);
  if (pool / page > kMostPoolFrames || static_cast<std::size_t>(options.adapter_slots) > kMostPoolFrames) {
    throw ConfigError(fmt::format("a pool of {} has {} pages of {} and {} slots: more than the {} of a replay",
                                  format_size(pool), pool / page, format_size(page), options.adapter_slots,
                                  kMostPoolFrames));
  }
  if (page != old_page || slots == 0) options.adapter_slots = 0;  // pages that are cut anew all lie in frames
  if (options.adapter_slots > 0) pool -= std::min(pool, slots);
  options.frames = static_cast<int>(pool / page);
  options.host_slots = static_cast<int>(static_cast<std::size_t>(options.host_slots) * old_page / page);
  if (options.costs.link_bytes_per_s != CostOptions{}.link_bytes_per_s) {
    options.costs.link_bytes_per_s =
        what_if_.link_bytes_per_s.value_or(what_if_.link_scale * options.costs.link_bytes_per_s);
  }
  std::vector<ModelShape> shapes;
  std::vector<std::string> names;
  for (std::size_t m = 0; m < group_.models.size(); ++m) {
    const RecordHeader::Model& model = group_.models[m];
    ModelShape& shape = shapes.emplace_back();
    shape.layouts = by_model_[m];
    for (const ShardLayout* layout : shape.layouts) shape.caches.push_back(KvGeometry::make(*layout));
    shape.pinned = model.pinned;
    shape.priority = model.priority;
    names.push_back(record_.header.models[model.job_model]);
  }
  return std::make_unique<Scheduler>(std::move(shapes), std::move(names),
                                     make_policy(record_.header.policy, {.max_wait_s = record_.header.max_wait_s}),
                                     options);
}

// --- The same steps ---------------------------------------------------------------------------------------------

// A decision follows the latest of what its group had met: a report, its step before, or a request.
class StepReplay {
 public:
  StepReplay(const ReplayedGroup& group, const InputTimes& inputs)
      : group_(group), inputs_(inputs), mesh_(group.make_mesh(/*decides=*/false)) {}

  // Returns when each step is reported.
  const std::vector<double>& run(ReplayOutcome& outcome) {
    for (const Record::Step& step : group_.steps()) {
      sent_s_ = sending_s(step);
      sent_before_s_ = step.sent.sent_s;
      mesh_->take_times_from([&](const Step&) { return group_.pass_s(step.report); });
      const VirtualMesh::Execution execution = mesh_->execute(step.sent.step(), sent_s_);
      reported_s_.push_back(execution.reported_s);
      outcome.exposed_s += execution.exposed_s;
      outcome.swaps += step.sent.swaps;
      ++outcome.steps;
    }
    if (!reported_s_.empty()) outcome.wall_s = std::max(outcome.wall_s, reported_s_.back());
    outcome.moved_bytes += group_.moved_bytes(*mesh_);
    return reported_s_;
  }

 private:
  double sending_s(const Record::Step& step) const {
    const bool follows = step.reports_before > 0;
    const double report_then_s = follows ? group_.steps()[step.reports_before - 1].report.reported_s : 0;
    const double report_s = follows ? reported_s_[step.reports_before - 1] : 0;
    const double then_s = std::max(report_then_s, sent_before_s_), own_s = std::max(report_s, sent_s_);
    const double input_s = inputs_.latest_s(step.sent.sent_s);
    if (input_s >= then_s) return std::max(own_s, input_s) + (step.sent.sent_s - input_s);
    return std::max(own_s, inputs_.of_s(step.sent.begun)) + (step.sent.sent_s - then_s);
  }

  const ReplayedGroup& group_;
  const InputTimes& inputs_;
  std::unique_ptr<VirtualMesh> mesh_;
  double sent_s_ = 0, sent_before_s_ = 0;  // of the step before: here, and in the record
  std::vector<double> reported_s_;
};

}  // namespace

Overheads overheads_of(const Record& record, std::size_t group) {
  const Steps& steps = record.steps[group];
  const InputTimes inputs(record);
  Values pass, report, decide;
  for (std::size_t k = 0; k < steps.size(); ++k) {
    const Record::Step& step = steps[k];
    const bool alone = step.reports_before == k;
    const double then_s = k == 0 ? 0 : steps[k - 1].report.reported_s;
    if (k > 0 && alone && inputs.latest_s(step.sent.sent_s) < then_s) decide.add(step.sent.sent_s - then_s);
    if (!ran_unhindered(steps, k)) continue;
    const double taken_s = step.report.reported_s - step.sent.sent_s - compute_s(step.report);
    if (alone) report.add(std::max(taken_s, 0.0));
    const bool behind_another = k > 0 && step.reports_before + 1 == k && steps[k - 1].sent.rows > 0;
    if (!behind_another || step.report.stages.size() > 1) continue;
    pass.add(step.report.reported_s - steps[k - 1].report.reported_s - compute_s(step.report));
  }
  return {.pass_s = pass.typical_or(0),
          .report_s = report.typical_or(kUsualReport_s),
          .decide_s = decide.quantile_or(0.5, 0)};  // some wait for a time to come
}

std::optional<double> link_bytes_per_s(const Record& record, std::size_t group, std::size_t stage) {
  if (record.steps[group].empty()) return std::nullopt;
  const StageTimes& times = record.steps[group].back().report.stages[stage].times;
  if (times.link_bytes == 0 || times.link_busy_s <= 0) return std::nullopt;
  return static_cast<double>(times.link_bytes) / times.link_busy_s;
}

ReplayOutcome recorded_outcome(const Record& record) {
  ReplayOutcome outcome;
  outcome.wall_s = record.wall_s();
  for (std::size_t g = 0; g < record.steps.size(); ++g) {
    outcome.steps += record.steps[g].size();
    for (const Record::Step& step : record.steps[g]) outcome.swaps += step.sent.swaps;
    if (record.steps[g].empty()) continue;
    double exposed_s = 0;
    for (const RecordedReport::Stage& stage : record.steps[g].back().report.stages) {
      exposed_s = std::max(exposed_s, stage.exposed_s);
      outcome.moved_bytes += stage.times.link_bytes * static_cast<std::size_t>(record.header.groups[g].tp);
    }
    outcome.exposed_s += exposed_s;
  }
  add_latencies(latencies(record, [](const RecordedCompletion& completion) { return completion.finished_s; }), outcome);
  return outcome;
}

ReplayOutcome replay_steps(const Record& record, const WhatIf& what_if) {
  ReplayOutcome outcome;
  const InputTimes inputs(record);
  std::vector<std::vector<double>> reported_s;  // [group][step]
  for (std::size_t g = 0; g < record.steps.size(); ++g) {
    const ReplayedGroup group(record, g, what_if);
    reported_s.push_back(StepReplay(group, inputs).run(outcome));
  }
  // What ended with no report (a request that was refused, say) ends when it did.
  const auto ended_s = [&](const RecordedCompletion& completion) {
    const Steps& steps = record.steps[completion.group];
    const auto step = std::ranges::lower_bound(steps, completion.finished_s, {},
                                               [](const Record::Step& of) { return of.report.reported_s; });
    const bool found = step != steps.end() && step->report.reported_s == completion.finished_s;
    return found ? reported_s[completion.group][static_cast<std::size_t>(step - steps.begin())] : completion.finished_s;
  };
  add_latencies(latencies(record, ended_s), outcome);
  return outcome;
}

ReplayOutcome replay_requests(const Record& record, const WhatIf& what_if) {
  std::deque<ReplayedGroup> groups;
  std::vector<std::unique_ptr<Scheduler>> schedulers;
  std::vector<std::unique_ptr<VirtualMesh>> meshes;
  std::vector<DispatchGroup> dispatched;
  std::vector<VirtualMesh*> in_order;
  for (std::size_t g = 0; g < record.header.groups.size(); ++g) {
    const ReplayedGroup& group = groups.emplace_back(record, g, what_if);
    schedulers.push_back(group.make_scheduler());
    in_order.push_back(meshes.emplace_back(group.make_mesh(/*decides=*/true)).get());
    dispatched.push_back({schedulers.back().get(), group.job_models()});
  }
  Dispatcher dispatcher(std::move(dispatched), record.header.models.size());
  RecordedInput input(record);
  const VirtualRun run = run_virtually(dispatcher, in_order, input);
  ReplayOutcome outcome;
  outcome.swaps = run.swaps;
  outcome.exposed_s = run.exposed_s;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    outcome.wall_s = std::max(outcome.wall_s, run.groups[g].end_s);
    outcome.steps += run.groups[g].steps;
    outcome.moved_bytes += groups[g].moved_bytes(*meshes[g]);
  }
  Values latencies_s;
  for (const Completion& completion : run.completions) {
    if (completion.error_code.empty()) latencies_s.add(completion.finished_s - completion.arrival_s);
  }
  add_latencies(std::move(latencies_s), outcome);
  return outcome;
}

std::size_t unfinished_requests(const Record& record) {
  auto requests = requests_of(record);
  for (const RecordedCompletion& completion : record.completions) requests.erase({completion.id, completion.part});
  return requests.size();
}

}  // namespace computron
