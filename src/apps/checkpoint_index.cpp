// The program `computron-checkpoint-index FILE`, which `computron` starts for every checkpoint it reads (include/
// computron/checkpoint/index_helper.h). A program of its own because it starts and ends with every checkpoint: without
// MPI, CUDA and the kernels it takes a tenth of the time to be loaded, and there is less for a hostile file to reach.
#include <cstdio>
#include <exception>

#include "computron/base/error.h"
#include "computron/checkpoint/index_helper.h"

int main(int argc, char** argv) try {
  if (argc == 2) return computron::answer_with_index(argv[1]);
  std::fprintf(stderr, "computron-checkpoint-index FILE: for computron's own use, see computron inspect\n");
  return static_cast<int>(computron::ExitCode::kUsage);
} catch (const std::exception&) {
  return static_cast<int>(computron::ExitCode::kInternal);
}
