// Sets a serving job up on every rank: device, models, pages, pool; and what it costs in bytes, before it is spent.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "computron/base/memory.h"
#include "computron/base/trace.h"
#include "computron/comm/clock.h"
#include "computron/comm/mesh.h"
#include "computron/runtime/executor.h"
#include "computron/runtime/heartbeat.h"
#include "computron/sched/scheduler.h"
#include "computron/serve/placement.h"
#include "computron/serve/roster.h"

namespace computron {

// The options of `computron serve` that every rank needs (interface.md). 0 or empty: chosen by the program.
struct JobOptions {
  std::vector<RosterEntry> models;
  int tp = 0;
  int pp = 0;
  std::string device = "auto";     // auto: GPUs where every rank has one for itself
  bool share_gpu = false;          // ranks may have the same one
  bool tf32 = false;               // of float32 weights, where the device has it
  std::string transport = "auto";  // between GPUs: nccl, mpi (through host memory), or what fits
  std::size_t device_memory_bytes = 0;
  // Where device_memory_bytes is 0 and pool_for_tokens is not: the pool is the largest `pool_models` models, for each
  // of them a cache of so many tokens, and a frame. What benchmarks of swapping want: so many models resident and no
  // further one.
  int pool_for_tokens = 0;
  int pool_models = 1;
  std::size_t page_bytes = 0;
  double link_gb_per_s = 0;
  int threads = 0;
  std::string idle;
  int max_batch_tokens = 2048;  // at least the longest input of an encoder: a job raises it
  int max_seqs = 64;
  bool share_prefixes = false;
  std::string policy = "balanced";
  double max_wait_s = PolicyOptions{}.max_wait_s;
  // Host memory of a rank for caches of models that are swapped out; absent: an eighth of the pool.
  std::optional<std::size_t> host_cache_bytes;
  std::string verify_swap = "auto";  // first where the device can, else off
  bool reproducible = false;         // the same bits at tp 1, 2, 4, 8
  InjectedFlip flip = {};            // test only, of this rank
  InjectedDivergence divergence = {};  // likewise
  bool load = true;                  // false: everything is planned and checked, no page is read, nothing can run
  bool trace = false;
  std::uint64_t seed = 0;
  std::vector<CheckpointIndex> indices = {};  // on rank 0, of `models`, if they have been read already
  Heartbeat* heartbeat = nullptr;  // borrowed; null: nobody watches this job
};

// The metadata of the models' files, [model], each read by a helper of its own (checkpoint/index_helper.h).
std::vector<CheckpointIndex> read_indices_apart(const std::vector<RosterEntry>& models);

// Bytes that a rank takes.
struct MemoryNeed {
  std::size_t host = 0;  // pages of all models, slots for caches and, beside a device with memory of its own, messages
  std::size_t pool = 0;
  std::size_t workspace = 0;  // scratch arrays and message buffers
  bool on_device = false;     // pool and workspace take memory that only the device has
  std::size_t device_total() const { return pool + workspace; }
  std::size_t host_total() const { return host + (on_device ? 0 : device_total()); }
  std::size_t total() const { return host + device_total(); }
};

// Everything a rank serves with. Built by the constructor, collectively; each phase ends in a vote, so a failure
// anywhere is the same Error (VoteError) everywhere.
class Job {
 public:
  Job(JobOptions options, Communicator world);

  const JobOptions& options() const { return options_; }
  const Mesh& mesh() const { return *mesh_; }
  Progress& progress() { return *progress_; }
  Executor& executor() { return *executor_; }
  const Device& device() const { return *device_; }
  Device& device() { return *device_; }
  Ops& ops() { return *ops_; }
  const CheckpointIndex& index(ModelId model) const { return models_[model].index; }
  DType weight_dtype(ModelId model) const { return models_[model].weight_dtype; }
  const HostStore& host() const { return *host_; }
  std::size_t page_bytes() const { return page_bytes_; }
  int frames() const { return frames_; }
  // Null unless the job is traced or watched.
  Trace* trace() const { return trace_.get(); }
  // The oldest step in hand, or none.
  void expect(std::optional<StepId> step, double predicted_s = 0) const;
  // Rank 0 owes one, and why it has not sent it; empty: it does not.
  void expect_a_step(const std::string& why) const;
  // Work with files, for which a disk may take its time: nobody takes this rank for one that hangs. It must not touch
  // MPI.
  void while_working(const std::function<void()>& work) const {
    options_.heartbeat != nullptr ? options_.heartbeat->while_working(work) : work();
  }
  // Whenever this rank looks at its queues.
  void look_around() const {
    if (options_.heartbeat != nullptr) options_.heartbeat->poll();
  }
  // What this rank did last is of no interest: it ends as it should.
  void forget_records() const {
    if (options_.heartbeat != nullptr) options_.heartbeat->recorder().remove_all();
  }
  void enter(SignOfLife::Phase phase) const {
    if (options_.heartbeat != nullptr) options_.heartbeat->enter(phase);
  }
  ClockOffset clock() const { return clock_; }  // of a traced job
  // Steps with a pass that may be dispatched and not reported.
  int steps_in_flight() const { return mesh_->shape.pp + 1; }
  // The same with those that hold fetches only: receives that a rank keeps posted.
  int steps_announced() const { return Scheduler::max_steps_in_flight(steps_in_flight()); }
  int ranks_on_node() const { return ranks_on_node_; }
  int cores_on_node() const { return cores_; }  // that the node's ranks may run on together

  // For the front end and the scheduler (rank 0).
  std::vector<ServedModel> served_models() const;
  std::vector<ModelShape> model_shapes() const;
  std::vector<std::string> model_names() const;
  SchedulerOptions scheduler_options() const;

 private:
  struct Model {
    CheckpointIndex index;
    ModelConfig config;
    DType weight_dtype = DType::kF32;
    std::vector<Image> images;  // [stage]
  };

  void read_indices();
  void set_up_device();
  void choose_device();
  void make_device();
  int busy_threads() const;
  void measure_device();
  VerifySwap verify_swap() const;
  LinkKind link_kind() const;
  void lengthen_steps();
  void check_message_size(const ModelConfig& config, const std::string& id) const;
  void make_images();
  void plan_memory(const Communicator& node);
  std::size_t default_pool_bytes();
  std::size_t default_host_cache_bytes() const;
  void check_memory() const;
  void load_pages();
  void make_executor();
  void make_trace();
  std::string device_kind() const;
  std::string device_line() const;
  std::string memory_table(const std::vector<MemoryNeed>& needs) const;
  const Image& own_image(const Model& model) const { return model.images[mesh_->stage]; }

  JobOptions options_;
  std::unique_ptr<Mesh> mesh_;
  int ranks_on_node_ = 1;
  int rank_on_node_ = 0;
  int cores_ = 1;
  std::unique_ptr<Trace> trace_;
  ClockOffset clock_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::vector<Model> models_;
  std::size_t page_bytes_ = 0;
  int frames_ = 0;
  int host_slots_ = 0;
  MemoryNeed memory_;           // of this rank
  std::size_t node_bytes_ = 0;  // of all ranks of this node
  MemoryLimit limit_;
  std::vector<RankPlace> places_;             // [rank]
  std::optional<MemoryLimit> device_memory_;  // this rank's share of what is free, if the device has its own
  std::unique_ptr<HostStore> host_;
  std::unique_ptr<Executor> executor_;
};

// The scheduler of a job (rank 0), which predicts from `costs` until it has seen more.
Scheduler make_scheduler(const Job& job, const CostOptions& costs);
Scheduler make_scheduler(const Job& job);

}  // namespace computron
