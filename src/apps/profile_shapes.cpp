#include "src/apps/profile_shapes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace computron {
namespace {

// By stage; what nobody measured in this shape from the formula alone.
std::vector<float> formula_s(const ShapeMeasurement& of, const PassClass& pass, const PassFormula& formula) {
  const auto distance = [&pass](const MeasuredPass& other) {
    return std::abs(std::log2(1.0 * other.of.rows / pass.rows));
  };
  const auto nearest = std::ranges::min_element(of.passes, {}, distance);
  std::vector<float> stage_s;
  for (std::size_t stage = 0; stage < of.stages.size(); ++stage) {
    const StageWork& work = of.stages[stage];
    double time_s = formula.pass_s({work, pass.rows, pass.decodes ? of.decoding_context : 0});
    if (nearest != of.passes.end()) {
      time_s *= nearest->stage_s[stage] / formula.pass_s({work, nearest->of.rows, nearest->context});
    }
    stage_s.push_back(static_cast<float>(time_s));
  }
  return stage_s;
}

PassTimes times_of(const ShapeMeasurement& of, const PassClass& pass, const PassFormula& formula) {
  const auto measured = std::ranges::find(of.passes, pass.rows, [](const MeasuredPass& p) { return p.of.rows; });
  if (measured == of.passes.end()) return {pass.rows, formula_s(of, pass, formula)};
  return {pass.rows, {measured->stage_s.begin(), measured->stage_s.end()}};
}

// Between the passes of the profile; beyond them in proportion to rows, or as the smallest.
double pass_s(const std::vector<PassTimes>& passes, std::size_t stage, int rows) {
  const auto above = std::ranges::lower_bound(passes, rows, {}, &PassTimes::rows);
  if (above == passes.begin()) return above->stage_s[stage];
  const PassTimes& below = *std::prev(above);
  if (above == passes.end()) return static_cast<double>(below.stage_s[stage]) * rows / below.rows;
  const double part = static_cast<double>(rows - below.rows) / (above->rows - below.rows);
  return below.stage_s[stage] + part * (above->stage_s[stage] - below.stage_s[stage]);
}

double request_s(const ShapeProfile& profile, std::size_t stage, const RequestSize& request, int max_batch_tokens) {
  const int whole = request.prompt / max_batch_tokens, rest = request.prompt % max_batch_tokens;
  double time_s = whole > 0 ? whole * pass_s(profile.passes, stage, max_batch_tokens) : 0;
  if (rest > 0) time_s += pass_s(profile.passes, stage, rest);
  return time_s + std::max(request.generated - 1, 0) * pass_s(profile.passes, stage, 1);
}

}  // namespace

RequestSize fitting(const RequestSize& request, const ModelConfig& config) {
  if (config.takes_images()) return {.prompt = config.patches() + 1, .generated = 0};
  if (config.pools()) return {.prompt = std::min(request.prompt, config.max_positions), .generated = 0};
  const int generated = std::clamp(request.generated, 1, std::max(config.max_positions / 2, 1));
  return {.prompt = std::clamp(request.prompt, 1, std::max(config.max_positions - generated, 1)),
          .generated = generated};
}

std::vector<PassSample> samples_of(std::span<const ShapeMeasurement> measurements) {
  std::vector<PassSample> samples;
  for (const ShapeMeasurement& measured : measurements) {
    for (const MeasuredPass& pass : measured.passes) {
      for (std::size_t stage = 0; stage < measured.stages.size(); ++stage) {
        if (pass.stage_s[stage] <= 0) continue;
        samples.push_back({measured.shape, {measured.stages[stage], pass.of.rows, pass.context}, pass.stage_s[stage]});
      }
    }
  }
  return samples;
}

ShapeProfile profile_of(const ShapeMeasurement& of, const PassFormula& formula, const RequestSize& request,
                        int max_batch_tokens) {
  ShapeProfile profile = of.sizes;
  profile.measured = !of.passes.empty();
  for (const PassClass& pass : of.classes) profile.passes.push_back(times_of(of, pass, formula));
  for (std::size_t stage = 0; stage < of.stages.size(); ++stage) {
    profile.stage_s.push_back(static_cast<float>(request_s(profile, stage, request, max_batch_tokens)));
  }
  return profile;
}

void fill_in_link_bytes(ModelProfile& model) {
  double bytes = 0, link_bytes = 0;
  for (const auto& [shape, profile] : model.shapes) {
    if (!profile.measured) continue;
    bytes += std::accumulate(profile.stage_bytes.begin(), profile.stage_bytes.end(), 0.0);
    link_bytes += std::accumulate(profile.stage_link_bytes().begin(), profile.stage_link_bytes().end(), 0.0);
  }
  if (link_bytes >= bytes) return;
  for (auto& [shape, profile] : model.shapes) {
    if (profile.measured) continue;
    for (const std::int64_t of_stage : profile.stage_bytes) {
      profile.link_bytes.push_back(std::llround(link_bytes / bytes * static_cast<double>(of_stage)));
    }
  }
}

}  // namespace computron
