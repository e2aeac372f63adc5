#include "computron/ops/cpu_probe.h"

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/quantised_panel.h"
#include "kernels/cpu/read.h"

namespace computron {

std::string instruction_set() { return std::string(kernels::name_of(kernels::usable_isa())); }

std::string arithmetic_of(WeightType type) {
  if (type.quantised()) type.values = kernels::gemm_input_dtype(type);  // as CpuOps::weight_type()
  const bool narrow = kernels::usable_isa() == kernels::Isa::kAvx2;
  if (kernels::multiplies_integers(type)) return narrow ? "integers by 256 bits" : "integers by 512 bits";
  if (type.values != DType::kBF16 || !kernels::multiplies_bf16()) {
    return narrow ? "float32 by 256 bits" : "float32 by 512 bits";
  }
  return kernels::usable_isa() == kernels::Isa::kAmx ? "bfloat16 in tiles" : "bfloat16";
}

void read_memory(const std::byte* data, std::size_t bytes) { kernels::read(data, bytes); }

}  // namespace computron
