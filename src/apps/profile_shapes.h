// From measured passes to profiles: what was not measured is filled in by a formula that is fitted to what was.
#pragma once

#include <span>
#include <vector>

#include "computron/model/config.h"
#include "computron/placement/pass_formula.h"
#include "computron/placement/profile.h"
#include "src/apps/profile_passes.h"

namespace computron {

// A model cut for a shape of group, and what its passes took, if that was measured.
struct ShapeMeasurement {
  GroupShape shape;
  ShapeProfile sizes;             // bytes; no times
  std::vector<StageWork> stages;  // [pp]
  std::vector<PassClass> classes;
  std::vector<MeasuredPass> passes;  // empty: not measured
  int decoding_context = 0;          // of decoding classes that were not measured
};

// A request whose time the profile says.
struct RequestSize {
  int prompt = 256, generated = 64;
};
// As much of it as fits the model's positions; of images a whole one.
RequestSize fitting(const RequestSize& request, const ModelConfig& config);

// Every measured pass of every stage.
std::vector<PassSample> samples_of(std::span<const ShapeMeasurement> measurements);

// Times of all classes; those that were not measured from the formula, where others of the shape were, as much longer
// as the nearest of them. Requests take a pass of their prompt, in parts of `max_batch_tokens`, and one for each token
// behind the first; of encoders the pass alone. `of` has at least one class.
ShapeProfile profile_of(const ShapeMeasurement& of, const PassFormula& formula, const RequestSize& request,
                        int max_batch_tokens);

// What pages take coded is known of shapes that were measured, since ranks have loaded them. The model's other shapes
// take as large a part of their bytes over the links as those together.
void fill_in_link_bytes(ModelProfile& model);

}  // namespace computron
