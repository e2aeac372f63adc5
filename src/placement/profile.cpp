#include "computron/placement/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>

#include "computron/base/error.h"
#include "computron/base/json_text.h"

namespace computron {
namespace {

// Whether of each stage `parts` together are no more than `all`.
template <class Bytes>
bool are_within(const std::vector<SharedPart>& parts, std::vector<std::int64_t> all, const Bytes& bytes) {
  for (const SharedPart& part : parts) {
    std::ranges::transform(all, std::invoke(bytes, part), all.begin(), std::minus());
  }
  return std::ranges::all_of(all, [](std::int64_t rest) { return rest >= 0; });
}

// Empty: none.
std::string fault_of_parts(const ShapeProfile& profile) {
  const std::size_t stages = profile.stage_bytes.size();
  std::set<std::string> names;
  for (const SharedPart& part : profile.shared) {
    if (!names.insert(part.name).second) return fmt::format("{} is shared twice", shown(part.name));
    for (const auto* sizes : {&part.stage_bytes, &part.stage_link_bytes(), &part.stage_frame_bytes()}) {
      if (sizes->size() != stages) return fmt::format("{} has {} stages", shown(part.name), sizes->size());
      if (std::ranges::min(*sizes) < 0) return fmt::format("{} has fewer bytes than none", shown(part.name));
    }
  }
  const bool fits = are_within(profile.shared, profile.stage_bytes, &SharedPart::stage_bytes) &&
                    are_within(profile.shared, profile.stage_link_bytes(), &SharedPart::stage_link_bytes) &&
                    are_within(profile.shared, profile.stage_frame_bytes(), &SharedPart::stage_frame_bytes);
  return fits ? "" : "what is shared has more bytes than all";
}

void check_shape(const ModelProfile& model, const GroupShape& shape, const ShapeProfile& profile) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::kUsage,
                fmt::format("profile of {} at tp {} x pp {}: {}", shown(model.id), shape.tp, shape.pp, why));
  };
  if (!is_possible(shape)) refuse("no such shape");
  const auto stages = static_cast<std::size_t>(shape.pp);
  if (profile.stage_s.size() != stages || profile.stage_bytes.size() != stages) {
    refuse(fmt::format("{} times and {} sizes, expected one of each a stage", profile.stage_s.size(),
                       profile.stage_bytes.size()));
  }
  if (!profile.layers.empty() && profile.layers.size() != stages) {
    refuse(fmt::format("layers of {} stages", profile.layers.size()));
  }
  for (const float time : profile.stage_s) {
    if (!(std::isfinite(time) && time > 0)) refuse(fmt::format("a stage takes {} s", time));
  }
  for (const std::int64_t bytes : profile.stage_bytes) {
    if (bytes < 0 || bytes > kMostStageBytes) refuse(fmt::format("a stage has {} bytes", bytes));
  }
  if (!profile.link_bytes.empty()) {
    if (profile.link_bytes.size() != stages) refuse(fmt::format("link bytes of {} stages", profile.link_bytes.size()));
    if (!std::ranges::equal(profile.link_bytes, profile.stage_bytes,
                            [](auto link, auto all) { return link >= 0 && link <= all; })) {
      refuse("a stage has more link bytes than bytes");
    }
  }
  if (!profile.operation_bytes.empty()) {
    if (profile.operation_bytes.size() != stages) {
      refuse(fmt::format("operations of {} stages", profile.operation_bytes.size()));
    }
    if (std::ranges::min(profile.operation_bytes) < 0) refuse("an operation has fewer bytes than none");
  }
  if (!profile.frame_bytes.empty() &&
      !std::ranges::equal(profile.frame_bytes, profile.stage_bytes, std::ranges::greater_equal())) {
    refuse("a stage has fewer bytes in frames than bytes");
  }
  int rows = 0;  // of the pass before
  for (const PassTimes& pass : profile.passes) {
    if (pass.rows <= rows) refuse(fmt::format("a pass of {} rows behind one of {}", pass.rows, rows));
    if (pass.stage_s.size() != stages) refuse(fmt::format("a pass of {} stages", pass.stage_s.size()));
    rows = pass.rows;
  }
  if (!profile.cache_token_bytes.empty() && profile.cache_token_bytes.size() != stages) {
    refuse(fmt::format("caches of {} stages", profile.cache_token_bytes.size()));
  }
  if (profile.slot_bytes < 0) refuse(fmt::format("slots of {} bytes", profile.slot_bytes));
  if (const std::string why = fault_of_parts(profile); !why.empty()) refuse(why);
}

using PartsOfShapes = std::map<std::pair<std::string, GroupShape>, const SharedPart*>;

void check_parts(const ModelProfile& model, PartsOfShapes& parts) {
  for (const auto& [shape, profile] : model.shapes) {
    for (const SharedPart& part : profile.shared) {
      const SharedPart& first = *parts.try_emplace({part.name, shape}, &part).first->second;
      if (first.stage_bytes == part.stage_bytes && first.stage_link_bytes() == part.stage_link_bytes() &&
          first.stage_frame_bytes() == part.stage_frame_bytes()) {
        continue;
      }
      throw Error(ExitCode::kUsage,
                  fmt::format("profile of {} at tp {} x pp {}: {} is of another size in another model", shown(model.id),
                              shape.tp, shape.pp, shown(part.name)));
    }
  }
}

}  // namespace

bool is_possible(const GroupShape& shape) {
  return shape.tp >= 1 && shape.pp >= 1 && std::int64_t{shape.tp} * shape.pp <= kMostShapeRanks;
}

float ShapeProfile::latency_s() const { return std::accumulate(stage_s.begin(), stage_s.end(), 0.0f); }

std::int64_t ShapeProfile::rank_bytes() const { return *std::ranges::max_element(stage_frame_bytes()); }

const ShapeProfile* ModelProfile::find(const GroupShape& shape) const {
  const auto found = shapes.find(shape);
  return found == shapes.end() ? nullptr : &found->second;
}

double ModelProfile::alone_s() const {
  const auto smallest = std::ranges::min_element(
      shapes, {}, [](const auto& entry) { return std::pair(entry.first.ranks(), entry.second.latency_s()); });
  return smallest == shapes.end() ? 0 : static_cast<double>(smallest->second.latency_s());
}

ModelPlacement normal_form(ModelPlacement placement) {
  for (PlacedGroup& group : placement) std::ranges::sort(group.models);
  std::ranges::sort(placement, [](const PlacedGroup& a, const PlacedGroup& b) {
    return std::tie(a.models, a.shape) < std::tie(b.models, b.shape);
  });
  return placement;
}

int ranks_of(const ModelPlacement& placement) {
  int ranks = 0;
  for (const PlacedGroup& group : placement) ranks += group.shape.ranks();
  return ranks;
}

std::size_t replicas_of(const ModelPlacement& placement) {
  std::size_t replicas = 0;
  for (const PlacedGroup& group : placement) replicas += group.models.size();
  return replicas;
}

std::vector<std::int64_t> bytes_together(const std::vector<ModelProfile>& models, const PlacedGroup& group) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(group.shape.pp));
  std::set<std::string_view> seen;
  for (const std::uint32_t model : group.models) {
    const ShapeProfile& profile = *models[model].find(group.shape);
    std::ranges::transform(bytes, profile.stage_bytes, bytes.begin(), std::plus());
    for (const SharedPart& part : profile.shared) {
      if (seen.insert(part.name).second) continue;
      std::ranges::transform(bytes, part.stage_bytes, bytes.begin(), std::minus());
    }
  }
  return bytes;
}

std::vector<std::vector<std::uint32_t>> siblings_of(const std::vector<ModelProfile>& models) {
  std::vector<std::vector<std::uint32_t>> siblings(models.size());
  std::vector<std::uint32_t> first(models.size());  // [model] of those that are known to be its siblings
  std::iota(first.begin(), first.end(), 0U);
  std::map<std::pair<bool, std::string_view>, std::uint32_t> seen;  // families and parts
  const auto join = [&](bool is_part, std::string_view name, std::uint32_t model) {
    const std::uint32_t other = first[seen.try_emplace({is_part, name}, model).first->second], own = first[model];
    std::ranges::replace(first, std::max(own, other), std::min(own, other));
  };
  for (std::uint32_t m = 0; m < models.size(); ++m) {
    if (!models[m].family.empty()) join(/*is_part=*/false, models[m].family, m);
    for (const auto& [shape, profile] : models[m].shapes) {
      for (const SharedPart& part : profile.shared) join(/*is_part=*/true, part.name, m);
    }
  }
  for (std::uint32_t m = 0; m < models.size(); ++m) siblings[first[m]].push_back(m);
  for (std::uint32_t m = 0; m < models.size(); ++m) siblings[m] = siblings[first[m]];
  for (auto& each : siblings) {
    if (each.size() == 1) each.clear();
  }
  return siblings;
}

void check_profiles(const std::vector<ModelProfile>& models) {
  PartsOfShapes parts;
  for (const ModelProfile& model : models) {
    for (const auto& [shape, profile] : model.shapes) check_shape(model, shape, profile);
    check_parts(model, parts);
  }
}

}  // namespace computron
