// Finds the codes and scales of weights that a Hugging Face folder holds quantised. Private to src/model.
#pragma once

#include <optional>
#include <string>

#include "computron/checkpoint/code_source.h"
#include "computron/model/hf_quantisation.h"
#include "src/model/folder_tensors.h"

namespace computron {

class HfCodes {
 public:
  // Borrows all.
  HfCodes(const HfQuantisation& quantisation, FolderTensors& tensors, Differences& differences)
      : quantisation_(quantisation), tensors_(tensors), differences_(differences) {}

  // Whether the folder holds codes in place of this weight ("....weight", without prefix).
  bool has(const std::string& weight) const;
  // Those of `spec`, which has() codes under source.name. Nothing if a difference was added: they have another shape or
  // type, or are in a way that is not supported. Reads the zeros and the order of GPTQ's groups.
  std::optional<CodeSource> find(const TensorSpec& spec, const SourceTensor& source);
  // Whether a tensor belongs to the quantisation of activations or caches, which is not computed with.
  static bool is_of_activations(const std::string& plain);
  // Whether it is a bias of zeros beside GPTQ's codes: old tools gave one to every module. Reads it.
  bool is_bias_of_zeros(const std::string& plain) const;

 private:
  using Method = HfQuantisation::Method;
  struct Weight;  // what is looked for

  Method method() const { return quantisation_.method; }
  bool gptq() const { return method() == Method::kGptq; }
  const SafetensorsTensor* use(const std::string& plain);
  std::optional<CodeSource> refuse(const std::string& plain, const std::string& what);
  void name_tensors(Weight& weight) const;
  static bool may_hold(const Weight& weight, DType codes);
  const HfScheme* scheme_of(const Weight& weight);
  // Nothing if a difference was added.
  std::optional<double> find_factor(const Weight& weight);
  CodeSource source_of(const Weight& weight, const HfScheme& scheme) const;
  // Each adds a difference where it is false.
  bool check_layout(const Weight& weight, const HfScheme& scheme);
  bool check_rest(const Weight& weight, const HfScheme& scheme);
  bool check_shape_tensor(const Weight& weight);
  bool check_zeros(const Weight& weight, const HfScheme& scheme);
  bool check_order(const Weight& weight, const HfScheme& scheme);

  const HfQuantisation& quantisation_;
  FolderTensors& tensors_;
  Differences& differences_;
};

}  // namespace computron
