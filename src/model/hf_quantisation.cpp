#include "computron/model/hf_quantisation.h"

#include <algorithm>

#include "src/model/families/hf_keys.h"

namespace computron {
namespace {

using nlohmann::json;

constexpr std::string_view kFormats[] = {"int-quantized", "naive-quantized", "float-quantized", "pack-quantized"};
constexpr char kFormatNames[] = "int-quantized, naive-quantized, float-quantized or pack-quantized";

void check_format(const std::string& format) {
  if (std::ranges::find(kFormats, format) == std::end(kFormats)) HfKeys::refuse("format", format, kFormatNames);
}

int read_group_size(const HfKeys& keys, int fallback) {
  const int size = keys.value("group_size", fallback);
  if (size == -1) return WeightType::kWholeRow;
  if (size < WeightType::kSmallestGroup || size % WeightType::kSmallestGroup != 0) {
    HfKeys::refuse("group_size", size, fmt::format("-1 or a multiple of {}", WeightType::kSmallestGroup));
  }
  return size;
}

// [rows, columns] under `key`.
void read_block(const HfKeys& keys, const char* key, HfScheme& scheme) {
  const auto block = keys.value(key, std::vector<int>{});
  const bool fits = block.size() == 2 && block[0] > 0 && block[1] >= WeightType::kSmallestGroup &&
                    block[1] % WeightType::kSmallestGroup == 0;
  if (!fits) HfKeys::refuse(key, json(block), "a block such as [128, 128]");
  scheme.rows = block[0];
  scheme.group = block[1];
  scheme.last_group_may_be_short = true;
}

DType read_codes(const HfKeys& weights, const std::string& format) {
  const std::string type = weights.value("type", "int");
  const int bits = weights.value("num_bits", 8);
  const bool packed = format == "pack-quantized";
  if (type != "int" && type != "float") HfKeys::refuse("type", type, "int or float");
  if (packed && type != "int") HfKeys::refuse("type", type, "int with the format pack-quantized");
  if (type == "float" && format == "int-quantized") HfKeys::refuse("type", type, "int with the format int-quantized");
  if (type == "int" && format == "float-quantized") {
    HfKeys::refuse("type", type, "float with the format float-quantized");
  }
  if (bits != 8 && !(packed && bits == 4)) HfKeys::refuse("num_bits", bits, packed ? "4 or 8" : "8 with " + format);
  if (type == "float") return DType::kFp8;
  return bits == 8 ? DType::kInt8 : DType::kInt4;
}

// Whether the groups' order is that of the activations. "weight" and "static" stand for an order during calibration.
void check_order(const HfKeys& weights, const json& object) {
  const auto order = object.find("actorder");
  if (!weights.has("actorder") || *order == "weight" || *order == "static" || *order == false) return;
  HfKeys::refuse("actorder", *order, "null, static or weight");
}

void read_strategy(const HfKeys& weights, HfScheme& scheme) {
  const int group_size = weights.value("group_size", 0);
  const std::string strategy = weights.value("strategy", group_size > 0   ? "group"
                                                         : group_size < 0 ? "channel"
                                                                          : "tensor");
  if (strategy == "group") {
    scheme.group = read_group_size(weights, 0);
  } else if (strategy == "block") {
    read_block(weights, "block_structure", scheme);
  } else if (strategy == "tensor") {
    scheme.rows = HfScheme::kAllRows;
  } else if (strategy != "channel") {
    HfKeys::refuse("strategy", strategy, "tensor, channel, group or block");
  }
}

HfScheme read_weights(const json& object, const std::string& format) {
  const HfKeys weights(object);
  check_format(format);
  HfScheme scheme{.codes = read_codes(weights, format)};
  weights.require("symmetric", true, true);
  check_order(weights, object);
  read_strategy(weights, scheme);
  return scheme;
}

const json& object_in(const json& object, const char* key) {
  static const json nothing = json::object();
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return nothing;
  if (!found->is_object()) fail_value(key, *found, "an object");
  return *found;
}

void read_compressed_tensors(const json& object, HfQuantisation& quantisation) {
  const HfKeys keys(object);
  quantisation.method = HfQuantisation::Method::kCompressedTensors;
  const std::string sparsity = keys.object("sparsity_config").value("format", "dense");
  if (sparsity != "dense") HfKeys::refuse("sparsity_config", sparsity, "dense");
  const json& transforms = object_in(object_in(object, "transform_config"), "config_groups");
  if (!transforms.empty()) HfKeys::refuse("transform_config", transforms, "no transform");
  const std::string format = keys.value("format", "");
  quantisation.activations = keys.has("kv_cache_scheme");
  for (const auto& [name, group] : object_in(object, "config_groups").items()) {
    if (!group.is_object()) fail_value(name, group, "an object");
    const HfKeys of_group(group);
    quantisation.activations |= of_group.has("input_activations") || of_group.has("output_activations");
    if (!of_group.has("weights")) continue;
    quantisation.schemes.push_back(read_weights(object_in(group, "weights"), of_group.value("format", format)));
  }
  if (quantisation.schemes.empty()) HfKeys::refuse("config_groups", json::object(), "a group with weights");
}

void read_fp8(const json& object, HfQuantisation& quantisation) {
  const HfKeys keys(object);
  quantisation.method = HfQuantisation::Method::kFp8;
  keys.require("fmt", std::string("e4m3"), std::string("e4m3"));
  HfScheme scheme{.codes = DType::kFp8};
  read_block(keys, "weight_block_size", scheme);
  quantisation.schemes = {scheme};
  quantisation.activations = keys.has("activation_scheme");
}

// Rules that begin with "-:" leave modules plain, others give them bits and groups of their own.
void check_dynamic(const json& object) {
  for (const auto& [rule, value] : object_in(object, "dynamic").items()) {
    if (!rule.starts_with("-:")) HfKeys::refuse("dynamic", rule, "one way of quantising for all weights");
  }
}

void read_gptq(const json& object, HfQuantisation& quantisation) {
  const HfKeys keys(object);
  quantisation.method = HfQuantisation::Method::kGptq;
  const int bits = keys.value("bits", 0);
  if (bits != 4 && bits != 8) HfKeys::refuse("bits", bits, "4 or 8");
  keys.require("sym", true, true);
  keys.require("desc_act", false, false);
  check_dynamic(object);
  const std::string format = keys.value("checkpoint_format", keys.value("is_marlin_format", false) ? "marlin" : "gptq");
  if (format != "gptq" && format != "gptq_v2") HfKeys::refuse("checkpoint_format", format, "gptq or gptq_v2");
  quantisation.gptq_v2 = format == "gptq_v2";
  quantisation.schemes = {{.codes = bits == 4 ? DType::kInt4 : DType::kInt8, .group = read_group_size(keys, 128)}};
}

}  // namespace

std::optional<HfQuantisation> HfQuantisation::read(const std::string& config_json) {
  const json object = parse_json_object(config_json);
  const HfKeys keys(object);
  const bool old = !keys.has("quantization_config");  // compressed-tensors called it otherwise once
  if (old && !keys.has("compression_config")) return std::nullopt;
  const json& settings = object_in(object, old ? "compression_config" : "quantization_config");
  const std::string method = HfKeys(settings).value("quant_method", old ? "compressed-tensors" : "");
  HfQuantisation quantisation;
  if (method == "compressed-tensors") {
    read_compressed_tensors(settings, quantisation);
  } else if (method == "fp8") {
    read_fp8(settings, quantisation);
  } else if (method == "gptq") {
    read_gptq(settings, quantisation);
  } else {
    HfKeys::refuse("quant_method", method, "compressed-tensors, fp8 or gptq");
  }
  return quantisation;
}

}  // namespace computron
