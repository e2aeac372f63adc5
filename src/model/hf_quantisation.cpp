#include "computron/model/hf_quantisation.h"

#include <algorithm>

#include "src/model/families/hf_keys.h"

namespace computron {
namespace {

using nlohmann::json;

constexpr std::string_view kFormats[] = {"int-quantized",  "naive-quantized",      "float-quantized",
                                         "pack-quantized", "mxfp4-pack-quantized", "nvfp4-pack-quantized"};
constexpr char kFormatNames[] =
    "int-quantized, naive-quantized, float-quantized, pack-quantized, mxfp4-pack-quantized or nvfp4-pack-quantized";

constexpr HfScheme kMxfp4{.codes = DType::kFp4, .scales = DType::kE8M0, .group = 32};
constexpr HfScheme kNvfp4{.codes = DType::kFp4, .scales = DType::kE4M3, .group = 16};

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

// Of a format that leaves no choice.
HfScheme read_fp4(const HfKeys& weights, const std::string& format) {
  const HfScheme scheme = format == "mxfp4-pack-quantized" ? kMxfp4 : kNvfp4;
  weights.require("type", std::string("float"), std::string("float"));
  weights.require("num_bits", 4, 4);
  weights.require("group_size", scheme.group, scheme.group);
  weights.require("symmetric", true, true);
  const std::string strategy = weights.value("strategy", "group");
  if (strategy != "group" && strategy != "tensor_group") HfKeys::refuse("strategy", strategy, "group or tensor_group");
  return scheme;
}

HfScheme read_weights(const json& object, const std::string& format) {
  const HfKeys weights(object);
  check_format(format);
  if (format.ends_with("fp4-pack-quantized")) return read_fp4(weights, format);
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

// `settings`: the keys of config.json, or those of hf_quant_config.json under "quantization".
void read_modelopt(const json& settings, HfQuantisation& quantisation) {
  const json& object = settings.contains("quantization") ? object_in(settings, "quantization") : settings;
  const HfKeys keys(object);
  quantisation.method = HfQuantisation::Method::kModelOpt;
  keys.require("quant_algo", std::string("NVFP4"), std::string());
  keys.require("group_size", kNvfp4.group, kNvfp4.group);
  for (const auto& [name, group] : object_in(object, "config_groups").items()) {
    if (!group.is_object()) fail_value(name, group, "an object");
    if (HfKeys(group).has("weights")) read_fp4(HfKeys(object_in(group, "weights")), "nvfp4-pack-quantized");
  }
  quantisation.schemes = {kNvfp4};
  quantisation.activations = true;  // it is a way of multiplying, too
}

void read_mxfp4(HfQuantisation& quantisation) {
  quantisation.method = HfQuantisation::Method::kMxfp4;
  quantisation.schemes = {kMxfp4};
}

// What modelopt wrote into a file of its own before it wrote to config.json. Without "quant_algo" only caches are
// quantised.
std::optional<HfQuantisation> read_quant_config(const std::string& text) {
  const json object = parse_json_object(text);
  if (!HfKeys(object_in(object, "quantization")).has("quant_algo")) return std::nullopt;
  HfQuantisation quantisation;
  read_modelopt(object, quantisation);
  return quantisation;
}

}  // namespace

std::optional<HfQuantisation> HfQuantisation::read(const std::string& config_json,
                                                   const std::optional<std::string>& hf_quant_config) {
  const json object = parse_json_object(config_json);
  const HfKeys keys(object);
  const bool old = !keys.has("quantization_config");  // compressed-tensors called it otherwise once
  if (old && !keys.has("compression_config")) {
    return hf_quant_config ? read_quant_config(*hf_quant_config) : std::nullopt;
  }
  const json& settings = object_in(object, old ? "compression_config" : "quantization_config");
  const std::string method = HfKeys(settings).value("quant_method", old ? "compressed-tensors" : "");
  HfQuantisation quantisation;
  if (method == "compressed-tensors") {
    read_compressed_tensors(settings, quantisation);
  } else if (method == "fp8") {
    read_fp8(settings, quantisation);
  } else if (method == "gptq") {
    read_gptq(settings, quantisation);
  } else if (method == "modelopt" || method == "modelopt_fp4") {
    read_modelopt(settings, quantisation);
  } else if (method == "mxfp4") {
    read_mxfp4(quantisation);
  } else {
    HfKeys::refuse("quant_method", method, "compressed-tensors, fp8, gptq, modelopt or mxfp4");
  }
  return quantisation;
}

}  // namespace computron
