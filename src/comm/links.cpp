#include "computron/comm/links.h"

#include "computron/comm/agreed.h"
#include "src/comm/staged.h"

namespace computron {
namespace {

Links make_host_links(const Mesh& mesh, Progress& progress, const LinkSizes& sizes, Trace* trace) {
  const bool alone = mesh.shape.tp == 1;
  return {make_mpi_stage_transfer(mesh, progress, sizes.max_count, sizes.buffers, trace),
          alone ? make_local_all_reduce() : make_mpi_all_reduce(mesh.tensor, progress, sizes.max_count, trace)};
}

Links make_staged_links(const Mesh& mesh, Device& device, Progress& progress, const LinkSizes& sizes, Trace* trace) {
  Links host = make_host_links(mesh, progress, sizes, trace);
  if (mesh.shape.tp > 1) {
    host.all_reduce = make_staged_all_reduce(std::move(host.all_reduce), device, progress, sizes.max_count);
  }
  if (mesh.shape.pp > 1) {
    host.transfer = make_staged_stage_transfer(std::move(host.transfer), device, progress, sizes.max_count);
  }
  return host;
}

}  // namespace

Links make_links(LinkKind kind, const Mesh& mesh, Device& device, Progress& progress, const LinkSizes& sizes,
                 Trace* trace) {
  if (kind == LinkKind::kDirect) return make_nccl_links(mesh, device, progress, sizes, trace);
  Links links;
  agreed(mesh.world, [&] {
    links = kind == LinkKind::kHost ? make_host_links(mesh, progress, sizes, trace)
                                    : make_staged_links(mesh, device, progress, sizes, trace);
  });
  return links;
}

}  // namespace computron
