// All ranks refuse the job, and rank 1 hangs instead of ending: rank 0 must end with the refusal's code all the same.
#include <unistd.h>

#include "computron/comm/agreed.h"
#include "src/cli/mpi_command.h"

namespace computron {
namespace {

constexpr double kLimit_s = 0.5;

void refuse(const Communicator& world) {
  try {
    agreed(world, [] { throw ConfigError("planted"); });
  } catch (const VoteError&) {
    while (world.rank() == 1) pause();
    throw;
  }
}

}  // namespace
}  // namespace computron

int main() {
  computron::run_under_mpi(
      /*quiet=*/true, [](const computron::Communicator& world) { computron::refuse(world); }, computron::kLimit_s);
}
