// The ranks of a placement in virtual time, made of profiles alone: what the dispatcher and the schedulers that serve
// would do with requests there, page by page and pass by pass. No checkpoint is read, and nothing is computed.
//
//   profiles + placement ──> for each group: page layouts, a Scheduler, a VirtualMesh ──> Dispatcher ──> VirtualRun
//
// Parts that models share are pages of several, adapters that lie in slots are fetched into slots, and models of one
// family ride in each other's passes (src/sched/README.md), as they would where checkpoints say so.
//
// What passes take is what the profiles say (profiled_costs.h), and the schedulers believe it from the start; the pools
// are empty then. A shape without `passes` takes `stage_s` for every pass, whatever its rows.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "computron/placement/profile.h"
#include "computron/plan/virtual_run.h"
#include "computron/workload/arrivals.h"

namespace computron {

struct ClusterOptions {
  std::string policy = "balanced";
  double max_wait_s = PolicyOptions().max_wait_s;
  int max_seqs = SchedulerOptions().max_seqs;
  int max_batch_tokens = SchedulerOptions().max_batch_tokens;  // one that is shorter than an encoder's input is refused
  int steps_ahead = 1;  // passes in flight beyond one a stage: while one is computed another is on its way, as in a job
  OnLate on_late = OnLate::kServe;
  std::int64_t device_bytes = 0;                    // a rank's pool, weights and caches together
  std::int64_t host_cache_bytes = 0;                // of a rank, for caches that are offloaded
  std::int64_t page_bytes = std::int64_t{8} << 20;  // no page is smaller, and
  int most_pages = 64;                              // no stage of a model has more: they are larger then. 0: any
  double link_bytes_per_s = 0;                      // of each rank
  double latency_s = 20e-6;                         // of a step or its report, each way
  double stage_penalty = 0;                         // as SimulatorOptions has them: stages take that much longer,
  double constant_s = 0;                            // and every request so much more
};

// Weights whose pages follow each other.
struct VirtualPages {
  std::int64_t bytes = 0, link_bytes = 0;
  std::int64_t frame_bytes = 0;                           // not less than bytes: of all pages, full or not
  std::string contents = {};                              // pages of equal ones are equal
  auto operator<=>(const VirtualPages&) const = default;  // NOLINT(modernize-use-nullptr): it has none
};

// What is known of a stage's weights and caches where there are no tensors: a layout is made of it.
struct VirtualStage {
  VirtualPages own;                  // what the model has alone
  std::vector<VirtualPages> shared;  // what others have, too, before it
  std::int64_t page_bytes = 0;
  std::int64_t slot_bytes = 0;       // 0, or what is not shared lies in slots of it, all over the pass
  std::string family = {};           // empty: none
  std::int64_t operation_bytes = 0;  // that are used together
  std::int64_t cache_token_bytes = 0;
  int layers = 0;        // 0: not known
  bool by_rows = false;  // passes of more rows than the profile knows take as much longer
  auto operator<=>(const VirtualStage&) const = default;  // NOLINT(modernize-use-nullptr): it has none
};

class VirtualCluster {
 public:
  // Groups have models; those that no group has are served by none. Error{kUsage} naming what an option has wrong, or
  // pages and slots that are too many to be kept, ConfigError naming a model, or slots of adapters, that can never be
  // in its group's memory.
  VirtualCluster(const std::vector<ModelProfile>& models, const ModelPlacement& placement,
                 const ClusterOptions& options);
  VirtualCluster(const VirtualCluster&) = delete;  // its parts point to each other
  VirtualCluster& operator=(const VirtualCluster&) = delete;

  std::size_t groups() const { return schedulers_.size(); }
  Scheduler& scheduler(std::size_t group) { return *schedulers_[group]; }
  VirtualMesh& mesh(std::size_t group) { return *meshes_[group]; }

  // Plays the requests, which bear the place of their models in the list of profiles; once. One whose model is in no
  // group ends as it arrives, with the error "model_not_found".
  VirtualRun run(std::vector<Request> requests, const StepObserver& observe = {}, RunTimes* times = nullptr);

 private:
  void add(const std::vector<ModelProfile>& models, const PlacedGroup& placed, const ClusterOptions& options);
  const ShardLayout* layout_of(const ModelProfile& model, const ShapeProfile& profile, std::size_t stage,
                               std::int64_t page_bytes, std::int64_t slot_bytes);

  std::size_t models_;
  double constant_s_;
  std::map<VirtualStage, ShardLayout> layouts_;  // models of equal sizes that have no part in common share them
  std::int64_t pages_ = 0;                       // of all of these
  std::vector<std::unique_ptr<Scheduler>> schedulers_;
  std::vector<std::unique_ptr<VirtualMesh>> meshes_;
  std::vector<DispatchGroup> dispatch_groups_;
};

// Tokens of a pass where nobody says: a job's default, and an encoder's whole input. A shape without `passes` is of one
// request; with one in the placement no pass takes more than that.
int usual_batch_tokens(const std::vector<ModelProfile>& models, const ModelPlacement& placement, int prompt_tokens);

// Whether its profiles have no cache.
bool is_encoder(const ModelProfile& model);

// The requests that arrive, with their place as id. An encoder gets `prompt_tokens` at once; the others generate
// `max_tokens`, all of them. Deadlines are slo_s[model], infinity for none.
std::vector<Request> requests_of(std::span<const Arrival> arrivals, const std::vector<ModelProfile>& models,
                                 std::span<const float> slo_s, int prompt_tokens, int max_tokens);

}  // namespace computron
