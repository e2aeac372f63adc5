// What the operations of the CUDA device have in common.
#pragma once

#include <cstdint>
#include <span>

#include "computron/ops/ops.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/quantised_tiles.h"
#include "src/device/cuda/cuda_check.h"
#include "src/device/cuda/cuda_stream.h"

namespace computron {

template <class T>
T* as(const Activations& a) {
  return reinterpret_cast<T*>(a.data);
}

inline void wait_for(CudaComputeStream& stream, const Event* ready) {
  if (ready != nullptr) stream.wait(*ready);
}
template <class Panel>
void wait_for_all(CudaComputeStream& stream, std::span<const Panel> panels) {
  const Event* last = nullptr;
  for (const Panel& panel : panels) {
    if (panel.ready != last) wait_for(stream, panel.ready);
    last = panel.ready;
  }
}

inline void check_launch(const char* operation) { check_cuda(cudaGetLastError(), operation); }

// Enqueues what `kernels(handle)` launches.
template <class Kernels>
void launch(CudaComputeStream& stream, const char* operation, Kernels&& kernels) {
  kernels(stream.handle());
  check_launch(operation);
}

template <class Body>
void run(CudaComputeStream& stream, const char* operation, int rows, int columns, const Body& body) {
  launch(stream, operation, [&](cudaStream_t on) { kernels::cuda::for_each_element(on, rows, columns, body); });
}

inline kernels::cuda::QuantisedTiles tiles_of(const Weight& weight) {
  if (!weight.type.quantised()) return {};
  ensure(weight.type.values == DType::kBF16, "values of quantised weights are bf16 on a CUDA device");
  return {weight.type, weight.in};
}

inline bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }
// Whether a body may take four columns of these at once.
inline bool in_fours(const Activations& a, const Activations& b) {
  return a.columns % 4 == 0 && b.columns % 4 == 0 && is_aligned(a.data) && is_aligned(b.data);
}

}  // namespace computron
