// Stands for the CUDA operations in a build without CUDA.
#include "computron/base/error.h"
#include "computron/ops/ops.h"

namespace computron {

std::unique_ptr<Ops> make_cuda_ops(Device& /*device*/, bool /*tf32*/) {
  throw NotCompiled("this build has no CUDA operations; configure with -DCOMPUTRON_CUDA=ON on a machine with nvcc");
}

}  // namespace computron
