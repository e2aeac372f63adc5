#include "src/text/pattern.h"

#include "computron/base/error.h"

namespace computron {

Regex read_pattern(const JsonAt& json) {
  const JsonAt literal = json["String"];
  try {
    return literal.is_null() ? Regex::of_pattern(json["Regex"].string()) : Regex::of_literal(literal.string());
  } catch (const CheckpointError& error) {
    json.fail(error.what());
  }
}

}  // namespace computron
