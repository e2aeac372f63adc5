#include "src/model/hf_codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "computron/base/join.h"

namespace computron {
namespace {

using Shape = std::vector<std::size_t>;

// Elements of 4 bytes and of one are moved as these types, and never converted.
constexpr DType kWord = DType::kF32, kByte = DType::kInt8;
constexpr std::size_t kMostBiasBytes = 1 << 20;

std::optional<DType> codes_of_bytes(const SafetensorsTensor& tensor) {
  if (tensor.entry->dtype == "I8") return DType::kInt8;
  if (tensor.entry->dtype == "F8_E4M3") return DType::kFp8;
  return std::nullopt;
}

// The type of scales, as a scheme has them.
std::optional<DType> scale_type(const HfScheme& scheme, const SafetensorsEntry& entry) {
  if (scheme.scales == DType::kF32) return entry.usable_dtype();
  const bool bytes = entry.dtype == "U8" && scheme.scales == DType::kE8M0;
  const char* name = scheme.scales == DType::kE8M0 ? "F8_E8M0" : "F8_E4M3";
  return bytes || entry.dtype == name ? std::optional(scheme.scales) : std::nullopt;
}

const char* known_scale_types(const HfScheme& scheme) {
  if (scheme.scales == DType::kF32) return "F32, F16 and BF16 are";
  return scheme.scales == DType::kE8M0 ? "U8 and F8_E8M0 are" : "F8_E4M3 is";
}

// A column may be stored as a vector, and one value as anything.
bool same_matrix(Shape stored, Shape wanted) {
  const auto drop_ones = [](Shape& shape) {
    while (!shape.empty() && shape.back() == 1) shape.pop_back();
  };
  drop_ones(stored);
  drop_ones(wanted);
  return stored == wanted;
}

// Whether body(i, word) is true of all words of an I32 tensor.
template <class Body>
bool all_words(const SafetensorsTensor& tensor, Body&& body) {
  constexpr std::size_t kPiece = 64 << 10;
  std::vector<std::uint32_t> words(kPiece);
  const std::size_t count = (tensor.entry->end - tensor.entry->begin) / sizeof words[0];
  for (std::size_t first = 0; first < count; first += kPiece) {
    const auto piece = std::span(words).first(std::min(kPiece, count - first));
    tensor.file->read(*tensor.entry, tensor.entry->begin + first * sizeof words[0], std::as_writable_bytes(piece));
    for (std::size_t i = 0; i < piece.size(); ++i) {
      if (!body(first + i, piece[i])) return false;
    }
  }
  return true;
}

// Stacked weights of experts have no ".weight" behind their names.
std::string module_of(const std::string& weight) {
  return weight.ends_with(".weight") ? weight.substr(0, weight.rfind('.')) : weight;
}

std::string type_and_shape(const SafetensorsTensor& tensor) {
  return fmt::format("{} [{}]", tensor.entry->dtype, join(tensor.entry->shape, ", "));
}

}  // namespace

struct HfCodes::Weight {
  const TensorSpec& spec;
  SourceTensor source;  // transposed: codes and scales have [in, out] in the files
  bool packed = false;  // codes of int8 and int4 in elements of 4 bytes
  bool blocks = false;  // codes have another dimension: [out, groups, bytes of a group]
  std::string module = {}, codes_name = {}, scales_name = {};
  const SafetensorsTensor* codes = nullptr;
  const SafetensorsTensor* scales = nullptr;

  std::size_t out() const { return spec.transposed ? spec.shape.back() : spec.shape.front(); }
  std::size_t in() const { return spec.transposed ? spec.shape.front() : spec.shape.back(); }
  DType element(const HfScheme& scheme) const {
    return scheme.codes == DType::kFp4 ? kByte : packed ? kWord : scheme.codes;
  }
  std::size_t per_element(const HfScheme& scheme) const { return bits_of(element(scheme)) / bits_of(scheme.codes); }
  std::size_t groups(const HfScheme& scheme) const { return ceil_div(in(), static_cast<std::size_t>(scheme.group)); }
  std::size_t scale_rows(const HfScheme& scheme) const {
    return ceil_div(out(), static_cast<std::size_t>(scheme.rows));
  }

  // A matrix of `rows` and `columns`, stored as the weight is.
  TensorSpec matrix(std::size_t rows, std::size_t columns) const {
    TensorSpec like = spec;
    like.shape = spec.transposed ? Shape{columns, rows} : Shape{rows, columns};
    return like;
  }
  TensorSpec elements(const HfScheme& scheme) const { return matrix(out(), ceil_div(in(), per_element(scheme))); }
  Shape shape_of_codes(const HfScheme& scheme) const {
    Shape shape = shape_in_files(elements(scheme), source);
    if (!blocks) return shape;
    shape.back() = groups(scheme);
    shape.push_back(bytes_of(scheme.codes, static_cast<std::size_t>(scheme.group)));
    return shape;
  }
  Shape shape_of_scales(const HfScheme& scheme) const {
    return shape_in_files(matrix(scale_rows(scheme), groups(scheme)), source);
  }
};

bool HfCodes::is_of_activations(const std::string& plain) {
  static constexpr std::string_view kEndings[] = {".input_scale",
                                                  ".output_scale",
                                                  ".q_scale",
                                                  ".k_scale",
                                                  ".v_scale",
                                                  ".kv_scale",
                                                  ".input_zero_point",
                                                  ".output_zero_point",
                                                  ".input_global_scale",
                                                  ".output_global_scale"};
  return std::ranges::any_of(kEndings, [&](std::string_view ending) { return plain.ends_with(ending); });
}

bool HfCodes::is_bias_of_zeros(const std::string& plain) const {
  if (!gptq() || !plain.ends_with(".bias") || !has(plain.substr(0, plain.rfind('.')) + ".weight")) return false;
  const SafetensorsTensor& bias = *tensors_.find(plain);
  std::vector<std::byte> bytes(std::min(bias.entry->end - bias.entry->begin, kMostBiasBytes));
  if (bytes.size() == kMostBiasBytes) return false;
  bias.file->read(*bias.entry, bias.entry->begin, bytes);
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{}; });
}

bool HfCodes::has(const std::string& weight) const {
  const std::string module = module_of(weight);
  if (method() == Method::kMxfp4) return tensors_.find(module + "_blocks") != nullptr;
  if (module == weight) return false;
  if (gptq()) return tensors_.find(module + ".qweight") != nullptr;
  const SafetensorsTensor* plain = tensors_.find(weight);
  if (plain == nullptr) return tensors_.find(weight + "_packed") != nullptr;
  return codes_of_bytes(*plain) || (method() == Method::kModelOpt && plain->entry->dtype == "U8");
}

const SafetensorsTensor* HfCodes::use(const std::string& plain) {
  tensors_.use(plain);
  return tensors_.find(plain);
}

std::optional<CodeSource> HfCodes::refuse(const std::string& plain, const std::string& what) {
  differences_.add(fmt::format("'{}': {}", tensors_.name_of(plain), what));
  return std::nullopt;
}

std::optional<CodeSource> HfCodes::find(const TensorSpec& spec, const SourceTensor& source) {
  Weight weight{.spec = spec, .source = source};
  weight.module = module_of(source.name);
  name_tensors(weight);
  weight.codes = use(weight.codes_name);
  weight.scales = use(weight.scales_name);
  if (source.fused.total > 0)
    return refuse(weight.codes_name, "a quantised tensor of several, fused, is not supported");
  if (!gptq() && !weight.blocks && (source.transposed || source.parts > 1)) {
    return refuse(weight.codes_name, "quantised weights of this family are taken from gptq only");
  }
  weight.source.transposed = gptq();
  if (weight.scales == nullptr) return refuse(weight.scales_name, "missing");
  const HfScheme* scheme = scheme_of(weight);
  if (scheme == nullptr || !check_layout(weight, *scheme) || !check_rest(weight, *scheme)) return std::nullopt;
  const std::optional<double> factor = scheme->scales == DType::kE4M3 ? find_factor(weight) : 1;
  if (!factor) return std::nullopt;
  CodeSource found = source_of(weight, *scheme);
  found.scales.factor = *factor;
  return found;
}

// What the method calls them.
void HfCodes::name_tensors(Weight& weight) const {
  const std::string& name = weight.source.name;
  weight.packed = gptq() || tensors_.find(name + "_packed") != nullptr;
  weight.blocks = method() == Method::kMxfp4;
  if (gptq()) {
    weight.codes_name = weight.module + ".qweight";
    weight.scales_name = weight.module + ".scales";
  } else if (weight.blocks) {
    weight.codes_name = weight.module + "_blocks";
    weight.scales_name = weight.module + "_scales";
  } else {
    weight.codes_name = name + (weight.packed ? "_packed" : "");
    weight.scales_name = name + (method() == Method::kFp8 ? "_scale_inv" : "_scale");
  }
}

// The second level of scales: modelopt's is a factor, that of compressed-tensors a divisor.
std::optional<double> HfCodes::find_factor(const Weight& weight) {
  const bool divides = method() != Method::kModelOpt;
  const std::string name = weight.source.name + (divides ? "_global_scale" : "_scale_2");
  const SafetensorsTensor* tensor = use(name);
  float value = 0;
  if (tensor == nullptr) {
    refuse(name, "missing");
  } else if (tensor->entry->dtype != "F32" || !same_matrix(tensor->entry->shape, {})) {
    refuse(name, fmt::format("F32 [1] expected, {} stored", type_and_shape(*tensor)));
  } else {
    tensor->file->read(*tensor->entry, tensor->entry->begin, std::as_writable_bytes(std::span(&value, 1)));
    const double factor = divides ? 1 / static_cast<double>(value) : value;
    if (usable_factor(factor) && std::isfinite(value)) return factor;
    refuse(name, fmt::format("{}, with which scales are negative or not finite", value));
  }
  return std::nullopt;
}

// As codes and scales of the checkpoint.
CodeSource HfCodes::source_of(const Weight& weight, const HfScheme& scheme) const {
  CodeSource source;
  source.name = tensors_.name_of(weight.codes_name);
  source.codes = scheme.codes;
  const bool whole_row = static_cast<std::size_t>(scheme.group) > weight.in();
  source.group = whole_row ? WeightType::kWholeRow : scheme.group;
  source.codes_per_element = weight.per_element(scheme);
  source.spread = source.codes_per_element > 1 && weight.spec.transposed;
  source.matrix = matrix_of(weight.elements(scheme), weight.source, *weight.codes, weight.element(scheme));
  if (weight.packed && scheme.codes != DType::kFp4)
    source.flipped = scheme.codes == DType::kInt4 ? std::byte{0x88} : std::byte{0x80};

  ScaleSource& scales = source.scales;
  scales.name = tensors_.name_of(weight.scales_name);
  scales.rows_per_scale = static_cast<std::size_t>(scheme.rows);
  scales.out = weight.out();
  scales.groups = weight.groups(scheme);
  scales.transposed = weight.spec.transposed;
  scales.may_be_negative = scheme.codes == DType::kInt4;
  TensorSpec stored = weight.matrix(weight.scale_rows(scheme), scales.groups);
  if (scheme.rows > 1) stored = {.name = scales.name, .shape = {weight.scale_rows(scheme), scales.groups}};
  scales.matrix = matrix_of(stored, weight.source, *weight.scales, *scale_type(scheme, *weight.scales->entry));
  return source;
}

// Whether tensors of such a name and type hold these codes.
bool HfCodes::may_hold(const Weight& weight, DType codes) {
  if (weight.packed && codes != DType::kFp4) return codes != DType::kFp8;
  const std::optional<DType> bytes = codes_of_bytes(*weight.codes);
  return codes == (weight.codes->entry->dtype == "U8" ? std::optional(DType::kFp4) : bytes);
}

// Of those with these codes the first that fits; the difference says what the first of all expects.
const HfScheme* HfCodes::scheme_of(const Weight& weight) {
  const HfScheme* expected = nullptr;
  for (const HfScheme& scheme : quantisation_.schemes) {
    if (!may_hold(weight, scheme.codes)) continue;
    const bool fits = weight.codes->entry->shape == weight.shape_of_codes(scheme) &&
                      same_matrix(weight.scales->entry->shape, weight.shape_of_scales(scheme));
    if (fits) return &scheme;
    if (expected == nullptr) expected = &scheme;
  }
  const std::string stored =
      fmt::format("{} with scales {} stored", type_and_shape(*weight.codes), type_and_shape(*weight.scales));
  if (expected == nullptr) {
    refuse(weight.codes_name, stored + ", but config.json says of no weights that they are quantised so");
  } else {
    refuse(weight.codes_name,
           fmt::format("[{}] with scales [{}] expected, {}", join(weight.shape_of_codes(*expected), ", "),
                       join(weight.shape_of_scales(*expected), ", "), stored));
  }
  return nullptr;
}

// Types, and what a checkpoint cannot hold.
bool HfCodes::check_layout(const Weight& weight, const HfScheme& scheme) {
  const std::size_t in = weight.in(), per_element = weight.per_element(scheme);
  const auto group = static_cast<std::size_t>(scheme.group);
  std::string fault;
  if (weight.packed && scheme.codes != DType::kFp4 && weight.codes->entry->dtype != "I32") {
    fault = fmt::format("stored as {}, only I32 is supported", weight.codes->entry->dtype);
  } else if (in % per_element != 0) {
    fault = fmt::format("rows of {} values do not fill words of {}", in, per_element);
  } else if ((weight.blocks || group < in) && in % group != 0 && !scheme.last_group_may_be_short) {
    fault = fmt::format("rows of {} values do not make whole groups of {}", in, group);
  } else if (two_in_a_byte(scheme.codes) && weight.spec.shape.back() % 2 != 0) {
    fault =
        fmt::format("{} outputs, but {} lie two in a byte along them", weight.spec.shape.back(), name_of(scheme.codes));
  } else if (!scale_type(scheme, *weight.scales->entry)) {
    fault = fmt::format("its scales are stored as {}, only {} supported", weight.scales->entry->dtype,
                        known_scale_types(scheme));
  }
  if (!fault.empty()) refuse(weight.codes_name, fault);
  return fault.empty();
}

// What stands beside codes and scales.
bool HfCodes::check_rest(const Weight& weight, const HfScheme& scheme) {
  if (gptq()) {
    const bool zeros = check_zeros(weight, scheme), order = check_order(weight, scheme);
    return zeros && order;
  }
  for (const char* more : {".weight_zero_point", ".weight_g_idx"}) {
    if (tensors_.find(weight.module + more) == nullptr) continue;
    tensors_.use(weight.module + more);
    refuse(weight.module + more, "zero points and orders of groups (actorder) are not supported");
    return false;
  }
  return !weight.packed || scheme.codes == DType::kFp4 || check_shape_tensor(weight);
}

bool HfCodes::check_shape_tensor(const Weight& weight) {
  const std::string name = weight.module + ".weight_shape";
  const SafetensorsTensor* tensor = use(name);
  std::array<std::uint64_t, 2> shape{};
  if (tensor == nullptr) {
    refuse(name, "missing");
  } else if (tensor->entry->dtype != "I64" || tensor->entry->shape != Shape{2}) {
    refuse(name, fmt::format("I64 [2] expected, {} stored", type_and_shape(*tensor)));
  } else {
    tensor->file->read(*tensor->entry, tensor->entry->begin, std::as_writable_bytes(std::span(shape)));
    if (shape[0] == weight.out() && shape[1] == weight.in()) return true;
    refuse(name, fmt::format("[{}, {}] expected, [{}, {}] stored", weight.out(), weight.in(), shape[0], shape[1]));
  }
  return false;
}

// Zeros [groups, out / codes in a word], each the middle of all codes, less one but in gptq_v2.
bool HfCodes::check_zeros(const Weight& weight, const HfScheme& scheme) {
  const std::string name = weight.module + ".qzeros";
  const SafetensorsTensor* tensor = use(name);
  const std::size_t columns = weight.out() * static_cast<std::size_t>(weight.source.parts);
  const Shape wanted{weight.groups(scheme), ceil_div(columns, weight.per_element(scheme))};
  const std::uint32_t middle = scheme.codes == DType::kInt4 ? 0x88888888 : 0x80808080;
  const std::uint32_t less_one = scheme.codes == DType::kInt4 ? 0x77777777 : 0x7f7f7f7f;
  const std::uint32_t zeros = quantisation_.gptq_v2 ? middle : less_one;
  if (tensor == nullptr) {
    refuse(name, "missing");
  } else if (tensor->entry->dtype != "I32" || tensor->entry->shape != wanted) {
    refuse(name, fmt::format("I32 [{}] expected, {} stored", join(wanted, ", "), type_and_shape(*tensor)));
  } else if (!all_words(*tensor, [&](std::size_t, std::uint32_t word) { return word == zeros; })) {
    refuse(name, fmt::format("zeros other than {}, only symmetric codes are supported",
                             zeros & (scheme.codes == DType::kInt4 ? 15u : 255u)));
  } else {
    return true;
  }
  return false;
}

// The group of each value along `in`; may be left out.
bool HfCodes::check_order(const Weight& weight, const HfScheme& scheme) {
  const std::string name = weight.module + ".g_idx";
  const SafetensorsTensor* tensor = use(name);
  if (tensor == nullptr) return true;
  const auto in_order = [&](std::size_t i, std::uint32_t group) {
    return group == i / static_cast<std::size_t>(scheme.group);
  };
  if (tensor->entry->dtype != "I32" || tensor->entry->shape != Shape{weight.in()}) {
    refuse(name, fmt::format("I32 [{}] expected, {} stored", weight.in(), type_and_shape(*tensor)));
  } else if (!all_words(*tensor, in_order)) {
    refuse(name, "groups in another order (act-order, desc_act), which is not supported");
  } else {
    return true;
  }
  return false;
}

}  // namespace computron
