// The profiler of the accelerator's tools.
#pragma once

#include "computron/base/trace.h"

namespace computron {

// Spans as NVTX ranges of the domain "computron", which Nsight Systems shows beside what the GPU does: named as in the
// trace, with their track as category and their step (of others the first number) as payload. They cost next to
// nothing while no tool is attached. Null in a build without CUDA. Lives as long as the program.
TraceRanges* profiler_ranges();

}  // namespace computron
