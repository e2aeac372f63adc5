// Holds the tensors of a checkpoint against the configuration that came with it, before anything is loaded.
#pragma once

#include <string>

#include "computron/checkpoint/index.h"
#include "computron/model/config.h"

namespace computron {

// Every tensor of `config` must be stored with its shape and orientation, and nothing else may be stored. Weights of
// matrix products may be quantised: then their scales must be stored with them, and those that are multiplied as one
// (query, key and value; gate and up) must be alike. All others of them must have one plain type. ConfigError naming
// the file, the first ten differences and both values.
void check_tensors(const ModelConfig& config, const CheckpointIndex& index);
// How the tensor `name`, which must be stored, is held. Quantised weights are multiplied as bfloat16.
WeightType stored_weight_type(const CheckpointIndex& index, const std::string& name);

}  // namespace computron
