// The models of a job on every rank: what their files hold, their configurations, and how each stage's shard of them
// lies in pages, for each group that has them.
//
// A model has a number in the job (id(), index()) and another in each group, from 0 on in the same order, by which the
// group's scheduler, steps and executor know it. In a job of one group the two are the same.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/comm/mesh.h"
#include "computron/model/config.h"
#include "computron/model/shard_layout.h"
#include "computron/placement/page_size.h"
#include "computron/runtime/host_store.h"
#include "computron/sched/scheduler.h"
#include "computron/serve/job_groups.h"
#include "computron/serve/job_heartbeat.h"
#include "computron/serve/job_options.h"
#include "computron/serve/rank_device.h"

namespace computron {

// The metadata of the models' files, [model], each read by a helper of its own (checkpoint/index_helper.h).
std::vector<CheckpointIndex> read_indices_apart(const std::vector<ModelEntry>& models);

// Nothing in it changes once it has been made, but for what pages take over host links.
class ModelSet {
 public:
  // Collective; each phase ends in a vote. Rank 0 reads the files' metadata, unless `indices` holds it, and sends it
  // round. Error{kConfig} and others name the model that does not fit its file, the mesh or the device.
  ModelSet(const JobOptions& options, const std::vector<JobGroup>& groups, const Mesh& mesh, const RankDevice& device,
           const JobHeartbeat& heartbeat, std::vector<CheckpointIndex> indices);

  // Collective, when all pages have been loaded. On rank 0 the layouts of all groups say from here on what each page
  // takes over the host links (ShardLayout::link_bytes): the most that any of the ranks says which have the page.
  void gather_link_bytes(const Mesh& mesh, const HostStore& host);

  // For a job that loads nothing: on rank 0 the layouts say what pages would take over the host links were they coded,
  // estimated from a sample of the models' files (model/coded_estimate.h). CheckpointError, Error{kIo}.
  void estimate_link_bytes(const WeightFormat& format);

  std::size_t size() const { return models_.size(); }  // of the job
  const std::string& id(ModelId model) const { return entries_[model].id; }
  const CheckpointIndex& index(ModelId model) const { return models_[model].index; }
  const WeightTypes& weight_types(ModelId model) const { return models_[model].weight_types; }
  // The job's numbers of a group's models, by their numbers in the group; of this rank's group.
  const std::vector<ModelId>& in_group(int group) const { return groups_[static_cast<std::size_t>(group)].models; }
  const std::vector<ModelId>& in_own_group() const { return in_group(own_group_); }
  // This rank's stage of a model of its group, by its number there.
  const ShardLayout& layout(ModelId local) const {
    return *groups_[static_cast<std::size_t>(own_group_)].layouts[local][stage_];
  }
  // The option's, or the longest input of an encoder, which is never cut.
  int max_batch_tokens() const { return max_batch_tokens_; }
  std::size_t page_bytes() const { return page_bytes_; }
  // Of the slots that adapters' pages lie in; 0: they lie in frames.
  std::size_t slot_bytes() const { return slot_bytes_; }

  // By the job's models, for the front end.
  std::vector<ServedModel> served() const;
  std::vector<std::string> names() const;
  // By a group's models, for its scheduler.
  std::vector<ModelShape> shapes(int group = 0) const;
  std::vector<std::string> names(int group) const;

 private:
  struct Model {
    CheckpointIndex index;
    ModelConfig config;
    WeightTypes weight_types = DType::kF32;
  };
  using StageLayouts = std::vector<ShardLayout*>;  // [stage]
  struct Group {
    std::vector<ModelId> models;        // of the job
    std::vector<StageLayouts> layouts;  // [model of the group]
  };
  // What the layout of a model depends on, within a job: groups that agree in it share one.
  using Cut = std::tuple<ModelId, int, int, std::vector<int>>;  // tp, pp, layers of each stage

  void read_metadata(const Mesh& mesh, const RankDevice& device, const JobHeartbeat& heartbeat,
                     std::vector<CheckpointIndex> indices);
  void take_metadata(const std::vector<std::byte>& bytes, Ops& ops);
  void lengthen_steps(bool says_so);
  void check_message_size(const ModelConfig& config, const MeshShape& mesh) const;
  // How models are cut for the groups.
  struct Cuts {
    std::map<Cut, std::vector<ShardPlan>> plans;  // [stage]
    std::vector<std::vector<Cut>> of_groups;      // [group][model of the group]
    std::size_t largest_block = 0;                // bytes that a page must hold
    std::size_t common_block = 1;                 // that pages are best a multiple of
  };

  Cuts cut_models(const JobOptions& options, const std::vector<JobGroup>& groups, const RankDevice& device) const;
  void make_layouts(const Cuts& cuts, const std::vector<JobGroup>& groups, const RankDevice& device);
  void tell_contents(bool of_all_stages);
  std::vector<std::uint32_t> own_savings(const HostStore& host) const;
  std::vector<ShardPlan> make_plans(ModelId model, const JobGroup& group, bool reproducible) const;
  // Both on rank 0.
  std::size_t page_size(const JobOptions& options, const RankDevice& device, const Cuts& cuts,
                        const JobHeartbeat& heartbeat) const;
  std::size_t best_page_size(const JobOptions& options, const RankDevice& device, const Cuts& cuts,
                             const JobHeartbeat& heartbeat) const;
  std::size_t slot_size(const Cuts& cuts, const WeightFormat& format) const;
  std::vector<ShardBytes> shard_bytes(const Cuts& cuts, const WeightFormat& format, PageCoding coding) const;

  const std::vector<ModelEntry>& entries_;
  int own_group_ = 0;
  std::size_t stage_ = 0;
  int max_batch_tokens_ = 0;
  std::size_t page_bytes_ = 0, slot_bytes_ = 0;
  std::vector<Model> models_;
  std::map<Cut, std::vector<ShardLayout>> layouts_;  // [stage]
  std::vector<Group> groups_;
};

}  // namespace computron
