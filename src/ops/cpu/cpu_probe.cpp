#include "computron/ops/cpu_probe.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/read.h"

namespace computron {

std::string instruction_set() { return std::string(kernels::name_of(kernels::usable_isa())); }

void read_memory(const std::byte* data, std::size_t bytes) { kernels::read(data, bytes); }

}  // namespace computron
