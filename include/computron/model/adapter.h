// Adapters (LoRA, Hu et al. 2021): for some matrices W [out, in] of a base model two thin ones, A [rank, in] and
// B [out, rank], and a scale: W + scale · B A stands for W. What an adapter was trained with whole (PEFT's
// modules_to_save) stands for the base's tensor as it is.
//
// An adapter's checkpoint has the base's architecture, and as its configuration {"adapter": "lora", "base": CONFIG}.
// Its tensors, MODULE a weight's name without ".weight":
//
//   MODULE.lora_a      [in, rank], the transpose of A: tensor-parallel ranks cut it along dimension 0 where the
//   weight's
//                      columns are cut
//   MODULE.lora_b      [out, rank]: cut along dimension 0 where the weight's rows are cut
//   MODULE.lora_scale  [1] float32: alpha / rank, of rsLoRA alpha / sqrt(rank) (Kalajdzievski 2023)
//   NAME               the base's own, whole
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/model/config.h"

namespace computron {

// A weight's name without ".weight", in which it must end.
std::string module_of(std::string_view weight);

// The tensors that a weight's adapter has.
struct LoraNames {
  explicit LoraNames(std::string_view weight);
  std::string a, b, scale;
};

// A matrix that an adapter may change: a linear layer's, no embedding.
bool takes_adapter(const TensorSpec& spec);
// The transpose of A, [in, rank], and B, [out, rank], of the weight.
TensorSpec lora_a_of(const TensorSpec& weight, std::size_t rank);
TensorSpec lora_b_of(const TensorSpec& weight, std::size_t rank);

// ConfigError where the configuration is that of a base beside an adapter (ModelConfig::adapter_ranks): with_adapter()
// makes such, and no file has one.
void refuse_adapter_ranks(const ModelConfig& config);

// The file says that it is an adapter, whether or not the rest of it is sound.
bool is_adapter(const CheckpointIndex& index);
// What an adapter's checkpoint has as its configuration.
std::string adapter_config_json(const ModelConfig& base);
// The configuration of the base that the adapter was made for. ConfigError naming the file if it is no adapter.
ModelConfig base_config_of(const CheckpointIndex& adapter);

// A model of the base's tensors and an adapter's beside them, in two files, which computes both without merging them.
// What the adapter has whole stands for the base's. ConfigError as check_adapter_fits(), and naming a module whose
// adapter is computed merged only (convert --merge): the output head's.
CheckpointIndex with_adapter(CheckpointIndex base, const CheckpointIndex& adapter);

// That an adapter's file has the tensors of an adapter of its base and no others. ConfigError listing the first ten
// differences.
void check_adapter(const CheckpointIndex& adapter);
// The same, and that `base`, a model's checkpoint, has the tensors that the adapter was made for. ConfigError naming
// both files and what differs.
void check_adapter_fits(const CheckpointIndex& adapter, const CheckpointIndex& base);

}  // namespace computron
