// Stands for the CUDA device in a build without one.
#include "computron/base/error.h"
#include "computron/device/device.h"
#include "computron/device/profiler.h"

namespace computron {

std::unique_ptr<Device> make_cuda_device(int /*local_rank*/) {
  throw NotCompiled("cuda: this build has no CUDA device; configure with -DCOMPUTRON_CUDA=ON on a machine with nvcc");
}

bool cuda_device_present() noexcept { return false; }
std::string accelerator_library() { return {}; }
TraceRanges* profiler_ranges() { return nullptr; }

}  // namespace computron
