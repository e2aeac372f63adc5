// Matrix products by cuBLASLt, each by one algorithm chosen once and kept.
//
// The choice depends on the whole weight's shape, the types, the alignment and the class of rows of x, never on the
// piece of the weight or on what ran before: one process computes a piece with the same bits every time. Sums over
// parts of the depth are made in a fixed order, in one fixed workspace, on one stream.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "computron/base/types.h"
#include "src/device/cuda/cuda_stream.h"

namespace computron {

// out[m, n] = Σ_k x[m, k] weight[n, k] + bias[n], where asked for through relu, for n < run_rows.
struct LibraryCall {
  const std::byte* x = nullptr;       // [rows, depth] of `dtype`
  const std::byte* weight = nullptr;  // [run_rows, depth] of `dtype`
  DType dtype = DType::kF32;
  int rows = 0;
  int depth = 0;
  int run_rows = 0;
  int weight_rows = 0;              // of the whole weight; the output has as many columns
  const std::byte* bias = nullptr;  // [run_rows] of `out_dtype`, at a multiple of kBiasAlignment; null: none
  bool relu = false;
  std::byte* out = nullptr;  // its first column
  DType out_dtype = DType::kF32;
};

class LibraryGemm {
 public:
  // Of what is told of a bias: algorithms for less have read sixteen bytes of it at once all the same
  // (github.com/pytorch/pytorch/pull/194497), and such an error is for good.
  static constexpr std::size_t kBiasAlignment = 16;

  // Borrows the workspace, which lies at a multiple of 256.
  LibraryGemm(bool tf32, std::byte* workspace, std::size_t workspace_bytes);

  // False, and nothing is done: the library has no algorithm for this. x and weight lie at multiples of 16 bytes, and
  // so do their rows.
  bool run(CudaComputeStream& stream, const LibraryCall& call);

 private:
  struct Destroy {
    void operator()(cublasLtHandle_t handle) const;
  };
  // Types, bias, relu, depth, weight rows, class of rows, alignment of the output.
  using Key = std::tuple<DType, DType, bool, bool, int, int, int, int>;

  bool multiply(CudaComputeStream& stream, const LibraryCall& call, const cublasLtMatmulAlgo_t& algorithm);
  std::optional<cublasLtMatmulAlgo_t> choose(const LibraryCall& call, int row_class, int alignment);

  std::unique_ptr<cublasLtContext, Destroy> handle_;
  bool tf32_;
  std::byte* workspace_;
  std::size_t workspace_bytes_;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms_;
};

}  // namespace computron
