// The groups of a job as they are made: how many ranks each has, and which models.
#pragma once

#include <map>
#include <vector>

#include "computron/base/types.h"
#include "computron/comm/mesh.h"
#include "computron/serve/job_options.h"

namespace computron {

struct JobGroup {
  MeshShape shape;
  std::vector<ModelId> models;  // of the job, by the group's own numbers; ascending
  // [model of the job] How many layers each stage has. A model without an entry is cut by its parameters.
  std::map<ModelId, std::vector<int>> layers = {};

  // Empty: cut by its parameters.
  std::vector<int> layers_of(ModelId model) const;
};

// At least one. ConfigError naming what does not fit: groups that have another number of ranks than the job; models
// that are in no group, or that a group names and the job does not have; replicas of a model with different tp (on GPUs
// also with different stages), whose results would differ, unless the job is reproducible.
std::vector<JobGroup> job_groups(const JobOptions& options, int ranks);

// The shape of a job of one group over so many ranks, where the options leave tp or pp open.
MeshShape shape_of_one(const JobOptions& options, int ranks);
// What the options and this machine leave open.
bool may_run_on_gpus(const JobOptions& options);
// Whether results depend on how a model is cut into stages: those of GPUs do, where pieces of products follow a stage's
// pages.
bool depends_on_stages(const JobOptions& options);

std::vector<MeshShape> shapes_of(const std::vector<JobGroup>& groups);

}  // namespace computron
