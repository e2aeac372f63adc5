// A Hugging Face model folder as the tensors of a model: what the family says of names, ties and orientations, held
// against what the folder's files hold. Nothing of the weights is read but where two copies must be the same.
#pragma once

#include <string>
#include <vector>

#include "computron/checkpoint/matrix_source.h"
#include "computron/checkpoint/model_folder.h"
#include "computron/checkpoint/writer.h"
#include "computron/model/config.h"

namespace computron {

class HfModel {
 public:
  // Reads config.json, generation_config.json, preprocessor_config.json and the headers of all weights. ConfigError
  // naming the first ten differences (missing, left over, of another shape, of an element type that is not computed
  // with) or the key of config.json that is not supported; CheckpointError and Error as ModelFolder and
  // SafetensorsFolder.
  explicit HfModel(const std::string& folder);

  const ModelConfig& config() const { return config_; }
  // Every tensor of the model and, by the same index, the place of its values, as the specification's shape (a vector
  // is a matrix of one row).
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::vector<MatrixSource>& sources() const { return sources_; }
  // Files that the tokenizer or the preparation of inputs is made of, whole.
  std::vector<CarriedFile> tokenizer() const;

 private:
  ModelFolder folder_;
  SafetensorsFolder weights_;
  ModelConfig config_;
  std::vector<TensorSpec> tensors_;
  std::vector<MatrixSource> sources_;
};

}  // namespace computron
