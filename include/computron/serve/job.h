// A serving job on every rank: set up in phases, each of which ends in a vote, and everything that its loops borrow.
//
//   JobGroup     which models which ranks serve
//   Mesh         which rank is what
//   RankDevice   the device of this rank
//   ModelSet     the models' files, configurations and pages
//   PageStore    which of these pages the ranks of a node hold once
//   MemoryPlan   what all that takes, checked before it is spent
//   HostStore    this rank's pages, loaded
//   Executor     what runs steps
//
// What the program chose where the options left it a choice stands in the JobPlan.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "computron/base/trace.h"
#include "computron/comm/clock.h"
#include "computron/comm/mesh.h"
#include "computron/runtime/executor.h"
#include "computron/sched/scheduler.h"
#include "computron/serve/job_groups.h"
#include "computron/serve/job_heartbeat.h"
#include "computron/serve/job_options.h"
#include "computron/serve/memory_plan.h"
#include "computron/serve/model_set.h"
#include "computron/serve/rank_device.h"
#include "computron/serve/serve_hooks.h"

namespace computron {

// What one group of ranks runs with.
struct GroupPlan {
  int frames = 0;
  int host_slots = 0;
  int adapter_slots = 0;    // of the pool, beside the frames
  int steps_in_flight = 1;  // steps with a pass that may be dispatched and not reported
  int steps_announced = 1;  // the same with those that hold fetches only: receives that a rank keeps posted
};

// What a job runs with. The same on all ranks but for the first three, which are this rank's or its node's.
struct JobPlan {
  int threads = 1;
  int ranks_on_node = 1;
  int cores_on_node = 1;  // that the node's ranks may run on together

  VerifySwap verify_swap = VerifySwap::kOff;
  PageCoding page_coding = PageCoding::kRaw;
  TransportKind transport_kind = TransportKind::kHost;
  int max_batch_tokens = 0;
  std::size_t page_bytes = 0;
  std::size_t guide_bytes = 0;  // of guides on a rank of a last stage; 0: guided requests are refused
  std::vector<GroupPlan> groups = {};
};

// Built by the constructor, collectively. A failure in a phase is the same Error (VoteError) on every rank.
class Job {
 public:
  // Takes `indices` of rank 0 where the models' metadata have been read already. Borrows `hooks`.
  explicit Job(JobOptions options, Communicator world, const JobHeartbeat& heartbeat = {},
               ServeHooks& hooks = no_hooks(), std::vector<CheckpointIndex> indices = {});
  Job(const Job&) = delete;  // its members borrow each other
  Job& operator=(const Job&) = delete;

  const JobOptions& options() const { return options_; }
  const JobPlan& plan() const { return plan_; }
  const GroupPlan& group_plan() const { return plan_.groups[static_cast<std::size_t>(mesh_.group_index)]; }  // own
  const std::vector<JobGroup>& groups() const { return groups_; }
  const Mesh& mesh() const { return mesh_; }
  const ModelSet& models() const { return models_; }
  Device& device() const { return device_.device(); }
  Ops& ops() const { return device_.ops(); }
  Progress& progress() const { return device_.progress(); }
  const HostStore& host() const { return *host_; }
  Executor& executor() { return *executor_; }
  // Of a job that loads nothing, on rank 0: plans count what pages would take coded, as estimated from a sample of the
  // models' files. CheckpointError, Error{kIo}.
  void estimate_link_bytes() { models_.estimate_link_bytes(ops().weight_format()); }
  // Executes a step and returns this rank's done record.
  Report run(const Step& step);
  // Null unless the job is traced or watched.
  Trace* trace() const { return trace_.get(); }
  ClockOffset clock() const { return clock_; }  // of a traced job

  SchedulerOptions scheduler_options(int group = 0) const;

 private:
  PageStore make_page_store() const;
  JobPlan make_plan() const;
  void check() const;
  void load_pages(const JobHeartbeat& heartbeat);
  void map_pages();
  void make_executor();

  const JobOptions options_;
  const std::vector<JobGroup> groups_;
  ServeHooks& hooks_;
  Mesh mesh_;
  std::unique_ptr<Trace> trace_;
  ClockOffset clock_;
  RankDevice device_;
  ModelSet models_;
  PageStore pages_;
  MemoryPlan memory_;
  const JobPlan plan_;
  std::unique_ptr<HostStore> host_;
  std::unique_ptr<Executor> executor_;
};

// The scheduler of a group (rank 0), which predicts from `costs` until it has seen more.
Scheduler make_scheduler(const Job& job, int group, const CostOptions& costs);
Scheduler make_scheduler(const Job& job, int group = 0);

}  // namespace computron
