// What serving a workload took, in real time and in virtual time beside it, and how that is shown. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "computron/comm/mesh.h"
#include "computron/sched/cost_model.h"
#include "computron/workload/workload.h"
#include "src/bench/latency_summary.h"

namespace computron {

// One world's run of the requests.
struct WorkloadOutcome {
  std::vector<double> latencies_s;  // [request] arrival to completion
  std::uint64_t swaps = 0;          // models of which fetching began, since they last ran
  std::uint64_t bytes = 0;          // over the links of all ranks
  double link_busy_s = 0;           // of the busiest link
  double wall_s = 0;                // to the last completion
};

// [request] from completions in any order; every id from 0 on must be there once.
std::vector<double> latencies_of(const std::vector<Completion>& completions);

// Predictions that the real run's scheduler ended with, of the first model and summed over the stages.
struct LearnedCosts {
  double request_s = 0;  // pass of one prompt
  double batch_s = 0;    // pass of as many prompts as may run at once
  double swap_s = 0;     // transfer of the model, slowest stage
};

struct PolicyComparison {
  std::string policy;
  WorkloadOutcome real, virtual_time;
  LearnedCosts costs;
};

struct WorkloadConditions {
  MeshShape mesh;
  std::string device;
  double link_gb_per_s = 0;  // emulated; 0: the machine's own
  std::size_t page_bytes = 0;
  int frames = 0;
  int resident = 0;  // models that the pool was made for; 0: its size was given
  int max_seqs = 0;
  WorkloadOptions workload;
};

std::string workload_table(const std::vector<PolicyComparison>& runs, const WorkloadConditions& conditions);
std::string workload_csv(const std::vector<PolicyComparison>& runs, const WorkloadConditions& conditions);
std::string workload_json(const std::vector<PolicyComparison>& runs, const WorkloadConditions& conditions);

}  // namespace computron
