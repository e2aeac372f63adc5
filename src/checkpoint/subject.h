// What a failing check is about. Private to src/checkpoint.
#pragma once

#include <string>

#include "computron/base/error.h"

namespace computron {

// The text before the message, and the exit code.
struct Subject {
  std::string text;
  ExitCode code = ExitCode::kData;

  Subject with(const std::string& part) const { return {text + ": " + part, code}; }
  // Throws CheckpointError for kData, Error otherwise.
  [[noreturn]] void fail(const std::string& what) const;
};

}  // namespace computron
