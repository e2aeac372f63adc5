#include "tests/support/tiny_checkpoint.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "computron/base/digest.h"
#include "computron/checkpoint/reader.h"
#include "computron/checkpoint/writer.h"
#include "computron/model/adapter.h"

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
    case DType::kE8M0:
      return put(static_cast<std::uint8_t>(127 + std::ilogb(value)));
    default:
      throw std::logic_error("codes are not rounded to");
  }
}

std::size_t count_of(const std::vector<std::size_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
}

std::vector<std::byte> random_tensor(const TensorSpec& spec, DType dtype, std::uint64_t seed, std::uint64_t number) {
  const std::size_t count = count_of(spec.shape);
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

bool is_quantised(const TensorSpec& spec) {
  return spec.role == TensorRole::kGemmWeight && spec.name.starts_with("layers.") &&
         spec.name.find(".router.") == std::string::npos;
}

// The value of a code's bits, the lower half of a byte those of a code of four bits.
float code_value(std::uint8_t bits, DType codes) {
  if (codes == DType::kInt8) return static_cast<std::int8_t>(bits);
  if (codes == DType::kInt4) return static_cast<float>(bits < 8 ? bits : bits - 16);
  if (codes == DType::kFp4) {
    constexpr float kSizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return bits < 8 ? kSizes[bits] : -kSizes[bits - 8];
  }
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return bits < 128 ? magnitude : -magnitude;
}

float scale_value(const std::byte* stored, DType scales) {
  const auto get = [&](auto number) {
    std::memcpy(&number, stored, sizeof number);
    return number;
  };
  switch (scales) {
    case DType::kF32:
      return get(float{});
    case DType::kF16:
      return f32_from_f16(get(std::uint16_t{}));
    case DType::kBF16:
      return f32_from_bf16(get(std::uint16_t{}));
    case DType::kE4M3:
      return code_value(get(std::uint8_t{}), DType::kFp8);
    default:
      return std::ldexp(1.0f, static_cast<int>(get(std::uint8_t{})) - 127);
  }
}

// Random codes and scales of one weight, and what these are.
class QuantisedTensor {
 public:
  QuantisedTensor(const TensorSpec& spec, const WeightType& type, std::uint64_t seed, std::uint64_t number)
      : spec_(spec), type_(type), in_(spec.shape[spec.transposed ? 0 : 1]) {
    const auto count = count_of(spec.shape);
    for (std::size_t i = 0; i < count; ++i) codes_.push_back(random_code(hash_tuple(seed, number, i)));
    const std::size_t scales = count_of(scales_shape());
    const float size = type.codes == DType::kInt8   ? 74
                       : type.codes == DType::kFp8  ? 100
                       : type.codes == DType::kInt4 ? 4.6f
                                                    : 2.9f;
    const Spread spread{1.5f / (std::sqrt(static_cast<float>(in_)) * size), 0};
    if (type.has_factors()) divisor_ = 1 / spread.mean + static_cast<float>(number);  // tensors differ
    for (std::size_t i = 0; i < scales; ++i) {
      if (type.has_factors()) {  // 0, or 0.5 to 1.875
        scales_.push_back(
            static_cast<std::byte>(i % 50 == 7 ? 0 : 0x30 | (hash_tuple(seed + 1, number, i) >> 20 & 15)));
        continue;
      }
      const bool zero = type.scales != DType::kE8M0 && i % 50 == 7;
      const float factor = zero ? 0 : value_of({1, 0.25f}, seed + 1, number, i);
      append(scales_, factor * spread.mean, type.scales);
    }
  }

  std::vector<std::size_t> scales_shape() const {
    const auto groups = static_cast<std::size_t>(type_.groups(static_cast<int>(in_)));
    return spec_.transposed ? std::vector{groups, spec_.shape[1]} : std::vector{spec_.shape[0], groups};
  }
  const std::vector<std::byte>& scales() const { return scales_; }
  double factor() const { return type_.has_factors() ? 1 / static_cast<double>(divisor_) : 1; }

  std::vector<std::byte> codes() const {
    std::vector<std::byte> bytes;
    const bool halves = two_in_a_byte(type_.codes);
    for (std::size_t i = 0; i < codes_.size(); i += halves ? 2 : 1) {
      bytes.push_back(std::byte{halves ? static_cast<std::uint8_t>(codes_[i] | codes_[i + 1] << 4) : codes_[i]});
    }
    return bytes;
  }

  // code × scale rounded to float32, and once more to `dtype`; a scale of two levels is a quotient of float32.
  std::vector<std::byte> values(DType dtype) const {
    std::vector<std::byte> bytes;
    const std::size_t width = spec_.shape[1], groups = scales_shape()[spec_.transposed ? 0 : 1];
    for (std::size_t i = 0; i < codes_.size(); ++i) {
      const std::size_t row = i / width, column = i % width;
      const std::size_t group = (spec_.transposed ? row : column) / static_cast<std::size_t>(type_.group);
      const std::size_t scale = spec_.transposed ? group * width + column : row * groups + group;
      const float value = scale_value(&scales_[scale * size_of(type_.scales)], type_.scales) / divisor_;
      append(bytes, code_value(codes_[i], type_.codes) * value, dtype);
    }
    return bytes;
  }

 private:
  std::uint8_t random_code(std::uint64_t bits) const {
    const auto code = static_cast<std::uint8_t>(bits >> 20);
    if (two_in_a_byte(type_.codes)) return code & 15;
    return type_.codes == DType::kFp8 && (code & 127) == 127 ? 0x7e : code;  // not a number
  }

  const TensorSpec& spec_;
  WeightType type_;
  std::size_t in_;
  std::vector<std::uint8_t> codes_;
  std::vector<std::byte> scales_;
  float divisor_ = 1;
};

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

void write_variant_checkpoint(const std::string& path, const ModelConfig& config, DType dtype, std::uint64_t seed,
                              const std::function<bool(const std::string&)>& changed, std::uint64_t other_seed) {
  const std::vector<TensorSpec> specs = tensor_specs(config);
  CheckpointWriter writer(path, config.architecture, config.to_json(), declarations_of(specs, dtype));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    writer.write(i, 0, random_tensor(specs[i], dtype, changed(specs[i].name) ? other_seed : seed, i));
  }
  writer.finish();
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

// B A has values of about half the size of a weight's.
void write_random_adapter(const std::string& path, const ModelConfig& base, const RandomAdapter& adapter) {
  std::vector<TensorDeclaration> tensors;
  std::vector<std::vector<std::byte>> values;
  const auto add = [&](const TensorSpec& spec, const Spread& spread) {
    std::vector<std::byte>& bytes = values.emplace_back();
    for (std::size_t i = 0; i < count_of(spec.shape); ++i) {
      append(bytes, value_of(spread, adapter.seed, values.size(), i), DType::kF32);
    }
    tensors.push_back({spec.name, DType::kF32, spec.shape, spec.transposed});
  };
  for (const TensorSpec& spec : tensor_specs(base)) {
    if (adapter.replaces && adapter.replaces(spec.name)) {
      values.push_back(random_tensor(spec, adapter.whole, adapter.seed, values.size()));
      tensors.push_back({spec.name, adapter.whole, spec.shape, spec.transposed});
    } else if (takes_adapter(spec) && adapter.changes(spec.name)) {
      const TensorSpec a = lora_a_of(spec, adapter.rank);
      add(a, {0, 1 / std::sqrt(static_cast<float>(a.shape[0]))});
      add(lora_b_of(spec, adapter.rank), {0, 0.75f / std::sqrt(static_cast<float>(adapter.rank))});
      add({.name = LoraNames(spec.name).scale, .shape = {1}}, {1, 0});
    }
  }
  CheckpointWriter writer(path, base.architecture, adapter_config_json(base), tensors);
  for (std::size_t i = 0; i < values.size(); ++i) writer.write(i, 0, values[i]);
  writer.finish();
}

void write_quantised_pair(const std::string& path, const std::string& plain_path, const ModelConfig& config,
                          const WeightType& type, std::uint64_t seed) {
  const std::vector<TensorSpec> specs = tensor_specs(config);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorDeclaration> tensors;
  CheckpointWriter plain(plain_path, config.architecture, config.to_json(), declarations_of(specs, type.values));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    if (!is_quantised(spec)) {
      bytes.push_back(random_tensor(spec, type.values, seed, i));
      tensors.push_back({spec.name, type.values, spec.shape, spec.transposed});
      plain.write(i, 0, bytes.back());
      continue;
    }
    const QuantisedTensor tensor(spec, type, seed, i);
    plain.write(i, 0, tensor.values(type.values));
    bytes.push_back(tensor.codes());
    tensors.push_back({spec.name, type.codes, spec.shape, spec.transposed, type.group});
    bytes.push_back(tensor.scales());
    tensors.push_back(
        {spec.name + ".scales", type.scales, tensor.scales_shape(), spec.transposed, /*group=*/0, tensor.factor()});
  }
  plain.finish();
  CheckpointWriter quantised(path, config.architecture, config.to_json(), tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) quantised.write(i, 0, bytes[i]);
  quantised.finish();
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
