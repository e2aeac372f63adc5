#include "src/model/hf_codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "src/model/join.h"

namespace computron {
namespace {

using Shape = std::vector<std::size_t>;

// Elements of 4 bytes are moved as this type, and never converted.
constexpr DType kWord = DType::kF32;
constexpr std::size_t kWordBits = 32;
constexpr std::size_t kMostBiasBytes = 1 << 20;

std::optional<DType> codes_of_bytes(const SafetensorsTensor& tensor) {
  if (tensor.entry->dtype == "I8") return DType::kInt8;
  if (tensor.entry->dtype == "F8_E4M3") return DType::kFp8;
  return std::nullopt;
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

std::string type_and_shape(const SafetensorsTensor& tensor) {
  return fmt::format("{} [{}]", tensor.entry->dtype, join(tensor.entry->shape, ", "));
}

}  // namespace

struct HfCodes::Weight {
  const TensorSpec& spec;
  SourceTensor source;  // transposed: codes and scales have [in, out] in the files
  bool packed = false;  // several codes in elements of 4 bytes
  std::string module = {}, codes_name = {}, scales_name = {};
  const SafetensorsTensor* codes = nullptr;
  const SafetensorsTensor* scales = nullptr;

  std::size_t out() const { return spec.transposed ? spec.shape.back() : spec.shape.front(); }
  std::size_t in() const { return spec.transposed ? spec.shape.front() : spec.shape.back(); }
  std::size_t per_element(const HfScheme& scheme) const { return packed ? kWordBits / bits_of(scheme.codes) : 1; }
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
  Shape shape_of_codes(const HfScheme& scheme) const { return shape_in_files(elements(scheme), source); }
  Shape shape_of_scales(const HfScheme& scheme) const {
    return shape_in_files(matrix(scale_rows(scheme), groups(scheme)), source);
  }
};

bool HfCodes::is_of_activations(const std::string& plain) {
  static constexpr std::string_view kEndings[] = {".input_scale",      ".output_scale",     ".q_scale",
                                                  ".k_scale",          ".v_scale",          ".kv_scale",
                                                  ".input_zero_point", ".output_zero_point"};
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
  if (!weight.ends_with(".weight")) return false;
  const std::string module = weight.substr(0, weight.rfind('.'));
  if (gptq()) return tensors_.find(module + ".qweight") != nullptr;
  const SafetensorsTensor* plain = tensors_.find(weight);
  return (plain != nullptr && codes_of_bytes(*plain)) || tensors_.find(weight + "_packed") != nullptr;
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
  weight.module = source.name.substr(0, source.name.rfind('.'));
  weight.packed = gptq() || tensors_.find(source.name + "_packed") != nullptr;
  weight.codes_name = gptq() ? weight.module + ".qweight" : source.name + (weight.packed ? "_packed" : "");
  const bool inverse = quantisation_.method == HfQuantisation::Method::kFp8;
  weight.scales_name = gptq() ? weight.module + ".scales" : source.name + (inverse ? "_scale_inv" : "_scale");
  weight.codes = use(weight.codes_name);
  weight.scales = use(weight.scales_name);
  if (!gptq() && (source.transposed || source.parts > 1)) {
    return refuse(weight.codes_name, "quantised weights of this family are taken from gptq only");
  }
  weight.source.transposed = gptq();
  if (weight.scales == nullptr) return refuse(weight.scales_name, "missing");
  const HfScheme* scheme = scheme_of(weight);
  if (scheme == nullptr || !check_layout(weight, *scheme) || !check_rest(weight, *scheme)) return std::nullopt;
  return source_of(weight, *scheme);
}

// As codes and scales of the checkpoint.
CodeSource HfCodes::source_of(const Weight& weight, const HfScheme& scheme) const {
  CodeSource source;
  source.name = tensors_.name_of(weight.codes_name);
  source.codes = scheme.codes;
  const bool whole_row = static_cast<std::size_t>(scheme.group) > weight.in();
  source.group = whole_row ? WeightType::kWholeRow : scheme.group;
  source.codes_per_element = weight.per_element(scheme);
  source.spread = weight.packed && weight.spec.transposed;
  source.matrix =
      matrix_of(weight.elements(scheme), weight.source, *weight.codes, weight.packed ? kWord : scheme.codes);
  if (weight.packed) source.flipped = scheme.codes == DType::kInt4 ? std::byte{0x88} : std::byte{0x80};

  ScaleSource& scales = source.scales;
  scales.name = tensors_.name_of(weight.scales_name);
  scales.rows_per_scale = static_cast<std::size_t>(scheme.rows);
  scales.out = weight.out();
  scales.groups = weight.groups(scheme);
  scales.transposed = weight.spec.transposed;
  scales.may_be_negative = scheme.codes == DType::kInt4;
  TensorSpec stored = weight.matrix(weight.scale_rows(scheme), scales.groups);
  if (scheme.rows > 1) stored = {.name = scales.name, .shape = {weight.scale_rows(scheme), scales.groups}};
  scales.matrix = matrix_of(stored, weight.source, *weight.scales, *weight.scales->entry->usable_dtype());
  return source;
}

// Of those with these codes the first that fits; the difference says what the first of all expects.
const HfScheme* HfCodes::scheme_of(const Weight& weight) {
  const std::optional<DType> bytes = codes_of_bytes(*weight.codes);
  const HfScheme* expected = nullptr;
  for (const HfScheme& scheme : quantisation_.schemes) {
    if (weight.packed ? scheme.codes == DType::kFp8 : scheme.codes != bytes) continue;
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
  if (weight.packed && weight.codes->entry->dtype != "I32") {
    fault = fmt::format("stored as {}, only I32 is supported", weight.codes->entry->dtype);
  } else if (in % per_element != 0) {
    fault = fmt::format("rows of {} values do not fill words of {}", in, per_element);
  } else if (group < in && in % group != 0 && !scheme.last_group_may_be_short) {
    fault = fmt::format("rows of {} values do not make whole groups of {}", in, group);
  } else if (scheme.codes == DType::kInt4 && weight.spec.shape.back() % 2 != 0) {
    fault = fmt::format("{} outputs, but int4 lie two in a byte along them", weight.spec.shape.back());
  } else if (!weight.scales->entry->usable_dtype()) {
    fault =
        fmt::format("its scales are stored as {}, only F32, F16 and BF16 are supported", weight.scales->entry->dtype);
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
  return !weight.packed || check_shape_tensor(weight);
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
