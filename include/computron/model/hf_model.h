// A Hugging Face model folder, or one of sentence-transformers, as the tensors of a model: what the family says of
// names, ties and orientations, held against what the folder's files hold. Nothing of the weights is read but where two
// copies must be the same, and of quantised ones what says how their codes are meant.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "computron/checkpoint/code_source.h"
#include "computron/checkpoint/matrix_source.h"
#include "computron/checkpoint/model_folder.h"
#include "computron/checkpoint/writer.h"
#include "computron/model/config.h"
#include "computron/model/hf_quantisation.h"

namespace computron {

struct SentenceFolder;

class HfModel {
 public:
  using Source = std::variant<MatrixSource, CodeSource>;

  // Reads config.json, generation_config.json, preprocessor_config.json, hf_quant_config.json, what a folder of
  // sentence-transformers has besides (modules.json and what it names), and the headers of all weights. ConfigError
  // naming the first ten differences (missing, left over, of another shape, of an element type that is not computed
  // with) or the key of config.json that is not supported; CheckpointError and Error as ModelFolder and
  // SafetensorsFolder.
  explicit HfModel(const std::string& folder);
  ~HfModel();

  const ModelConfig& config() const { return config_; }
  // Every tensor of the model and, by the same index, the place of its values, or of its codes and scales, as the
  // specification's shape (a vector is a matrix of one row).
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::vector<Source>& sources() const { return sources_; }
  // The folder holds codes; some of its weights may be plain all the same.
  bool quantised() const { return quantisation_.has_value(); }
  // The folder says how activations or caches are quantised, and that is passed over.
  bool ignores_activations() const { return ignores_activations_; }
  // Files that the tokenizer or the preparation of inputs is made of, whole.
  std::vector<CarriedFile> tokenizer() const;

 private:
  HfModel(const ModelFolder& folder, std::unique_ptr<SentenceFolder> sentence);

  std::unique_ptr<SentenceFolder> sentence_;  // of sentence-transformers, or null
  ModelFolder folder_;                        // of the transformer
  std::vector<std::unique_ptr<SafetensorsFolder>> dense_weights_;
  SafetensorsFolder weights_;
  ModelConfig config_;
  std::optional<HfQuantisation> quantisation_;
  std::vector<TensorSpec> tensors_;
  std::vector<Source> sources_;
  bool ignores_activations_ = false;
};

}  // namespace computron
