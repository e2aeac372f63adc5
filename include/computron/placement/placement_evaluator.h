// What a search for a placement is given, and how it judges one: by a fast simulation of requests that are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "computron/placement/fast_simulator.h"

namespace computron {

enum class Objective {
  kAttainment,   // share of requests within their objective; late ones are rejected
  kMeanLatency,  // of all requests; none is rejected
  kMakespan,     // until the last one is served; none is rejected
};

struct ClusterMemory {
  std::int64_t device_bytes = 0;  // a rank's, for weights

  struct Swapping {
    std::int64_t host_bytes = 0;  // a rank's part of its node's memory for weights; ranks of a node put theirs together
    int ranks_per_node = 1;       // of a node, replicas of one shape share what is equal
    std::int64_t page_bytes = 1 << 24;
    double link_bytes_per_s = 0;  // of each rank
  };
  std::optional<Swapping> swapping;  // none: all models of a group must fit device_bytes together
};

// What the replicas of a model must have in common. Results depend on the order of sums, so on tp, and on GPUs on the
// stages too (src/serve/job_groups.cpp), unless a job is reproducible.
enum class ReplicaRule { kAny, kSameTp, kSameShape };

struct SearchProblem {
  std::vector<ModelProfile> models;
  std::vector<float> slo_s;           // [model] for kAttainment
  std::vector<Arrival> arrivals;      // in order of time; the placement is fitted to these
  std::vector<std::uint32_t> wanted;  // models to place; empty: all
  int ranks = 1;
  int first_rank = 0;  // of them; which nodes they are on follows from it
  ClusterMemory memory;
  Objective objective = Objective::kAttainment;
  ReplicaRule replicas = ReplicaRule::kAny;
  // As a job is: every wanted model is in a group, and every group has one. A placement that is not so is worse than
  // all that are.
  bool complete = false;
  double stage_penalty = SimulatorOptions().stage_penalty;
  double constant_s = SimulatorOptions().constant_s;
};

// [model] In how many groups it is.
std::vector<int> replicas_by_model(const SearchProblem& problem, const ModelPlacement& placement);

// Whether its groups have room for their models, and replicas have in common what they must.
bool fits(const SearchProblem& problem, const ModelPlacement& placement);

// Of `problem`, with its memory.
SimulatorOptions simulator_options(const SearchProblem& problem);

struct ScoredPlacement {
  ModelPlacement placement;
  double score = 0;
  SimulationResult result;
};

// AlpaServe's: attainment - mean latency / 10,000 + replicas / 1,000,000; the last two break ties. For the other
// objectives less time is more, and a request that no group can serve is worse than any time.
double score_of(Objective objective, const SimulationResult& result, std::size_t replicas);

// Both may be empty.
struct SearchWatch {
  std::function<bool()> stop;                          // asked before each simulation: end with the best so far
  std::function<void(const ScoredPlacement&)> better;  // a search of the whole problem has found a better placement
};

class PlacementEvaluator {
 public:
  // Error{kUsage} naming what the problem has wrong.
  explicit PlacementEvaluator(SearchProblem problem, SearchWatch watch = {});

  // Simulators borrow the profiles.
  PlacementEvaluator(const PlacementEvaluator&) = delete;
  PlacementEvaluator& operator=(const PlacementEvaluator&) = delete;

  const SearchProblem& problem() const { return problem_; }
  const SearchWatch& watch() const { return watch_; }
  const std::vector<std::uint32_t>& wanted() const { return wanted_; }
  // [model] As siblings_of() has them.
  const std::vector<std::vector<std::uint32_t>>& siblings() const { return siblings_; }
  bool has_siblings() const;  // some model has
  std::size_t simulations() const { return simulations_; }
  // The best placement of each division into groups that has been evaluated, of the `n` best divisions, the best first.
  // A division is what its groups' shapes are, in any order: placements of one differ little.
  std::vector<ScoredPlacement> best_divisions(std::size_t n) const;
  bool stopped() const { return watch_.stop && watch_.stop(); }

  // Whether models must all be placed (`complete`), and one is not that would have room alone. A search does not stop
  // before it has tried to place them.
  bool lacks_models(const ModelPlacement& placement) const;

  ScoredPlacement evaluate(ModelPlacement placement);
  // Other requests, of as many models: for a test with seeds that the search has not seen.
  SimulationResult simulate(const ModelPlacement& placement, std::span<const Arrival> arrivals,
                            std::vector<RequestOutcome>* outcomes = nullptr);

 private:
  std::size_t incomplete(const ModelPlacement& placement) const;
  void remember(const ScoredPlacement& scored);

  SearchProblem problem_;
  SearchWatch watch_;
  std::vector<std::uint32_t> wanted_;
  std::vector<std::uint32_t> placeable_;  // of the wanted models, if all must be placed
  std::vector<std::vector<std::uint32_t>> siblings_;
  std::vector<float> slo_s_;  // infinite where nothing is rejected
  FastSimulator simulator_;
  std::size_t simulations_ = 0;
  std::map<std::vector<GroupShape>, ScoredPlacement> divisions_;  // by their shapes, sorted
};

}  // namespace computron
