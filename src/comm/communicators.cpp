#include "computron/comm/communicators.h"

#include "computron/comm/agreed.h"
#include "src/comm/staged.h"

namespace computron {
namespace {

Communicators make_host_communicators(const Mesh& mesh, Progress& progress, const CommunicatorSizes& sizes,
                                      Trace* trace) {
  const bool alone = mesh.shape.tp == 1;
  return {make_mpi_stage_transfer(mesh, progress, sizes.max_count, sizes.buffers, trace),
          alone ? make_local_all_reduce() : make_mpi_all_reduce(mesh.tensor, progress, sizes.max_count, trace)};
}

Communicators make_staged_communicators(const Mesh& mesh, Device& device, Progress& progress,
                                        const CommunicatorSizes& sizes, Trace* trace) {
  Communicators host = make_host_communicators(mesh, progress, sizes, trace);
  if (mesh.shape.tp > 1) {
    host.all_reduce = make_staged_all_reduce(std::move(host.all_reduce), device, progress, sizes.max_count);
  }
  if (mesh.shape.pp > 1) {
    host.transfer = make_staged_stage_transfer(std::move(host.transfer), device, progress, sizes.max_count);
  }
  return host;
}

}  // namespace

Communicators make_communicators(TransportKind kind, const Mesh& mesh, Device& device, Progress& progress,
                                 const CommunicatorSizes& sizes, Trace* trace) {
  if (kind == TransportKind::kDirect) return make_nccl_communicators(mesh, device, progress, sizes, trace);
  Communicators communicators;
  agreed(mesh.group, [&] {
    communicators = kind == TransportKind::kHost ? make_host_communicators(mesh, progress, sizes, trace)
                                                 : make_staged_communicators(mesh, device, progress, sizes, trace);
  });
  return communicators;
}

}  // namespace computron
