// What schedulers and virtual ranks are told of a job's passes before any has run: --profiles of `computron serve`.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "computron/placement/profile_file.h"
#include "computron/sched/cost_model.h"
#include "computron/serve/job.h"

namespace computron {

// [model][stage] of a group.
std::vector<std::vector<const ShardLayout*>> layouts_of(const Job& job, int group);

struct NamedProfiles {
  std::string file;
  ProfileFile content;
};

class KnownCosts {
 public:
  // Borrows `job`. `otherwise`: what the profiles do not say, all of it where there are none. A link that --link-gbps
  // emulates stays what it is. Logs by name which models the profiles lack, or say nothing of.
  KnownCosts(const Job& job, const CostOptions& otherwise, const std::optional<NamedProfiles>& profiles);

  const CostOptions& options() const { return options_; }
  // Of a step or its report, each way, in seconds.
  double latency_s() const { return latency_s_; }
  // "passes of 3 of 4 models as in FILE", and a newline; empty without profiles.
  std::string basis() const;
  // Tells `costs`, of that group, the passes of its models.
  void teach(int group, CostModel& costs) const;

 private:
  using Shapes = std::vector<std::pair<ModelId, ShapeProfile>>;  // by the group's models

  Shapes shapes_of(const RankGroup& group, const std::vector<ModelProfile>& profiles) const;

  const Job& job_;
  CostOptions options_;
  std::string file_;  // empty: none
  double latency_s_;
  std::vector<Shapes> groups_;  // [group]
};

}  // namespace computron
