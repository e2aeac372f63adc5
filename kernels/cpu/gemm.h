// x · wᵀ for a packed weight, by whatever this processor does best.
//
//   float32    AVX-512 or AVX2 (gemm_panels)
//   float16    AVX-512 or AVX2 (gemm_panels); rows of float32
//   bfloat16   AMX (gemm_amx), else AVX512_BF16 (gemm_panels), else as float16
//   quantised  int8, int4 and fp4 in integers on x86 with AVX2 alone, or AVX-512 that has VNNI but not BF16
//              (gemm_integers); else as their values, bfloat16 where that has products of its own, else float32, to
//              which slices are expanded meanwhile (expand.h); few rows with AVX-512, for bfloat16 values with BF16 and
//              VBMI: without a copy of the values (gemm_codes); but for fp8, few rows with AMX: in runs
//              (gemm_code_runs)
//
// Every kernel adds the products of one result, or of integers the sums of neighbouring ones, in the order of k in one
// chain, so a row has the same bits whatever rows are beside it and however the weight is cut. A library's kernels do
// not: oneDNN 2.6 cuts k into blocks by shape, from depth 1000 on, and was no faster (perf/README.md, "Gemm").
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "computron/base/types.h"
#include "computron/base/weight_type.h"
#include "kernels/cpu/gemm_integers.h"
#include "kernels/cpu/gemm_panels.h"

namespace computron::kernels {

// A call takes at most this many rows of x.
inline constexpr int kMaxGemmRows = 256;

enum class GemmKernel { kAvx2, kAvx512, kVnni, kAmx };

// "avx2", "avx512", "vnni", "amx".
std::string_view name_of(GemmKernel kernel);

// Whether this processor (usable_isa) multiplies bfloat16 by bfloat16; else such weights are widened and multiplied as
// float32, by rows of float32.
bool multiplies_bf16();

// Those that multiply weights of `type` on this processor, the fastest last; empty for quantised weights whose values
// are bfloat16 where !multiplies_bf16(). All give the same bits.
std::vector<GemmKernel> gemm_kernels(const WeightType& type);

// How a weight is multiplied: a matter of time alone.
struct GemmChoice {
  GemmKernel kernel = GemmKernel::kAvx2;
  PanelBlocking blocking;

  bool operator==(const GemmChoice&) const = default;
};

// Without a measurement (gemm_measure.h). Requires that gemm_kernels(type) is not empty.
GemmChoice default_gemm(const WeightType& type);

// What the rows are that weights of `type` are multiplied with.
DType gemm_input_dtype(const WeightType& type);

// One thread's GEMM, with its scratch memory.
class Gemm {
 public:
  // What calls of run() multiply, with weights of `type`, until another call. x: [rows, depth] of
  // gemm_input_dtype(type), to stay as it is meanwhile; rows: at most kMaxGemmRows.
  void take_rows(const WeightType& type, const std::byte* x, int rows, int depth);

  // tile[m, n] = Σ_k x[m, k] weight[n, k]. choice.kernel: of gemm_kernels(type); weight: `columns` rows (a multiple of
  // 64) of `type` packed; tile: [rows, columns], whose contents do not matter behind a result of sums.
  void run(const GemmChoice& choice, const std::byte* weight, int columns, float* tile,
           const PanelResult* result = nullptr);

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct alignas(64) Scratch {
    std::byte bytes[kPanelScratch];  // of gemm_panels
  };

  void pad_depth();
  void take_integers();

  WeightType type_;
  const std::byte* x_ = nullptr;  // the depth padded as packed; not of integers
  int rows_ = 0, depth_ = 0;
  IntegerRows integers_;              // x of integers
  std::vector<Line> integer_memory_;  // of integers_
  std::vector<float> steps_;          // of integers_
  std::vector<std::byte> padded_;     // x with its depth padded by zeros; rarely needed
  PackedRows packed_rows_{};          // x, where kernels need it so
  std::vector<float> packed_memory_;  // of packed_rows_
  std::vector<std::byte> pairs_;      // of gemm_code_runs
  std::unique_ptr<Scratch> scratch_ = std::make_unique<Scratch>();
};

}  // namespace computron::kernels
