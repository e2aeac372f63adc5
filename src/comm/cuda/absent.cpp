// Stands for NCCL in a build without it.
#include "computron/comm/agreed.h"
#include "computron/comm/links.h"

namespace computron {

Links make_nccl_links(const Mesh& mesh, Device&, Progress&, const LinkSizes&, Trace*) {
  agreed(mesh.world, [] {
    throw NotCompiled("this build has no NCCL: use --transport mpi, or configure where nccl.h and libnccl are found");
  });
  return {};
}

bool direct_links_present() noexcept { return false; }
std::string direct_links_library() { return {}; }

}  // namespace computron
