// The models of a job on every rank: what their files hold, their configurations, and how each stage's shard of them
// lies in pages.
#pragma once

#include <string>
#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/comm/mesh.h"
#include "computron/model/config.h"
#include "computron/model/shard_layout.h"
#include "computron/sched/scheduler.h"
#include "computron/serve/job_heartbeat.h"
#include "computron/serve/job_options.h"
#include "computron/serve/rank_device.h"

namespace computron {

// The metadata of the models' files, [model], each read by a helper of its own (checkpoint/index_helper.h).
std::vector<CheckpointIndex> read_indices_apart(const std::vector<ModelEntry>& models);

// Nothing in it changes once it has been made.
class ModelSet {
 public:
  // Collective; each phase ends in a vote. Rank 0 reads the files' metadata, unless `indices` holds it, and sends it
  // round. Error{kConfig} and others name the model that does not fit its file, the mesh or the device.
  ModelSet(const JobOptions& options, const Mesh& mesh, const RankDevice& device, const JobHeartbeat& heartbeat,
           std::vector<CheckpointIndex> indices);

  std::size_t size() const { return models_.size(); }
  const std::string& id(ModelId model) const { return entries_[model].id; }
  const CheckpointIndex& index(ModelId model) const { return models_[model].index; }
  DType weight_dtype(ModelId model) const { return models_[model].weight_dtype; }
  // This rank's stage of it.
  const ShardLayout& layout(ModelId model) const { return models_[model].layouts[stage_]; }
  // The option's, or the longest input of an encoder, which is never cut.
  int max_batch_tokens() const { return max_batch_tokens_; }
  std::size_t page_bytes() const { return page_bytes_; }

  // By model, for the front end and the scheduler.
  std::vector<ServedModel> served() const;
  std::vector<ModelShape> shapes() const;
  std::vector<std::string> names() const;

 private:
  struct Model {
    CheckpointIndex index;
    ModelConfig config;
    DType weight_dtype = DType::kF32;
    std::vector<ShardLayout> layouts;  // [stage]
  };

  void read_metadata(const Mesh& mesh, const RankDevice& device, const JobHeartbeat& heartbeat,
                     std::vector<CheckpointIndex> indices);
  void take_metadata(const std::vector<std::byte>& bytes, const Ops& ops, bool bf16);
  void lengthen_steps(bool says_so);
  void check_message_size(const ModelConfig& config, const std::string& id, const MeshShape& mesh) const;
  void make_layouts(const JobOptions& options, const MeshShape& mesh, const RankDevice& device);

  const std::vector<ModelEntry>& entries_;
  int stage_ = 0;
  int max_batch_tokens_ = 0;
  std::size_t page_bytes_ = 0;
  std::vector<Model> models_;
};

}  // namespace computron
