// What a decision of rank 0 costs: Scheduler::next() and completed(), with 8 models and with 1,000, of which 100 have
// work, under each policy (perf/README.md, "Decide"). A table on stdout. Exit code 1 when a target is missed.
//
//   perf_decide [STEPS]        measured of each job; 20000 unless given
//
// Ranks exist in virtual time only; the clock is that of the thread's processor time, so that other programs' turns do
// not count. The jobs of a policy take turns, a few hundred steps each.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <random>

#include "computron/plan/virtual_mesh.h"
#include "perf/virtual_ranks.h"

using namespace computron;

namespace {

constexpr std::size_t kFewModels = 8, kManyModels = 1000, kWithWork = 100;
constexpr std::size_t kQueued = 100'000;
constexpr int kRunning = 64;
constexpr int kFewestTokens = 16, kMostTokens = 48;  // of a prompt, and of an answer: any number between
constexpr int kResident = 4;                         // models that the pool holds
constexpr int kCacheFrames = 24;                     // of a model: 64 sequences of 64 tokens
constexpr int kTurn = 250;                           // steps
constexpr double kMedianLimit_us = 30, kP99Limit_us = 150, kRatioLimit = 2;

// A scheduler with its ranks, kept full of requests.
class Job {
 public:
  Job(std::size_t models, std::size_t stages, const std::string& policy)
      : layout_(virtual_stage()),
        layouts_(models, std::vector<const ShardLayout*>(stages, &layout_)),
        scheduler_(shapes(models, stages), std::vector<std::string>(models, "m"), make_policy(policy), options(stages)),
        mesh_(layouts_, CostModel(layouts_, options(stages).costs), /*latency_s=*/2e-5),
        asked_for_(std::min(models, kWithWork)) {
    serve_everybody_once(models);
    while (open_ < kQueued) submit(now_s_);
  }

  // Adds to the samples if `measure`, and counts.
  void run(int steps, bool measure) {
    for (const std::uint64_t end = steps_ + static_cast<std::uint64_t>(steps); steps_ < end;) turn(measure);
  }

  void warm_up(int steps) {
    run(steps, /*measure=*/false);
    passes_ = rows_ = swaps_ = 0;
  }

  double median_us() const { return quantile(samples_us_, 0.5); }
  double p99_us() const { return quantile(samples_us_, 0.99); }
  double waits_us() const { return quantile(waits_us_, 0.5); }
  double rows_a_pass() const {
    return static_cast<double>(rows_) / static_cast<double>(std::max<std::uint64_t>(passes_, 1));
  }
  std::uint64_t swaps() const { return swaps_; }
  std::size_t waiting() const { return scheduler_.waiting(); }
  std::uint64_t failed() const { return failed_; }

 private:
  struct Sent {
    StepId id;
    int logit_rows;
    VirtualMesh::Execution execution;
    double next_us;
  };

  static SchedulerOptions options(std::size_t stages) {
    return {.frames = kResident * (kVirtualPages + kCacheFrames),
            .max_seqs = kRunning,
            .steps_in_flight = stages == 1 ? 2 : static_cast<int>(stages) + 1,
            .max_waiting = 2 * kQueued,
            .costs = {.link_bytes_per_s = 20e9, .memory_bytes_per_s = 1e12, .flops_per_s = 1e14, .step_s = 1e-4}};
  }
  std::vector<ModelShape> shapes(std::size_t models, std::size_t stages) const {
    const ModelShape shape{.layouts = std::vector<const ShardLayout*>(stages, &layout_),
                           .caches = std::vector<KvGeometry>(stages, KvGeometry::make(layout_)),
                           .eos_tokens = {}};
    return std::vector<ModelShape>(models, shape);
  }

  int some_tokens() { return kFewestTokens + static_cast<int>(random_() % (kMostTokens - kFewestTokens + 1)); }
  void submit(double arrival_s) { submit(static_cast<ModelId>(random_() % asked_for_), arrival_s, some_tokens()); }
  void submit(ModelId model, double arrival_s, int max_tokens) {
    scheduler_.submit(
        {.id = ++last_id_,
         .model = model,
         .prompt = std::vector<TokenId>(static_cast<std::size_t>(some_tokens()), static_cast<TokenId>(last_id_ % 1000)),
         .max_tokens = max_tokens,
         .stop_tokens = {},
         .arrival_s = arrival_s});
    ++open_;
  }

  // Three times, at equal intervals: from then on each model's requests are expected at regular times.
  void serve_everybody_once(std::size_t models) {
    for (int time = 0; time < 3; ++time) {
      for (ModelId m = 0; m < models; ++m) submit(m, 1e4 * time, 1);
    }
    if (scheduler_.waits_for_input(now_s_)) scheduler_.note_input_end();  // the others expect more
    while (open_ > 0) turn(/*measure=*/false);
  }

  // All decisions that can be made now, then the next completion.
  void turn(bool measure) {
    for (;;) {
      const double start_us = processor_us();
      Decision decision = scheduler_.next(now_s_);
      const double us = processor_us() - start_us;
      if (const auto* wait = std::get_if<WaitUntil>(&decision)) {
        if (measure) waits_us_.push_back(us);
        if (in_flight_.empty()) now_s_ = wait->time_s;
        break;
      }
      send(std::get<PlannedStep>(decision), us);
    }
    if (!in_flight_.empty()) complete(measure);
    for (const Completion& completion : scheduler_.take_completions()) {
      failed_ += completion.error_code.empty() ? 0 : 1;
      --open_;
      if (now_s_ > 3e4 || open_ > kQueued / 2) submit(now_s_);
    }
  }

  void send(const PlannedStep& planned, double next_us) {
    const Step& step = planned.step;
    passes_ += step.chunks.empty() ? 0 : 1;
    rows_ += step.chunks.size();
    swaps_ += planned.swaps.size();
    in_flight_.push_back({step.id, step.logit_rows(), mesh_.execute(step, now_s_), next_us});
  }

  void complete(bool measure) {
    const Sent done = std::move(in_flight_.front());
    in_flight_.pop_front();
    now_s_ = std::max(now_s_, done.execution.reported_s);
    const std::vector<SampledRow> rows(static_cast<std::size_t>(done.logit_rows),
                                       SampledRow{.token = 5, .top = {{5, 0}}});
    const double start_us = processor_us();
    scheduler_.completed(done.id, {.rows = rows}, now_s_, done.execution.times);
    const double us = processor_us() - start_us;
    ++steps_;
    if (measure) samples_us_.push_back(done.next_us + us);
  }

  ShardLayout layout_;
  std::vector<std::vector<const ShardLayout*>> layouts_;
  Scheduler scheduler_;
  VirtualMesh mesh_;
  std::size_t asked_for_;  // the first models have all the work
  std::mt19937_64 random_{1};
  RequestId last_id_ = 0;
  std::size_t open_ = 0;
  double now_s_ = 0;
  std::deque<Sent> in_flight_;
  std::uint64_t steps_ = 0, passes_ = 0, rows_ = 0, swaps_ = 0, failed_ = 0;
  std::vector<double> samples_us_, waits_us_;
};

bool print_row(const std::string& policy, std::size_t stages, std::size_t models, const Job& job, double ratio) {
  const bool met = job.median_us() <= kMedianLimit_us && job.p99_us() <= kP99Limit_us && ratio <= kRatioLimit;
  fmt::print("| {} | {} | {} | {} | {} | {:.0f} | {} | {:.1f} | {:.1f} | {:.1f} | {} | {} |\n", policy, stages, models,
             std::min(models, kWithWork), job.waiting(), job.rows_a_pass(), job.swaps(), job.median_us(), job.p99_us(),
             job.waits_us(), models == kFewModels ? "" : fmt::format("{:.2f}", ratio),
             models == kFewModels ? ""
             : met                ? "met"
                                  : "missed");
  return met;
}

bool compare(const std::string& policy, std::size_t stages, int steps) {
  Job few(kFewModels, stages, policy), many(kManyModels, stages, policy);
  for (Job* job : {&few, &many}) job->warm_up(2000);
  for (int done = 0; done < steps; done += kTurn) {
    for (Job* job : {&few, &many}) job->run(std::min(kTurn, steps - done), /*measure=*/true);
  }
  print_row(policy, stages, kFewModels, few, 1);
  if (few.failed() + many.failed() > 0) throw std::runtime_error("requests have failed");
  return print_row(policy, stages, kManyModels, many, many.median_us() / few.median_us());
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 20000;
  fmt::print("{}\n\n", processor());
  fmt::print(
      "| policy | stages | models | with work | waiting | sequences a pass | swaps | next + completed: median us | p99"
      " us | a next() that waits: median us | ÷ 8 models | target |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  bool met = true;
  for (const std::size_t stages : {1, 2}) {
    for (const char* policy : {"fifo", "balanced", "throughput"}) met &= compare(policy, stages, steps);
  }
  return met ? 0 : 1;
}
