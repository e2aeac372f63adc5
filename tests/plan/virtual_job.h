// A job in virtual time: equal models without bytes, links and processors of given speed.
#pragma once

#include <algorithm>
#include <deque>
#include <numeric>
#include <string>

#include "computron/plan/virtual_run.h"

namespace computron::test {

constexpr std::size_t kVirtualPage = std::size_t{1} << 20;

// A model's part on a stage: `operation_pages` have to be there together, and a weight [1, 1] tells rows apart.
// Of each page `link_share` crosses the link.
inline ShardLayout virtual_layout(int pages, int operation_pages, double link_share = 1) {
  ShardLayout layout;
  layout.page_bytes = kVirtualPage;
  layout.types = layout.cache_dtype = DType::kBF16;
  layout.plan.layers = 4;
  layout.plan.kv_heads = 4;
  layout.plan.config.head_dim = 64;
  layout.plan.tensors.push_back(
      {.name = "w", .role = TensorRole::kGemmWeight, .rows = 1, .columns = 1, .parts = {}, .type = DType::kBF16});
  for (int p = 0; p < pages; ++p) {
    layout.used_bytes.push_back(kVirtualPage);
    if (link_share < 1) layout.link_bytes.push_back(static_cast<std::size_t>(link_share * kVirtualPage));
    layout.uses.push_back(static_cast<PageId>(p));
    layout.over_before.push_back(p / operation_pages * operation_pages - 1);
  }
  return layout;
}

struct VirtualJob {
  int models = 1;
  int pages = 64;  // of a model on a stage
  int stages = 1;
  int operation_pages = 4;  // that have to be there together
  double transfer_s = 0.1;  // of a model, all stages at once, were its pages not coded
  double link_share = 1;    // of a page's bytes that cross the link
  double pass_s = 0.01;     // of a stage, whatever the rows
  double row_s = 0;         // and for each row more
  int max_batch_tokens = 2048;
  int frames = 0;  // 0: room for all models and 16 frames of cache
  int max_seqs = 64;
  int host_slots = 0;
  std::string policy = "balanced";
  PolicyOptions policy_options = {};
  CostOptions believed = {};  // what the scheduler believes at first; link_bytes_per_s 0: the truth
  std::vector<Request> requests = {};

  // Sends `count` requests of 8 tokens for `tokens` more to the models in turn, all there from the start.
  void send(int count, int tokens) {
    for (int i = 0; i < count; ++i) add(static_cast<ModelId>(i % models), tokens, 0);
  }
  void add(ModelId model, int tokens, double arrival_s, int prompt = 8) {
    Request& request = requests.emplace_back();
    request.id = requests.size() - 1;
    request.model = model;
    request.prompt.assign(static_cast<std::size_t>(prompt), 5);
    request.max_tokens = tokens;
    request.ignore_eos = true;
    request.arrival_s = arrival_s;
  }

  struct Outcome {
    VirtualRun run;
    std::vector<std::size_t> bytes;  // [stage]
    std::vector<double> busy_s;      // [stage]
    std::size_t model_bytes = 0;     // of a stage
    std::size_t preemptions = 0;
    // What each stage computes: the time of a pass for each that was sent, and of each row.
    double compute_s(const VirtualJob& job) const {
      double sum_s = 0;
      for (const auto& sent : run.steps) {
        const int rows = sent.planned.step.rows();
        if (rows > 0) sum_s += job.pass_s + rows * job.row_s;
      }
      return sum_s;
    }
    double mean_latency_s() const {
      const auto sum = std::accumulate(run.completions.begin(), run.completions.end(), 0.0,
                                       [](double s, const Completion& c) { return s + c.finished_s - c.arrival_s; });
      return sum / static_cast<double>(run.completions.size());
    }
    const Completion& completion(RequestId id) const {
      return *std::find_if(run.completions.begin(), run.completions.end(), [id](const auto& c) { return c.id == id; });
    }
  };

  Outcome run() const {
    std::deque<ShardLayout> layouts;
    std::vector<ModelShape> shapes;
    std::vector<std::string> names;
    std::vector<std::vector<const ShardLayout*>> by_model;
    for (int m = 0; m < models; ++m) {
      ModelShape& shape = shapes.emplace_back();
      for (int s = 0; s < stages; ++s) {
        shape.layouts.push_back(&layouts.emplace_back(virtual_layout(pages, operation_pages, link_share)));
        shape.caches.push_back(KvGeometry::make(layouts.back()));
      }
      by_model.push_back(shape.layouts);
      names.push_back("model-" + std::to_string(m));
    }
    const CostOptions truth{.link_bytes_per_s = pages * kVirtualPage / transfer_s,
                            .memory_bytes_per_s = 1e18,
                            .flops_per_s = row_s > 0 ? 2 / row_s : 1e18,  // of a weight [1, 1]
                            .step_s = pass_s};
    const SchedulerOptions options{.frames = frames > 0 ? frames : models * pages + 16,
                                   .host_slots = host_slots,
                                   .max_batch_tokens = max_batch_tokens,
                                   .max_seqs = max_seqs,
                                   .steps_in_flight = stages + 1,
                                   .costs = believed.link_bytes_per_s > 0 ? believed : truth};
    Scheduler scheduler(shapes, names, make_policy(policy, policy_options), options);
    VirtualMesh mesh(by_model, CostModel(by_model, truth), /*latency_s=*/20e-6);
    for (const Request& request : requests) scheduler.submit(request);
    scheduler.close_input();
    Outcome outcome{.run = run_keeping_steps(scheduler, mesh), .bytes = {}, .busy_s = {}};
    for (int s = 0; s < stages; ++s) {
      outcome.bytes.push_back(mesh.bytes(s));
      outcome.busy_s.push_back(mesh.busy_s(s));
    }
    outcome.model_bytes = pages * kVirtualPage;
    for (int m = 0; m < models; ++m) outcome.preemptions += scheduler.cache_use(static_cast<ModelId>(m)).preemptions;
    return outcome;
  }
};

}  // namespace computron::test
