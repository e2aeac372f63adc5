#include "src/checkpoint/subject.h"

namespace computron {

void Subject::fail(const std::string& what) const {
  const std::string line = text + ": " + what;
  if (code == ExitCode::kData) throw CheckpointError(line);
  throw Error(code, line);
}

}  // namespace computron
