#include "computron/comm/mesh.h"

#include <fmt/format.h>

namespace computron {

namespace {

MeshShape checked(MeshShape shape, int ranks) {
  if (shape.tp < 1 || shape.pp < 1 || static_cast<long long>(shape.tp) * shape.pp != ranks) {
    throw ConfigError(fmt::format("mesh of tp {} x pp {} does not fit {} ranks", shape.tp, shape.pp, ranks));
  }
  return shape;
}

}  // namespace

Mesh::Mesh(MeshShape shape, Communicator world)
    : shape(checked(shape, world.size())),
      rank(world.rank()),
      stage(shape.stage_of(rank)),
      t(shape.t_of(rank)),
      world(std::move(world)),
      tensor(this->world.split(stage, t)) {}

}  // namespace computron
