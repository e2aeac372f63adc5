// A group of ranks as the dispatcher sees it: its scheduler, what it was given and gave back, and what a request or a
// share of the work would take there. Translates between the job's numbers of models and the group's own.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "computron/sched/scheduler.h"

namespace computron {

struct DispatchGroup {
  Scheduler* scheduler = nullptr;  // borrowed
  std::vector<ModelId> models;     // the job's number of each of the scheduler's models
};

class ServingGroup {
 public:
  explicit ServingGroup(DispatchGroup group);

  Scheduler& scheduler() { return *scheduler_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  std::size_t models() const { return models_.size(); }
  ModelId job_model(ModelId local) const { return models_[local]; }
  // The group's number of the job's model; nothing if the group does not hold it.
  std::optional<ModelId> local(ModelId job_model) const;

  // Requests bear the job's numbers of models, and so do completions. give() requires that the group holds the model.
  void give(Request request);
  // Whether it could serve the request, whose model it holds and has this number in the group.
  bool accepts(const Request& request, ModelId local) const;
  // As Scheduler::recall(), of the job's model, which `thief` holds too: of the requests that it accepts.
  std::vector<Request> take_back(ModelId job_model, std::size_t n, const ServingGroup& thief);
  std::vector<Completion> take_completions();

  // What a request would cost here: seconds until it is done, and those that it adds for others by the swap of its
  // model, were they to wait for that.
  struct Cost {
    double seconds = 0;  // infinity: it can never be served here
    bool resident = true;
    std::size_t open = 0;  // requests of the group that are not done
  };
  Cost cost_of(const Request& request, double now_s) const;
  // Transfer of what the job's model lacks, unless requests of it are open: then it is on its way.
  double swap_s(ModelId local) const;
  // Of all that is open, if every pass were full.
  double work_s() const { return scheduler_->open().work_s(); }

 private:
  Scheduler* scheduler_;
  std::vector<ModelId> models_;                        // [local]
  std::vector<std::pair<ModelId, ModelId>> by_model_;  // (the job's, local), sorted
};

// Whether a request that costs `a` in one group and `b` in another, behind it in the list, should go to the latter.
// Times that differ by rounding are equal: then the group where the model is resident, then the one with fewer open
// requests.
bool is_better(const ServingGroup::Cost& b, const ServingGroup::Cost& a);

}  // namespace computron
