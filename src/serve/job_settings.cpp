#include "computron/serve/job_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "computron/base/digest.h"

namespace computron {
namespace {

const std::string kCheckpointOf = "checkpoint of model ";
const std::string kPageSize = "--page-size";

// One that the program chooses follows from the models and their meshes, which are settings themselves.
std::string page_size_of(const JobOptions& job) {
  if (job.measure_page_size) return "auto";
  return job.page_bytes == 0 ? "automatic" : fmt::format("{} bytes", job.page_bytes);
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
  }
  if (depends_on_stages(options)) settings.emplace_back(kPageSize, page_size_of(options));
  return settings;
}

Settings upgraded(const JobOptions& now, Settings before) {
  std::erase_if(before, [](const auto& setting) { return setting.first == kKeptPageSize; });
  const bool names_page_size = std::ranges::any_of(before, [](const auto& one) { return one.first == kPageSize; });
  if (depends_on_stages(now) && !names_page_size) before.emplace_back(kPageSize, page_size_of(now));
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
