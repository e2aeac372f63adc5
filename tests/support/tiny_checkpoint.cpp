#include "tests/support/tiny_checkpoint.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "computron/base/digest.h"
#include "computron/checkpoint/reader.h"
#include "computron/checkpoint/writer.h"

namespace computron::test {
namespace {

// Mean and standard deviation of a tensor's values.
struct Spread {
  float mean = 0;
  float deviation = 0;
};

Spread spread_of(const TensorSpec& spec) {
  if (spec.name.starts_with("embedding.") || spec.name.starts_with("head.")) return {0, 0.5f};
  if (spec.name.ends_with(".bias")) return {0, 0.2f};
  if (spec.shape.size() == 1) return {1, 0.2f};
  const auto in = static_cast<float>(spec.shape[spec.transposed ? 0 : 1]);
  return {0, 1.5f / std::sqrt(in)};
}

// Uniform with the wanted mean and deviation; depends on (seed, tensor, element) only.
float value_of(const Spread& spread, std::uint64_t seed, std::uint64_t tensor, std::uint64_t element) {
  const auto bits = hash_tuple(seed, tensor, element) >> 40;  // 24 bits
  const float unit = static_cast<float>(bits) / 0x1p23f - 1;  // [-1, 1)
  return spread.mean + spread.deviation * std::sqrt(3.0f) * unit;
}

void append(std::vector<std::byte>& bytes, float value, DType dtype) {
  const auto put = [&](auto number) {
    bytes.resize(bytes.size() + sizeof number);
    std::memcpy(bytes.data() + bytes.size() - sizeof number, &number, sizeof number);
  };
  switch (dtype) {
    case DType::kF32:
      return put(value);
    case DType::kF16:
      return put(f16_from_f32(value));
    case DType::kBF16:
      return put(bf16_from_f32(value));
  }
}

std::vector<std::byte> random_tensor(const TensorSpec& spec, DType dtype, std::uint64_t seed, std::uint64_t number) {
  std::size_t count = 1;
  for (const std::size_t extent : spec.shape) count *= extent;
  const Spread spread = spread_of(spec);
  std::vector<std::byte> bytes;
  bytes.reserve(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) append(bytes, value_of(spread, seed, number, i), dtype);
  return bytes;
}

std::vector<TensorDeclaration> declarations_of(const std::vector<TensorSpec>& specs, DType dtype) {
  std::vector<TensorDeclaration> declarations;
  for (const auto& spec : specs) declarations.push_back({spec.name, dtype, spec.shape, spec.transposed});
  return declarations;
}

}  // namespace

ModelConfig opt_config(const TinyModel& model) {
  ModelConfig config;
  config.architecture = "opt";
  config.layers = model.layers;
  config.hidden = model.heads * model.head_dim;
  config.heads = model.heads;
  config.kv_heads = model.heads;
  config.head_dim = model.head_dim;
  config.ffn = model.ffn;
  config.vocab = model.vocab;
  config.max_positions = model.max_positions;
  config.position_offset = 2;
  config.eos_tokens = model.eos_tokens;
  config.bos_token = 2;
  config.tied_head = model.tied_head;
  config.validate();
  return config;
}

void write_tiny_checkpoint(const std::string& path, const TinyModel& model, const std::string& omitted) {
  write_random_checkpoint(path, opt_config(model), model.dtype, model.seed, omitted);
}

void write_poisoned_checkpoint(const std::string& path, const ModelConfig& config, DType dtype, std::uint64_t seed,
                               const std::string& poisoned, std::size_t row) {
  const std::vector<TensorSpec> specs = tensor_specs(config);
  CheckpointWriter writer(path, config.architecture, config.to_json(), declarations_of(specs, dtype));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    std::vector<std::byte> bytes = random_tensor(specs[i], dtype, seed, i);
    const std::size_t row_bytes = bytes.size() / specs[i].shape.at(0);
    if (specs[i].name == poisoned) std::memset(bytes.data() + row * row_bytes, 0xff, row_bytes);  // NaN in every type
    writer.write(i, 0, bytes);
  }
  writer.finish();
}

void write_random_checkpoint(const std::string& path, const ModelConfig& config, DType dtype, std::uint64_t seed,
                             const std::string& omitted, const std::vector<CarriedFile>& tokenizer) {
  std::vector<TensorSpec> specs = tensor_specs(config);
  std::erase_if(specs, [&](const TensorSpec& spec) { return spec.name == omitted; });
  CheckpointWriter writer(path, config.architecture, config.to_json(), declarations_of(specs, dtype), tokenizer);
  for (std::size_t i = 0; i < specs.size(); ++i) writer.write(i, 0, random_tensor(specs[i], dtype, seed, i));
  writer.finish();
}

void damage_tensor(const std::string& path, const std::string& tensor) {
  const CheckpointIndex index = read_checkpoint_index(path);
  const TensorEntry& entry = index.tensors.at(tensor);
  const auto place = static_cast<std::streamoff>(entry.offset + entry.bytes / 2);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(place);
  const int byte = file.get();
  file.seekp(place);
  file.put(static_cast<char>(byte ^ 1));
  file.flush();
  if (!file) throw std::runtime_error("cannot damage " + path);
}

}  // namespace computron::test
