#include "computron/ops/cpu_probe.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/read.h"

namespace computron {

std::string onednn_library() { return kernels::onednn_library(); }

int vector_bits() { return kernels::best_isa() == kernels::Isa::kAvx512 ? 512 : 256; }

void read_memory(const std::byte* data, std::size_t bytes) { kernels::read(data, bytes); }

}  // namespace computron
