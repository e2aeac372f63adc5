// A plan for people to read: which model runs when, what is moved for it, and what it will take. Times are seconds
// after the start of the job, in virtual time.
#pragma once

#include <string>
#include <vector>

#include "computron/plan/virtual_run.h"

namespace computron {

// Consecutive passes of one model: a line of the table.
struct ActivePeriod {
  ModelId model = 0;
  double begin_s = 0, end_s = 0;
  int passes = 0;
  int rows = 0;
  double exposed_s = 0;           // compute stalled for pages
  std::size_t fetched_bytes = 0;  // of this model since its period before, by a rank of the stage that fetches most
};

struct Plan {
  std::vector<ActivePeriod> periods;
  double end_s = 0;
  std::uint64_t swaps = 0;
  std::size_t fetched_bytes = 0;  // by all ranks
  double link_busy_s = 0;         // of the busiest stage
  double exposed_s = 0;
  std::size_t requests = 0;
  std::size_t refused = 0;
};

// Follows a run step by step; keeps periods, no steps.
class PlanRecorder {
 public:
  // `layouts[model][stage]`, borrowed; `tp` ranks a stage.
  PlanRecorder(const std::vector<std::vector<const ShardLayout*>>& layouts, int tp);

  void add(const VirtualRun::SentStep& sent);
  // All of `run` has been added.
  Plan finish(const VirtualRun& run, const VirtualMesh& mesh);

 private:
  void note_fetches(const Step& step);

  const std::vector<std::vector<const ShardLayout*>>& layouts_;
  int tp_;
  Plan plan_;
  std::vector<std::vector<std::size_t>> fetched_;  // [model][stage] that no period has been charged with yet
};

// A table, a line a period (the first `max_periods`), and the sums. `costs` are the rates that the times come from.
std::string format_plan(const Plan& plan, const std::vector<std::string>& names, const CostOptions& costs,
                        std::size_t max_periods = 200);

}  // namespace computron
