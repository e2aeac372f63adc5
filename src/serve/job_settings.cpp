#include "computron/serve/job_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>

#include "computron/base/digest.h"
#include "computron/base/join.h"
#include "computron/ops/cpu_probe.h"

namespace computron {
namespace {

const std::string kCheckpointOf = "checkpoint of model ";
const std::string kPageSize = "--page-size";
const std::string kTransport = "--transport";
const std::string kArithmeticOf = "arithmetic of model ";
const std::string kScales = scales_name("");

// One that the program chooses follows from the models and their meshes, which are settings themselves.
std::string page_size_of(const JobOptions& job) {
  if (job.measure_page_size) return "auto";
  return job.page_bytes == 0 ? "automatic" : fmt::format("{} bytes", job.page_bytes);
}

// Those that earlier versions did not name.
bool was_added_later(const std::string& name) {
  return name == kPageSize || name == kTransport || name.starts_with(kArithmeticOf);
}

// Other libraries add the parts of more than two ranks in orders of their own.
bool depends_on_transport(const JobOptions& job, const std::vector<JobGroup>& groups) {
  const auto is_wide = [](const JobGroup& group) { return group.shape.tp > 2; };
  return !job.reproducible && may_run_on_gpus(job) && std::ranges::any_of(groups, is_wide);
}

std::string name_of(TransportChoice transport) {
  if (transport == TransportChoice::kAuto) return "auto";
  return transport == TransportChoice::kStaged ? "mpi" : "direct";
}

// How the model's matrices are multiplied, as far as bits depend on it: on the CPU on its instructions, on GPUs on
// --tf32 where there are float32 weights. Empty: on nothing.
std::string arithmetic_of(const JobOptions& job, const CheckpointIndex& index) {
  const bool on_gpus = may_run_on_gpus(job);
  std::set<std::string> kinds;
  for (const auto& [name, tensor] : index.tensors) {
    if (tensor.shape.size() < 2 || name.ends_with(kScales)) continue;
    const WeightType type = is_code(tensor.dtype) ? WeightType(DType::kBF16, tensor.dtype, DType::kF32, tensor.group)
                                                  : WeightType(tensor.dtype);
    if (!on_gpus) kinds.insert(arithmetic_of(type));
    if (on_gpus && type == DType::kF32) kinds.insert(job.tf32 ? "tf32" : "float32");
  }
  return join(kinds, ", ");
}

// Of what the file holds, wherever it lies.
std::string digest_of(CheckpointIndex index) {
  index.path.clear();
  if (!index.second_path.empty()) index.second_path = "adapter";
  return to_hex(digest128(index.serialize()));
}

void add_mesh(const JobOptions& job, ModelId model, const std::string& id, const JobGroup& group, Settings& settings) {
  if (!job.reproducible) settings.emplace_back(fmt::format("tp of model {}", id), fmt::format("{}", group.shape.tp));
  if (!depends_on_stages(job)) return;
  std::string stages = fmt::format("{}", group.shape.pp);
  for (const int count : group.layers_of(model)) stages += fmt::format(", {} layers", count);
  settings.emplace_back(fmt::format("pp of model {}", id), std::move(stages));
}

}  // namespace

Settings job_settings(const JobOptions& options, const std::vector<CheckpointIndex>& indices,
                      const std::vector<JobGroup>& groups) {
  Settings settings = {{"--device", std::string(name_of(options.device))},
                       {"--reproducible", fmt::format("{}", options.reproducible)},
                       {"--seed", fmt::format("{}", options.seed)}};
  for (ModelId m = 0; m < options.models.size(); ++m) {
    settings.emplace_back(kCheckpointOf + options.models[m].id, digest_of(indices.at(m)));
    const auto group =
        std::ranges::find_if(groups, [m](const JobGroup& g) { return std::ranges::binary_search(g.models, m); });
    add_mesh(options, m, options.models[m].id, *group, settings);
    const std::string arithmetic = arithmetic_of(options, indices.at(m));
    if (!arithmetic.empty()) settings.emplace_back(kArithmeticOf + options.models[m].id, arithmetic);
  }
  if (depends_on_transport(options, groups)) settings.emplace_back(kTransport, name_of(options.transport));
  if (depends_on_stages(options)) settings.emplace_back(kPageSize, page_size_of(options));
  return settings;
}

Settings upgraded(const JobOptions& now, const Settings& today, Settings before) {
  std::erase_if(before, [](const auto& setting) { return setting.first == kKeptPageSize; });
  for (const auto& setting : today) {
    const bool named = std::ranges::any_of(before, [&](const auto& one) { return one.first == setting.first; });
    if (!named && was_added_later(setting.first)) before.push_back(setting);
  }
  JobOptions job = now;
  job.tp = job.pp = job.groups = 0;
  job.placement.clear();
  int ranks = 0;
  const std::pair<const char*, int*> of_the_mesh[] = {
      {"number of ranks", &ranks}, {"--tp", &job.tp}, {"--pp", &job.pp}};
  std::erase_if(before, [&](const auto& setting) {
    const auto* const found = std::ranges::find(of_the_mesh, setting.first, [](const auto& one) { return one.first; });
    if (found == std::end(of_the_mesh)) return false;
    *found->second = std::atoi(setting.second.c_str());
    return true;
  });
  if (ranks == 0) return before;
  const JobGroup one{.shape = shape_of_one(job, ranks), .models = {}};
  for (const auto& [name, value] : Settings(before)) {
    if (name.starts_with(kCheckpointOf)) add_mesh(job, /*model=*/0, name.substr(kCheckpointOf.size()), one, before);
  }
  return before;
}

}  // namespace computron
