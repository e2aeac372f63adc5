// Plays requests against a placement: AlpaServe's fast simulator, one recurrence a request, with swapping added.
//
// Requests are served one by one, first come first served in each group, a pass each; a group is a pipeline whose
// stages each have a clock. A request goes to one group of its model (DispatchRule). If it would miss its
// objective it is rejected at once, and costs nothing.
//
// With swapping a group may have more models than fit (swapping_group.h), and a request goes to the group that would be
// free first after having copied what it lacks. Where all models of all groups fit, the results are those without
// swapping, to the bit.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "computron/placement/profile.h"
#include "computron/placement/swapping_group.h"
#include "computron/workload/arrivals.h"

namespace computron {

// Which group of its model gets a request.
enum class DispatchRule {
  kFirstFree,   // whose last pass ends first, which is AlpaServe's
  kLeastFinish  // that would end the request first, which is what a job's dispatcher looks for
};

struct SimulatorOptions {
  // AlpaServe's calibration to its own system: every stage takes 1 + penalty · stages as long as its profile says, and
  // every request a constant more.
  double stage_penalty = 0.009;
  double constant_s = 0.011;
  std::optional<SwapCosts> swap;  // none: the models of a group are resident
  DispatchRule dispatch = DispatchRule::kFirstFree;

  static SimulatorOptions without_penalties() { return {.stage_penalty = 0, .constant_s = 0, .swap = {}}; }
};

struct RequestOutcome {
  double latency_s = 0;  // 0 where it was rejected
  bool good = false;     // served within its objective
};

struct SimulationResult {
  std::vector<std::uint32_t> requests, good;  // [model]
  std::vector<double> latency_s;              // [model] sum over the good ones
  std::vector<std::uint32_t> dispatched;      // [group] rejected ones included
  std::vector<std::uint32_t> served;          // [group] the good ones
  std::vector<std::uint64_t> group_swaps;     // [group] passes whose model was not all there
  std::vector<double> busy_s;                 // [group] of its slowest stage
  double makespan_s = 0;                      // end of the last pass
  std::uint64_t swaps = 0;                    // of all groups
  double swapped_bytes = 0;                   // over the links, summed over stages, of one rank each

  std::uint64_t all_requests() const;
  double attainment() const;                  // share of the good; 1 where there are no requests
  double mean_latency_s() const;              // rejected ones count as 0, as AlpaServe has it
  void merge(const SimulationResult& other);  // of the same models; groups are not added up
};

class FastSimulator {
 public:
  // Borrows `models`.
  FastSimulator(const std::vector<ModelProfile>& models, SimulatorOptions options);

  // `arrivals` in order of time; slo_s[model] may be infinite. `outcomes`, if there is one, gets one of each request.
  // Error{kInternal} where a group has a model without a profile of its shape.
  SimulationResult run(const ModelPlacement& placement, std::span<const Arrival> arrivals, std::span<const float> slo_s,
                       std::vector<RequestOutcome>* outcomes = nullptr);

 private:
  // A model in a group.
  struct Replica {
    std::uint32_t group;
    std::uint32_t stages;
    std::uint32_t clocks;  // place of the group's first clock
    std::uint32_t times;   // place of its first stage time
    double slowest_s;
    SwappingGroup* memory;  // null: the group's models all fit
    std::uint32_t local;    // the model's number in there
  };

  void prepare(const ModelPlacement& placement);
  void add_group(std::uint32_t group, const PlacedGroup& placed, std::vector<std::vector<Replica>>& by_model);
  SwappingGroup* memory_of(std::uint32_t group, const PlacedGroup& placed);
  const Replica& choose(std::span<const Replica> replicas, double now);
  const Replica& least_finish(std::span<const Replica> replicas, double now);
  double predict(const Replica& replica, double now);
  bool serve(const Arrival& arrival, float slo_s, SimulationResult& result, double& latency_s);

  const std::vector<ModelProfile>& models_;
  SimulatorOptions options_;
  std::vector<Replica> replicas_;             // by model
  std::vector<std::uint32_t> first_;          // [model] in replicas_; one more at the end
  std::vector<double> times_;                 // of replicas, stage by stage
  std::vector<double> clocks_;                // of groups, stage by stage
  std::vector<double> last_clock_;            // [group] of its last stage
  std::vector<double> ends_;                  // of the pass at hand, stage by stage
  std::deque<SwappingGroup> memories_;        // of the groups whose models do not all fit,
  std::vector<std::uint32_t> memory_groups_;  // and which groups these are
};

// AlpaServe's reported figures leave out the requests of `edge_s` at either end: that share of the requests.
double trimmed_attainment(std::span<const Arrival> arrivals, std::span<const RequestOutcome> outcomes,
                          double edge_s = 10);

}  // namespace computron
