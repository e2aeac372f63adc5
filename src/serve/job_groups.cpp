#include "computron/serve/job_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "computron/base/error.h"
#include "computron/device/device.h"

namespace computron {
namespace {

// Each with every model.
std::vector<JobGroup> equal_groups(const JobOptions& options, int ranks) {
  const int count = std::max(options.groups, 1);
  JobGroup group{.shape = shape_of_one(options, ranks / count), .models = {}};
  group.models.resize(options.models.size());
  std::iota(group.models.begin(), group.models.end(), ModelId{0});
  return std::vector<JobGroup>(static_cast<std::size_t>(count), group);
}

ModelId model_named(const JobOptions& options, const std::string& id, std::size_t group) {
  const auto found = std::ranges::find(options.models, id, &ModelEntry::id);
  if (found == options.models.end()) {
    throw ConfigError(fmt::format("group {} of the placement has model '{}', which the job has not", group, id));
  }
  return static_cast<ModelId>(found - options.models.begin());
}

std::vector<JobGroup> placed_groups(const JobOptions& options) {
  std::vector<JobGroup> groups;
  for (const GroupSpec& spec : options.placement) {
    JobGroup group{.shape = {spec.tp, spec.pp}, .models = {}};
    for (const std::string& id : spec.models) group.models.push_back(model_named(options, id, groups.size()));
    for (const auto& [id, layers] : spec.layers) group.layers[model_named(options, id, groups.size())] = layers;
    std::ranges::sort(group.models);
    groups.push_back(std::move(group));
  }
  return groups;
}

std::string text_of(const std::vector<JobGroup>& groups) {
  std::string text;
  for (const JobGroup& group : groups) {
    text += fmt::format("{}tp {} x pp {}", text.empty() ? "" : " + ", group.shape.tp, group.shape.pp);
  }
  return text;
}

void check_ranks(const std::vector<JobGroup>& groups, int ranks) {
  long long needed = 0;
  for (const JobGroup& group : groups) needed += static_cast<long long>(group.shape.tp) * group.shape.pp;
  if (needed == ranks) return;
  throw ConfigError(fmt::format("{} needs {} ranks, but the job has {}", text_of(groups), needed, ranks));
}

void check_replicas(const JobOptions& options, const std::vector<JobGroup>& groups, ModelId model) {
  const JobGroup* first = nullptr;
  const auto refuse = [&](const JobGroup& other, const std::string& how) {
    throw ConfigError(
        fmt::format("model '{}' has replicas with {} (group {}): results would depend on the group that serves a "
                    "request; cut it alike everywhere, or use --reproducible",
                    options.models[model].id, how, &other - groups.data()));
  };
  for (const JobGroup& group : groups) {
    if (!std::ranges::binary_search(group.models, model)) continue;
    if (first == nullptr) first = &group;
    if (options.reproducible) continue;
    if (first->shape.tp != group.shape.tp) {
      refuse(group, fmt::format("tp {} and tp {}", first->shape.tp, group.shape.tp));
    }
    const bool same_stages = first->shape.pp == group.shape.pp && first->layers_of(model) == group.layers_of(model);
    if (!same_stages && depends_on_stages(options)) refuse(group, "different stages, on GPUs");
  }
  if (first == nullptr)
    throw ConfigError(fmt::format("model '{}' is in no group of the placement", options.models[model].id));
}

}  // namespace

std::vector<int> JobGroup::layers_of(ModelId model) const {
  const auto found = layers.find(model);
  return found == layers.end() ? std::vector<int>() : found->second;
}

MeshShape shape_of_one(const JobOptions& options, int ranks) {
  const int pp = options.pp > 0 ? options.pp : options.tp > 0 ? std::max(1, ranks / options.tp) : 1;
  const int tp = options.tp > 0 ? options.tp : std::max(1, ranks / pp);
  return {tp, pp};
}

bool may_run_on_gpus(const JobOptions& options) {
  const bool may_be_gpu = options.device == DeviceChoice::kAuto && options.link_gb_per_s == 0 && cuda_device_present();
  return options.device == DeviceChoice::kGpu || may_be_gpu;
}

bool depends_on_stages(const JobOptions& options) { return !options.reproducible && may_run_on_gpus(options); }

std::vector<JobGroup> job_groups(const JobOptions& options, int ranks) {
  std::vector<JobGroup> groups = options.placement.empty() ? equal_groups(options, ranks) : placed_groups(options);
  check_ranks(groups, ranks);
  for (ModelId m = 0; m < options.models.size(); ++m) check_replicas(options, groups, m);
  return groups;
}

std::vector<MeshShape> shapes_of(const std::vector<JobGroup>& groups) {
  std::vector<MeshShape> shapes;
  for (const JobGroup& group : groups) shapes.push_back(group.shape);
  return shapes;
}

}  // namespace computron
