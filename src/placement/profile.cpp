#include "computron/placement/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "computron/base/error.h"
#include "computron/base/json_text.h"

namespace computron {
namespace {

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

void check_profiles(const std::vector<ModelProfile>& models) {
  for (const ModelProfile& model : models) {
    for (const auto& [shape, profile] : model.shapes) check_shape(model, shape, profile);
  }
}

}  // namespace computron
