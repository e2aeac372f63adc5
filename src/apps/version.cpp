#include "src/apps/version.h"

#include <fmt/format.h>

#include "computron/checkpoint/reader.h"
#include "computron/comm/links.h"
#include "computron/comm/mpi.h"
#include "computron/device/device.h"
#include "git_revision.h"
#include "kernels/cpu/gemm.h"

namespace computron {
namespace {

// Those of this build, in the order of the floors; what it was made without is left out.
std::string libraries() {
  std::string all;
  for (const std::string& library :
       {mpi_library(), hdf5_library(), kernels::onednn_library(), accelerator_library(), direct_links_library()}) {
    if (!library.empty()) all += (all.empty() ? "" : ", ") + library;
  }
  return all;
}

}  // namespace

std::string version_number() { return COMPUTRON_VERSION; }

std::string version_text() {
  return fmt::format("computron {}\ncommit {}, {} build, compiler {}\n{}", version_number(), COMPUTRON_REVISION,
                     COMPUTRON_BUILD_TYPE, __VERSION__, libraries());
}

}  // namespace computron
