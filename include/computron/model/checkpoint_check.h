// Holds the tensors of a checkpoint against the configuration that came with it, before anything is loaded.
#pragma once

#include "computron/checkpoint/index.h"
#include "computron/model/config.h"

namespace computron {

// Every tensor of `config` must be stored with its shape and orientation, nothing else may be stored, and all weights
// of matrix products must have one dtype. ConfigError naming the file, the first ten differences and both values.
void check_tensors(const ModelConfig& config, const CheckpointIndex& index);
// The one that these then have. ConfigError where there are none.
DType stored_weight_dtype(const ModelConfig& config, const CheckpointIndex& index);

}  // namespace computron
