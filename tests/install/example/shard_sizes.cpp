// shard_sizes FILE.h5 TP PP: how many weights each rank of such a mesh would hold.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "computron/checkpoint/reader.h"
#include "computron/model/config.h"
#include "computron/model/shard_plan.h"

namespace {

std::size_t weights_of(const computron::ShardPlan& plan) {
  std::size_t weights = 0;
  for (const computron::ShardTensor& tensor : plan.tensors) {
    if (tensor.same_as < 0) weights += static_cast<std::size_t>(tensor.rows) * static_cast<std::size_t>(tensor.columns);
  }
  return weights;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::fprintf(stderr, "usage: shard_sizes FILE.h5 TP PP\n");
    return 64;
  }
  const computron::CheckpointIndex index = computron::read_checkpoint_index(argv[1]);
  const computron::ModelConfig config = computron::ModelConfig::from_json(index.config_json);
  const computron::MeshShape mesh{.tp = std::atoi(argv[2]), .pp = std::atoi(argv[3])};
  for (int stage = 0; stage < mesh.pp; ++stage) {
    const auto plan = computron::ShardPlan::make(config, mesh, stage);
    std::printf("stage %d: %zu weights on each of %d ranks\n", stage, weights_of(plan), mesh.tp);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "shard_sizes: %s\n", error.what());
  return 1;
}
