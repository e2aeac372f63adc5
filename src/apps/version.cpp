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

ProgramFacts program_facts() {
  ProgramFacts facts{version_number(), COMPUTRON_REVISION, COMPUTRON_BUILD_TYPE, __VERSION__, {}};
  for (const std::string& library :
       {mpi_library(), hdf5_library(), onednn_library(), accelerator_library(), direct_transport_library()}) {
    if (!library.empty()) facts.libraries.push_back(library);
  }
  return facts;
}

std::string version_text() {
  const ProgramFacts facts = program_facts();
  std::string libraries;
  for (const std::string& library : facts.libraries) libraries += (libraries.empty() ? "" : ", ") + library;
  return fmt::format("computron {}\ncommit {}, {} build, compiler {}\n{}", facts.version, facts.commit, facts.build,
                     facts.compiler, libraries);
}

}  // namespace computron
