// Stands for NCCL in a build without it.
#include "computron/comm/agreed.h"
#include "computron/comm/communicators.h"

namespace computron {

Communicators make_nccl_communicators(const Mesh& mesh, Device&, Progress&, const CommunicatorSizes&, Trace*) {
  agreed(mesh.group, [] {
    throw NotCompiled("this build has no NCCL: use --transport mpi, or configure where nccl.h and libnccl are found");
  });
  return {};
}

bool direct_transport_present() noexcept { return false; }
std::string direct_transport_library() { return {}; }

}  // namespace computron
