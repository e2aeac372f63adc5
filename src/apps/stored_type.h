// The type that a command stores a model's weights in: options of convert and init.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "computron/checkpoint/write_tensors.h"
#include "computron/model/quantisation.h"

namespace computron {

struct StoredTypeOptions {
  std::string dtype;
  std::string group_size = {};  // empty: not given
  bool quantize_head = false;
  bool takes_keep = false;  // of --dtype: "keep"
};

// `plain_types` lists what --dtype takes beside the types of codes. `options` must outlive the command.
void add_stored_type_options(CLI::App& command, StoredTypeOptions& options, const std::string& plain_types);

struct StoredType {
  std::optional<DType> plain;                // of all values; none: "keep", or quantised
  std::optional<Quantisation> quantisation;  // of weights
};

// Error{kUsage} for an unknown type and options that do not go together.
StoredType stored_type(const StoredTypeOptions& options);

// "bf16", or "int8 in groups of 32 (8.5 bits a weight), rest bf16".
std::string types_of(const std::vector<TensorToWrite>& tensors);

}  // namespace computron
