// Small random checkpoints for tests, OPT's above all, the same bits for the same description on every machine.
//
// The weights are scaled so that the layers, not the token embedding, decide the next token: an error anywhere in the
// forward pass changes the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "computron/base/types.h"
#include "computron/base/weight_type.h"
#include "computron/checkpoint/writer.h"
#include "computron/model/config.h"

namespace computron::test {

struct TinyModel {
  int layers = 2;
  int heads = 4;
  int head_dim = 16;  // hidden = heads × head_dim
  int ffn = 96;
  int vocab = 128;
  int max_positions = 64;
  DType dtype = DType::kF32;
  std::uint64_t seed = 1;
  std::vector<TokenId> eos_tokens = {2};
  bool tied_head = true;
};

ModelConfig opt_config(const TinyModel& model);

// Writes a checkpoint of any configuration, without the tensor called `omitted` if there is such.
void write_random_checkpoint(const std::string& path, const ModelConfig& config, DType dtype, std::uint64_t seed,
                             const std::string& omitted = "", const std::vector<CarriedFile>& tokenizer = {});
// The same with NaN in row `row` of the tensor `poisoned`, as a training run that went wrong leaves it.
void write_poisoned_checkpoint(const std::string& path, const ModelConfig& config, DType dtype, std::uint64_t seed,
                               const std::string& poisoned, std::size_t row);
// A variant of the same: tensors that `changed` says yes to, by name, are those of `other_seed`.
void write_variant_checkpoint(const std::string& path, const ModelConfig& config, DType dtype, std::uint64_t seed,
                              const std::function<bool(const std::string&)>& changed, std::uint64_t other_seed);
void write_tiny_checkpoint(const std::string& path, const TinyModel& model, const std::string& omitted = "");

// An adapter (model/adapter.h) of a base of this configuration.
struct RandomAdapter {
  std::size_t rank = 4;
  std::uint64_t seed = 1;
  // Weights, by name.
  std::function<bool(const std::string&)> changes = [](const std::string& name) { return name.starts_with("layers."); };
  std::function<bool(const std::string&)> replaces = {};  // tensors, by name, that it has whole
  DType whole = DType::kF32;
};
void write_random_adapter(const std::string& path, const ModelConfig& base, const RandomAdapter& adapter);

// A checkpoint whose layers' weights are random codes and scales of `type`, and, as `plain_path`, another that holds
// what these stand for, in type.values, which is the type of both's other weights.
void write_quantised_pair(const std::string& path, const std::string& plain_path, const ModelConfig& config,
                          const WeightType& type, std::uint64_t seed);

// Inverts one bit in the middle of a tensor's bytes in the file; its digest stays as it was.
void damage_tensor(const std::string& path, const std::string& tensor);

}  // namespace computron::test
