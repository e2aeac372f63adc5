#include "kernels/cpu/activation.h"

#include "computron/base/error.h"
#include "kernels/cpu/activation_kernels.h"
#include "kernels/cpu/isa.h"

namespace computron::kernels {
namespace {

const ActivationKernels& widest() {
  static const ActivationKernels kernels = usable_isa() >= Isa::kAvx512 ? activation_avx512() : activation_avx2();
  return kernels;
}

void check_written(DType dtype) { ensure(dtype != DType::kF16, "a CPU kernel was given float16"); }

}  // namespace

void activate(Activation activation, const ActivationTile& tile) {
  check_written(tile.dtype);
  widest().activate(activation, tile);
}

void activate_gate(const Gate& rule, const float* gate, const float* up, int n, std::byte* out, DType dtype) {
  check_written(dtype);
  widest().activate_gate(rule, gate, up, n, out, dtype);
}

void soft_cap(float cap, int n, float* inout) { widest().soft_cap(cap, n, inout); }

void add_gated(float gate, const float* x, int n, float* inout) { widest().add_gated(gate, x, n, inout); }

}  // namespace computron::kernels
