// oneDNN's matmul over packed weights (pack.h), single-threaded.
#pragma once

#include <cstddef>
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "computron/base/types.h"

namespace computron::kernels {

// One thread's engine, stream, primitives and scratchpad. OpenMP is held to one thread for the thread that makes it.
class OneDnnGemm {
 public:
  OneDnnGemm();

  // Whether oneDNN has more than its reference kernel (hundreds of times slower) for `dtype` on this processor.
  static bool fast(DType dtype);

  // tile[rows, columns] = x[rows, depth] · weightᵀ; depth padded as packed, columns a multiple of 64. Throws Error
  // when oneDNN would run its reference kernel.
  void run(DType dtype, const std::byte* x, int rows, int depth, const std::byte* weight, int columns, float* tile);

 private:
  struct Primitive {
    dnnl::matmul matmul;
    dnnl::memory x, weight, tile;
    std::unordered_map<int, dnnl::memory> arguments;  // the three above and the scratchpad
  };
  Primitive& primitive(DType dtype, int rows, int depth, int columns);
  Primitive make(DType dtype, int rows, int depth, int columns);
  void reserve_scratchpad(std::size_t bytes);

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<std::uint64_t, Primitive> primitives_;  // by packed (dtype, rows, depth, columns)
  std::vector<std::byte> scratchpad_;                        // as large as any primitive wants
};

}  // namespace computron::kernels
