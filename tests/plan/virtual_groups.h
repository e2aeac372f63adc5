// A job of several groups in virtual time: models without bytes, groups whose links and processors have given speeds.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "computron/plan/virtual_run.h"
#include "tests/plan/virtual_job.h"

namespace computron::test {

struct VirtualGroups {
  struct Group {
    std::vector<ModelId> models;  // the job's numbers
    int stages = 1;
    int frames = 0;     // of a stage; 0: room for all its models and 16 frames of cache
    double speed = 1;   // of its links and processors
    double pass_s = 0;  // of a stage; 0: the job's, divided by the stages
  };

  std::vector<int> pages;  // [model], over all stages
  double page_s = 0.001;   // to move one over a link
  double pass_s = 0.01;    // of a model through all stages, whatever the rows
  std::vector<Group> groups;
  int max_seqs = 64;
  std::string policy = "balanced";
  std::size_t max_waiting = 1 << 16;
  OnLate on_late = OnLate::kServe;
  std::vector<Request> requests = {};
  double link_share = 1;  // of a page's bytes that cross the link

  Request& add(ModelId model, int tokens, double arrival_s = 0) {
    Request& request = requests.emplace_back();
    request.id = requests.size() - 1;
    request.model = model;
    request.prompt.assign(8, 5);
    request.max_tokens = tokens;
    request.ignore_eos = true;
    request.arrival_s = arrival_s;
    return request;
  }

  struct Outcome {
    VirtualRun run;
    std::vector<std::size_t> bytes;             // [group], of a stage
    std::map<RequestId, std::size_t> begun_in;  // which group
    double mean_latency_s() const {
      double sum_s = 0;
      for (const Completion& c : run.completions) sum_s += c.finished_s - c.arrival_s;
      return sum_s / static_cast<double>(run.completions.size());
    }
  };
  Outcome run() const;
};

// What the groups of a job consist of, while it runs.
class VirtualGroupSet {
 public:
  explicit VirtualGroupSet(const VirtualGroups& job) : job_(job) {
    for (const VirtualGroups::Group& group : job.groups) add(group);
  }

  std::vector<DispatchGroup> groups() const {
    std::vector<DispatchGroup> groups;
    for (std::size_t g = 0; g < job_.groups.size(); ++g)
      groups.push_back({schedulers_[g].get(), job_.groups[g].models});
    return groups;
  }
  Scheduler& scheduler(std::size_t group) { return *schedulers_[group]; }
  std::vector<VirtualMesh*> meshes() const {
    std::vector<VirtualMesh*> meshes;
    for (const auto& mesh : meshes_) meshes.push_back(mesh.get());
    return meshes;
  }

 private:
  void add(const VirtualGroups::Group& group) {
    std::vector<ModelShape> shapes;
    std::vector<std::string> names;
    std::vector<std::vector<const ShardLayout*>> by_model;
    int frames = 16;
    for (const ModelId model : group.models) {
      ModelShape& shape = shapes.emplace_back();
      const int pages = job_.pages[model] / group.stages;
      frames += pages;
      for (int s = 0; s < group.stages; ++s) {
        shape.layouts.push_back(&layouts_.emplace_back(virtual_layout(pages, /*operation_pages=*/4, job_.link_share)));
        shape.caches.push_back(KvGeometry::make(layouts_.back()));
      }
      by_model.push_back(shape.layouts);
      names.push_back("model-" + std::to_string(model));
    }
    const double pass_s = group.pass_s > 0 ? group.pass_s : job_.pass_s / group.stages;
    const CostOptions costs{.link_bytes_per_s = group.speed * kVirtualPage / job_.page_s,
                            .memory_bytes_per_s = 1e18,
                            .flops_per_s = 1e18,
                            .step_s = pass_s / group.speed};
    const SchedulerOptions options{.frames = group.frames > 0 ? group.frames : frames,
                                   .max_seqs = job_.max_seqs,
                                   .steps_in_flight = group.stages + 1,
                                   .max_waiting = job_.max_waiting,
                                   .on_late = job_.on_late,
                                   .costs = costs};
    schedulers_.push_back(std::make_unique<Scheduler>(shapes, names, make_policy(job_.policy), options));
    meshes_.push_back(std::make_unique<VirtualMesh>(by_model, CostModel(by_model, costs), /*latency_s=*/20e-6));
  }

  const VirtualGroups& job_;
  std::deque<ShardLayout> layouts_;
  std::vector<std::unique_ptr<Scheduler>> schedulers_;
  std::vector<std::unique_ptr<VirtualMesh>> meshes_;
};

inline VirtualGroups::Outcome VirtualGroups::run() const {
  VirtualGroupSet set(*this);
  Dispatcher dispatcher(set.groups(), pages.size());
  for (const Request& request : requests) dispatcher.submit(request);
  dispatcher.close_input();
  Outcome outcome;
  const std::vector<VirtualMesh*> meshes = set.meshes();
  outcome.run = run_virtually(dispatcher, meshes, [&](const VirtualRun::SentStep& sent) {
    for (const RequestId id : sent.planned.begun) outcome.begun_in[id] = sent.group;
  });
  for (const VirtualMesh* mesh : meshes) outcome.bytes.push_back(mesh->bytes(0));
  return outcome;
}

}  // namespace computron::test
