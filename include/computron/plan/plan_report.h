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
  double exposed_s = 0;  // compute stalled for pages
  std::size_t fetched_bytes =
      0;  // of this model since its period before, in frames, by a rank of the stage that fetches most
};

struct Plan {
  std::vector<ActivePeriod> periods;
  double end_s = 0;  // of the group's last step
  std::uint64_t swaps = 0;
  std::size_t fetched_bytes = 0;  // by all ranks, in frames
  std::size_t link_bytes = 0;     // of the same over the host links
  double link_busy_s = 0;         // of the busiest stage
  double exposed_s = 0;
  std::size_t requests = 0;
  std::size_t refused = 0;
};

// Follows the steps of one group in a run; keeps periods, no steps.
class PlanRecorder {
 public:
  // `layouts[model][stage]`, borrowed; `tp` ranks a stage.
  PlanRecorder(const std::vector<std::vector<const ShardLayout*>>& layouts, int tp);

  void add(const VirtualRun::SentStep& sent);
  // All steps of the group in `run` have been added; `mesh` is the group's.
  Plan finish(const VirtualRun& run, std::size_t group, const VirtualMesh& mesh);

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
// A group's plan, to stand among others: the same, headed by `group` and without the rates.
std::string format_group_plan(const std::string& group, const Plan& plan, const std::vector<std::string>& names,
                              std::size_t max_periods = 50);
// How many requests meet their deadlines, by model and of all; empty where none has one. `names` by the job's models.
std::string format_deadlines(const VirtualRun& run, const std::vector<std::string>& names);
// What the groups do together, and the rates.
std::string format_sum(const std::vector<Plan>& plans, const CostOptions& costs);

}  // namespace computron
