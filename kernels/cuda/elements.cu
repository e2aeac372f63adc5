#include "kernels/cuda/elements.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/overlap.cuh"

namespace computron::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxGridRows = 65535;

template <class Body>
__global__ void __launch_bounds__(kThreads) elements_kernel(int rows, int columns, const __grid_constant__ Body body) {
  begin_overlapped();
  for (int r = static_cast<int>(blockIdx.y); r < rows; r += static_cast<int>(gridDim.y)) {
    const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (c < columns) body(r, c);
  }
}

}  // namespace

template <class Body>
void for_each_element(CUstream_st* stream, int rows, int columns, const Body& body) {
  if (rows == 0 || columns == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(columns, kThreads)),
                  static_cast<unsigned>(rows < kMaxGridRows ? rows : kMaxGridRows));
  launch_overlapped(grid, kThreads, 0, stream, elements_kernel<Body>, rows, columns, body);
}

#define COMPUTRON_INSTANTIATE(...) \
  template void for_each_element<__VA_ARGS__>(CUstream_st*, int, int, const __VA_ARGS__&)

COMPUTRON_INSTANTIATE(Embed<PlainRows<float>>);
COMPUTRON_INSTANTIATE(Embed<PlainRows<BFloat16>>);
COMPUTRON_INSTANTIATE(Embed<PlainRows<Float16>>);
COMPUTRON_INSTANTIATE(Embed<QuantisedTiles>);
COMPUTRON_INSTANTIATE(AddRows);
COMPUTRON_INSTANTIATE(AddResidual);
COMPUTRON_INSTANTIATE(CopyRows<float, float>);
COMPUTRON_INSTANTIATE(CopyRows<float, BFloat16>);
COMPUTRON_INSTANTIATE(CopyRows<float, Float16>);
COMPUTRON_INSTANTIATE(CopyRows<BFloat16, BFloat16>);
COMPUTRON_INSTANTIATE(CopyRows<Float16, Float16>);
COMPUTRON_INSTANTIATE(ActivateGate<float, float>);
COMPUTRON_INSTANTIATE(ActivateGate<float, BFloat16>);
COMPUTRON_INSTANTIATE(ActivateGate<BFloat16, BFloat16>);
COMPUTRON_INSTANTIATE(ActivateGate<float, Float16>);
COMPUTRON_INSTANTIATE(ActivateGate<Float16, Float16>);
COMPUTRON_INSTANTIATE(ActivateGateFours<float, float>);
COMPUTRON_INSTANTIATE(ActivateGateFours<float, BFloat16>);
COMPUTRON_INSTANTIATE(ActivateGateFours<BFloat16, BFloat16>);
COMPUTRON_INSTANTIATE(ActivateGateFours<float, Float16>);
COMPUTRON_INSTANTIATE(ActivateGateFours<Float16, Float16>);
COMPUTRON_INSTANTIATE(AtExperts<ActivateGate<float, float>>);
COMPUTRON_INSTANTIATE(AtExperts<ActivateGate<float, BFloat16>>);
COMPUTRON_INSTANTIATE(AtExperts<ActivateGate<float, Float16>>);
COMPUTRON_INSTANTIATE(AtExperts<ActivateGateFours<float, float>>);
COMPUTRON_INSTANTIATE(AtExperts<ActivateGateFours<float, BFloat16>>);
COMPUTRON_INSTANTIATE(AtExperts<ActivateGateFours<float, Float16>>);
COMPUTRON_INSTANTIATE(Mix);
COMPUTRON_INSTANTIATE(MixFours);
COMPUTRON_INSTANTIATE(BiasActivate<float>);
COMPUTRON_INSTANTIATE(BiasActivatePieces<float>);
COMPUTRON_INSTANTIATE(BiasActivate<BFloat16>);
COMPUTRON_INSTANTIATE(BiasActivatePieces<BFloat16>);
COMPUTRON_INSTANTIATE(BiasActivate<Float16>);
COMPUTRON_INSTANTIATE(BiasActivatePieces<Float16>);
COMPUTRON_INSTANTIATE(ScatterAdd);
COMPUTRON_INSTANTIATE(ScatterAddInOrder);
COMPUTRON_INSTANTIATE(ScatterAddRuns);
COMPUTRON_INSTANTIATE(Scale);
COMPUTRON_INSTANTIATE(AddGated);
COMPUTRON_INSTANTIATE(SoftCap);
COMPUTRON_INSTANTIATE(RotaryAngles);
COMPUTRON_INSTANTIATE(ApplyRope);

}  // namespace computron::kernels::cuda
