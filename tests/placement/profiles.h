// Models of AlpaServe's paper, for the tests of placements: times of one request of 2,048 tokens on V100 GPUs, seconds.
#pragma once

#include <string>
#include <vector>

#include "computron/placement/profile.h"

namespace computron {

inline ShapeProfile even_stages(int pp, double stage_s, double stage_bytes) {
  const auto stages = static_cast<std::size_t>(pp);
  return {std::vector<float>(stages, static_cast<float>(stage_s)),
          std::vector<std::int64_t>(stages, static_cast<std::int64_t>(stage_bytes))};
}

inline ModelProfile single_gpu_model(const std::string& id, double latency_s, double gb) {
  return {id, {{GroupShape{1, 1}, even_stages(1, latency_s, gb * 1e9)}}};
}

// AlpaServe's unit tests: 2 GB in equal stages.
inline ModelProfile unit_test_model() {
  ModelProfile model{"m", {}};
  model.shapes[{1, 1}] = even_stages(1, .100, 2e9);
  model.shapes[{1, 2}] = even_stages(2, .051, 1e9);
  model.shapes[{1, 4}] = even_stages(4, .026, .5e9);
  return model;
}

inline ModelProfile bert_1_3b() { return single_gpu_model("bert-1.3b", .151, 2.84); }
inline ModelProfile bert_2_6b() { return single_gpu_model("bert-2.6b", .2375, 5.66); }
inline ModelProfile bert_6_7b() { return single_gpu_model("bert-6.7b", .395, 13.4); }
inline ModelProfile moe_1_3b() { return single_gpu_model("moe-1.3b", .150, 2.6); }
inline ModelProfile moe_2_4b() { return single_gpu_model("moe-2.4b", .171, 4.8); }
inline ModelProfile moe_5_3b() { return single_gpu_model("moe-5.3b", .234, 10.6); }

// Shapes whose times AlpaServe did not publish, by a guess of ours that passes through the three that could be inferred
// from its results: pp 4 takes 1.035 L / 4 a stage, pp 8 1.125 L / 8, and op 4 takes .373 L.
inline ModelProfile with_guessed_shapes(ModelProfile model) {
  const ShapeProfile alone = model.shapes.at({1, 1});
  for (const auto& [tp, tp_factor] : {std::pair(1, 1.), std::pair(2, .58), std::pair(4, .373)}) {
    for (const auto& [pp, pp_factor] :
         {std::pair(1, 1.), std::pair(2, 1.015), std::pair(4, 1.035), std::pair(8, 1.125)}) {
      if (tp * pp == 1) continue;
      model.shapes[{tp, pp}] = even_stages(pp, static_cast<double>(alone.stage_s[0]) * tp_factor * pp_factor / pp,
                                           static_cast<double>(alone.stage_bytes[0]) / (tp * pp));
    }
  }
  return model;
}

inline std::vector<ModelProfile> repeated(const std::vector<ModelProfile>& kinds, std::size_t count) {
  std::vector<ModelProfile> models;
  for (std::size_t i = 0; i < count; ++i) models.push_back(kinds[i % kinds.size()]);
  return models;
}

}  // namespace computron
