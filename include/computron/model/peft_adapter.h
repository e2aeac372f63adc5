// A folder as PEFT saves an adapter (adapter_config.json, adapter_model.safetensors), as the tensors of an adapter's
// checkpoint (adapter.h), for a base whose checkpoint is there.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/checkpoint/matrix_source.h"
#include "computron/checkpoint/model_folder.h"
#include "computron/checkpoint/writer.h"

namespace computron {

class PeftAdapter {
 public:
  // Where a tensor's values come from: a matrix of the folder, or one number.
  using Source = std::variant<MatrixSource, float>;

  // ConfigError naming the key of adapter_config.json that is not supported, or the first ten differences from what
  // the base has (modules that it has not, other shapes, an A without its B, ranks that are not the configuration's, a
  // copy of a base's weight that differs, tensors that are left over); CheckpointError and Error as ModelFolder,
  // SafetensorsFile and TensorReader. `base` is a model's (check_tensors()).
  PeftAdapter(const std::string& folder, const CheckpointIndex& base);

  // In the order of the base's tensors; of the same index, their values. Plain ones have the type that they have in the
  // folder.
  const std::vector<TensorDeclaration>& tensors() const { return tensors_; }
  const std::vector<Source>& sources() const { return sources_; }
  // How many of the base's matrices it changes.
  std::size_t modules() const { return modules_; }

 private:
  class Reading;

  std::unique_ptr<SafetensorsFile> weights_;
  std::vector<TensorDeclaration> tensors_;
  std::vector<Source> sources_;
  std::size_t modules_ = 0;
};

}  // namespace computron
