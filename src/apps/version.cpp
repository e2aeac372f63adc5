#include "src/apps/version.h"

#include <fmt/format.h>

#include "computron/checkpoint/reader.h"
#include "computron/comm/communicators.h"
#include "computron/comm/mpi.h"
#include "computron/device/device.h"
#include "computron/ops/cpu_probe.h"
#include "git_revision.h"

namespace computron {

std::string version_number() { return COMPUTRON_VERSION; }

ProgramInfo program_info() {
  ProgramInfo info{version_number(), COMPUTRON_REVISION, COMPUTRON_BUILD_TYPE, __VERSION__, {}};
  for (const std::string& library :
       {mpi_library(), hdf5_library(), accelerator_library(), direct_transport_library()}) {
    if (!library.empty()) info.libraries.push_back(library);
  }
  return info;
}

std::string version_text() {
  const ProgramInfo info = program_info();
  std::string libraries;
  for (const std::string& library : info.libraries) libraries += (libraries.empty() ? "" : ", ") + library;
  return fmt::format("computron {}\ncommit {}, {} build, compiler {}\n{}", info.version, info.commit, info.build,
                     info.compiler, libraries);
}

}  // namespace computron
