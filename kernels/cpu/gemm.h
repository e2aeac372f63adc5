// x · wᵀ for a packed weight, by whatever this processor does best.
//
//   float32    oneDNN with AVX-512, else own AVX2 (gemm_avx2)
//   float16    own (gemm_f16): AVX-512, else AVX2; rows of float32
//   bfloat16   own AMX (gemm_amx), else oneDNN with AVX512_BF16, else not at all: such weights are kept in float32
//
// Every kernel adds the products of one result in the order of k in one chain, so a row has the same bits whatever
// rows are beside it and however the weight is cut.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "computron/base/types.h"

namespace computron::kernels {

enum class GemmKernel { kNone, kAvx2, kAvx512, kOneDnn, kAmx };

// The kernel for `dtype` on this processor; kNone: no kernel multiplies this type here.
GemmKernel best_gemm_kernel(DType dtype);

// What the rows are that weights of `dtype` are multiplied with.
constexpr DType gemm_input_dtype(DType dtype) { return dtype == DType::kF16 ? DType::kF32 : dtype; }

// A call takes at most this many rows of x.
inline constexpr int kMaxGemmRows = 256;
// oneDNN's code is made for a fixed number of rows; `rows` ≤ kMaxGemmRows is rounded up to one of 16 numbers.
int row_class(int rows);

// "oneDNN 2.6.3".
std::string onednn_library();

class OneDnnGemm;

// One thread's GEMM with its own oneDNN primitives, made when first needed (0.2 ms each). Used by the thread that made
// it, which it holds to one OpenMP thread.
class Gemm {
 public:
  explicit Gemm(GemmKernel f32 = best_gemm_kernel(DType::kF32), GemmKernel bf16 = best_gemm_kernel(DType::kBF16),
                GemmKernel f16 = best_gemm_kernel(DType::kF16));
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // tile[m, n] = Σ_k x[m, k] weight[n, k] for m < rows. x: [rows, depth] of gemm_input_dtype(dtype), readable up to
  // row_class(rows); weight: `columns` rows (a multiple of 64) of `dtype` packed; tile: [row_class(rows), columns],
  // whose rows past `rows` are scratch.
  void run(DType dtype, const std::byte* x, int rows, int depth, const std::byte* weight, int columns, float* tile);

 private:
  const std::byte* pad_depth(DType dtype, const std::byte* x, int rows, int depth);
  GemmKernel kernel_for(DType dtype) const;
  void run_f16(const float* x, int rows, int depth, const std::byte* weight, int columns, float* tile);

  GemmKernel f32_, bf16_, f16_;
  std::unique_ptr<OneDnnGemm> onednn_;
  std::vector<std::byte> padded_;  // x with its depth padded by zeros; rarely needed
  std::vector<float> widened_;     // of gemm_f16
};

}  // namespace computron::kernels
