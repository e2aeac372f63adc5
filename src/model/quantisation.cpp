#include "computron/model/quantisation.h"

#include <fmt/format.h>

#include "computron/base/error.h"

namespace computron {
namespace {

bool is_layer_matrix(const TensorSpec& spec) {
  return spec.role == TensorRole::kGemmWeight && spec.name.starts_with("layers.") &&
         spec.name.find(".router.") == std::string::npos && spec.name.find(".shared_gate.") == std::string::npos;
}

std::string head_of(const ModelConfig& config) {
  if (config.pools()) throw ConfigError("a model without a head of its own: leave out --quantize-head");
  return config.tied_head ? "embedding.tokens.weight" : "head.weight";
}

void check_quantisable(const TensorSpec& spec, const Quantisation& quantisation) {
  const std::size_t in = spec.transposed ? spec.shape.front() : spec.shape.back();
  const bool in_groups = quantisation.group != WeightType::kWholeRow;
  if (in_groups && in % static_cast<std::size_t>(quantisation.group) != 0) {
    const char* way_out = quantisation.codes == DType::kInt4 ? "int8 or fp8 with --group-size row" : "--group-size row";
    throw ConfigError(fmt::format("{}: rows of {} values do not make whole groups of {}: use {}", spec.name, in,
                                  quantisation.group, way_out));
  }
  if (quantisation.codes == DType::kInt4 && spec.shape.back() % 2 != 0) {
    throw ConfigError(fmt::format("{}: a last dimension of {} as stored, but int4 lie two in a byte: use int8 or fp8",
                                  spec.name, spec.shape.back()));
  }
}

}  // namespace

void quantise(const ModelConfig& config, const std::vector<TensorSpec>& specs, const Quantisation& quantisation,
              std::vector<TensorToWrite>& tensors) {
  ensure(specs.size() == tensors.size(), "other tensors than their specifications");
  const std::string head = quantisation.head ? head_of(config) : "";
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!is_layer_matrix(specs[i]) && specs[i].name != head) continue;
    check_quantisable(specs[i], quantisation);
    tensors[i].declaration.dtype = quantisation.codes;
    tensors[i].declaration.group = quantisation.group;
  }
}

}  // namespace computron
