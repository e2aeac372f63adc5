#include "computron/plan/virtual_run.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <queue>
#include <type_traits>

namespace computron {
namespace {

constexpr TokenId kSomeToken = std::numeric_limits<TokenId>::max();  // nobody's end-of-sequence token

// A step that ranks are at, and what its report will hold.
struct Pending {
  StepId id;
  int logit_rows;
  std::vector<std::size_t> values;  // of each encoded row
  std::vector<StageTimes> times;
};

Pending pending_of(const Step& step, std::vector<StageTimes> times) {
  Pending pending{.id = step.id, .logit_rows = step.logit_rows(), .values = {}, .times = std::move(times)};
  for (const SequenceChunk& chunk : step.chunks) {
    if (chunk.values > 0) pending.values.push_back(chunk.values);
  }
  return pending;
}

std::vector<SampledRow> some_rows(int count) {
  SampledRow row;
  row.token = kSomeToken;
  row.finite = true;
  return std::vector<SampledRow>(static_cast<std::size_t>(count), row);
}

class Simulation {
 public:
  // `input` and `times` may be null.
  Simulation(Dispatcher& dispatcher, std::span<VirtualMesh* const> meshes, VirtualInput* input,
             const StepObserver& observe, RunTimes* times)
      : dispatcher_(dispatcher),
        meshes_(meshes),
        input_(input),
        observe_(observe),
        times_(times),
        pending_(meshes.size()) {
    run_.groups.resize(meshes.size());
    for (std::size_t g = 0; g < meshes.size(); ++g) run_.groups[g].compute_s.resize(meshes[g]->stages());
  }

  VirtualRun run() {
    const double start_s = clock_s();
    while (!dispatcher_.all_done()) {
      report();
      if (input_ != nullptr) input_->feed(dispatcher_, now_s_);
      if (const auto group = timed(&RunTimes::decide_s, [this] { return dispatcher_.due(now_s_); })) {
        decide(*group);
      } else {
        wait();
      }
      for (Completion& completion : dispatcher_.take_completions()) run_.completions.push_back(std::move(completion));
    }
    run_.end_s = now_s_;
    for (const VirtualMesh* mesh : meshes_) {
      for (std::size_t stage = 0; stage < mesh->stages(); ++stage) run_.link_bytes += mesh->bytes(stage);
    }
    if (times_ != nullptr) times_->all_s += clock_s() - start_s;
    return std::move(run_);
  }

 private:
  using Event = std::pair<double, std::size_t>;  // a group reports a step

  double clock_s() const { return times_ == nullptr ? 0 : times_->clock_s(); }
  // What `work` returns; its time is added to that part.
  template <class Work>
  std::invoke_result_t<Work> timed(double RunTimes::*part, Work&& work) {
    if (times_ == nullptr) return work();
    const double start_s = clock_s();
    std::invoke_result_t<Work> result = work();
    times_->*part += clock_s() - start_s;
    return result;
  }

  // What has been executed by now.
  void report() {
    for (; !events_.empty() && events_.top().first <= now_s_; events_.pop()) {
      const std::size_t group = events_.top().second;
      const Pending done = std::move(pending_[group].front());
      pending_[group].pop_front();
      const std::vector<SampledRow> rows = some_rows(done.logit_rows);
      const std::vector<std::vector<float>> values(done.values.begin(), done.values.end());
      timed(&RunTimes::decide_s, [&] {
        dispatcher_.completed(group, done.id, {rows, values}, now_s_, done.times);
        return true;
      });
    }
  }

  void decide(std::size_t group) {
    Decision decision = timed(&RunTimes::decide_s, [&] { return dispatcher_.next(group, now_s_); });
    if (auto* planned = std::get_if<PlannedStep>(&decision)) send(group, std::move(*planned));
  }

  void send(std::size_t number, PlannedStep planned) {
    VirtualMesh::Execution execution =
        timed(&RunTimes::mesh_s, [&] { return meshes_[number]->execute(planned.step, now_s_); });
    VirtualRun::Group& group = run_.groups[number];
    group.end_s = execution.reported_s;
    group.steps += 1;
    group.swaps += planned.swaps.size();
    group.exposed_s += execution.exposed_s;
    for (std::size_t s = 0; s < execution.times.size(); ++s) group.compute_s[s] += execution.times[s].compute_s;
    run_.swaps += planned.swaps.size();
    run_.exposed_s += execution.exposed_s;
    events_.emplace(execution.reported_s, number);
    pending_[number].push_back(pending_of(planned.step, execution.times));
    if (observe_) observe_({now_s_, std::move(execution), std::move(planned), number});
  }

  void wait() {
    const double reported_s = events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().first;
    const double fed_s = input_ == nullptr ? std::numeric_limits<double>::infinity() : input_->due_s();
    const double until_s = std::min({dispatcher_.due_s(), reported_s, fed_s});
    ensure(std::isfinite(until_s), "the scheduler waits for nothing");
    now_s_ = std::max(now_s_, until_s);
  }

  Dispatcher& dispatcher_;
  std::span<VirtualMesh* const> meshes_;
  VirtualInput* input_;
  const StepObserver& observe_;
  RunTimes* times_;
  std::vector<std::deque<Pending>> pending_;  // [group] in order
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_s_ = 0;
  VirtualRun run_;
};

}  // namespace

VirtualRun run_virtually(Dispatcher& dispatcher, std::span<VirtualMesh* const> meshes, const StepObserver& observe,
                         RunTimes* times) {
  return Simulation(dispatcher, meshes, /*input=*/nullptr, observe, times).run();
}

VirtualRun run_virtually(Dispatcher& dispatcher, std::span<VirtualMesh* const> meshes, VirtualInput& input,
                         const StepObserver& observe) {
  return Simulation(dispatcher, meshes, &input, observe, /*times=*/nullptr).run();
}

VirtualRun run_virtually(Scheduler& scheduler, VirtualMesh& mesh, const StepObserver& observe) {
  Dispatcher dispatcher(scheduler);
  VirtualMesh* const meshes[] = {&mesh};
  return run_virtually(dispatcher, meshes, observe);
}

VirtualRun run_keeping_steps(Scheduler& scheduler, VirtualMesh& mesh) {
  std::vector<VirtualRun::SentStep> steps;
  VirtualRun run =
      run_virtually(scheduler, mesh, [&steps](VirtualRun::SentStep sent) { steps.push_back(std::move(sent)); });
  run.steps = std::move(steps);
  return run;
}

}  // namespace computron
