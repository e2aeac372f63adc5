// A `pattern` of a tokenizer.json: {"String": text} or {"Regex": expression}.
#pragma once

#include "src/text/json_reader.h"
#include "src/text/regex.h"

namespace computron {

// CheckpointError naming the place.
Regex read_pattern(const JsonAt& json);

}  // namespace computron
