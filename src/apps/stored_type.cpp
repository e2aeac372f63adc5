#include "src/apps/stored_type.h"

#include <fmt/format.h>

#include <algorithm>

#include "computron/base/quantise.h"

namespace computron {
namespace {

// Those that this program makes.
std::optional<DType> dtype_called(const std::string& name) {
  for (const DType dtype : kPlainDTypes) {
    if (name == name_of(dtype)) return dtype;
  }
  for (const DType dtype : kQuantisedTo) {
    if (name == name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

Quantisation quantisation_of(DType codes, const StoredTypeOptions& options) {
  const bool by_row = options.group_size == "row";
  if (by_row && codes == DType::kInt4) {
    throw Error(ExitCode::kUsage, "--group-size row: int4 is too coarse for whole rows, use int8 or fp8");
  }
  return {codes, by_row ? WeightType::kWholeRow : Quantisation::kGroup, options.quantize_head};
}

}  // namespace

void add_stored_type_options(CLI::App& command, StoredTypeOptions& options, const std::string& plain_types) {
  command.add_option("--dtype", options.dtype, plain_types + "; or int8, fp8, int4: quantised")->capture_default_str();
  command
      .add_option("--group-size", options.group_size,
                  "Weights that share a scale where they are quantised: 32 (default), or row for int8 and fp8")
      ->check(CLI::IsMember({"32", "row"}));
  command.add_flag("--quantize-head", options.quantize_head,
                   "Quantise the head too, or the embedding that it is tied to");
}

StoredType stored_type(const StoredTypeOptions& options) {
  const std::optional<DType> dtype = dtype_called(options.dtype);
  if (dtype && is_code(*dtype)) return {.plain = {}, .quantisation = quantisation_of(*dtype, options)};
  const bool keep = options.takes_keep && options.dtype == "keep";
  if (!dtype && !keep) {
    throw Error(ExitCode::kUsage,
                fmt::format("unknown dtype '{}' (known: f32, f16, bf16, int8, fp8, int4)", options.dtype));
  }
  if (options.quantize_head || !options.group_size.empty()) {
    throw Error(ExitCode::kUsage, fmt::format("{} goes with --dtype int8, fp8 or int4",
                                              options.quantize_head ? "--quantize-head" : "--group-size"));
  }
  return {.plain = dtype, .quantisation = {}};
}

std::string types_of(const std::vector<TensorToWrite>& tensors) {
  const auto is_values = [](const TensorToWrite& tensor) {
    return !tensor.has_codes() && !tensor.declaration.name.ends_with(scales_name(""));
  };
  const auto codes = std::ranges::find_if(tensors, &TensorToWrite::has_codes);
  const auto plain = std::ranges::find_if(tensors, is_values);
  std::string rest = plain == tensors.end() ? "" : std::string(name_of(plain->declaration.dtype));
  if (codes == tensors.end()) return rest;
  const WeightType type(DType::kBF16, codes->declaration.dtype, DType::kBF16, codes->declaration.group);
  return fmt::format("{} ({:.1f} bits a weight), rest {}", name_of(type), bits_of_quantised(tensors), rest);
}

}  // namespace computron
