// Products of quantised weights and more rows than skinny_gemm() takes: by the tiles of an expert, of which there is
// one.
#include <type_traits>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/tiled_expert.cuh"

namespace computron::kernels::cuda {
namespace {

// Few rows of the weight, so that there are blocks for all multiprocessors, and all rows of x, so that codes are read
// and turned into values once.
using RowsShape = Shape<4, 1, 1, kTiledRows / 8, 5, 2>;

ExpertGemmCall as_expert(const GemmCall& call) {
  ExpertGemmCall all{.x = call.x,
                     .x_by_row = false,
                     .dtype = call.dtype,
                     .depth = call.depth,
                     .routes = Routes::all_to_one(call.rows, kTiledRows),
                     .biases = call.bias,
                     .activation = call.activation,
                     .out = call.out,
                     .out_dtype = call.out_dtype,
                     .out_columns = call.out_columns,
                     .tiles = call.tiles,
                     .count = call.runs.count};
  for (int i = 0; i < call.runs.count; ++i) {
    const RowRun& run = call.runs.runs[i];
    all.runs[i] = {run.data, run.row_begin, run.rows, /*expert=*/0};
  }
  return all;
}

// Kernels take minutes to compile: of types that dense weights hardly have there are none.
template <class Codes, class Scales>
constexpr bool kIsTaken =
    !std::is_same_v<Codes, Fp4Codes> && (std::is_same_v<Scales, Bf16Scales> || std::is_same_v<Scales, F16Scales>);

}  // namespace

bool is_tiled(const QuantisedTiles& tiles, int rows, int depth) {
  if (!tiles.quantised() || rows > kTiledRows || depth % kPiece != 0) return false;
  bool is_taken = false;
  with_codes_and_scales(tiles, [&]<class Codes, class Scales>(Codes, Scales) { is_taken = kIsTaken<Codes, Scales>; });
  return is_taken;
}

void tiled_gemm(CUstream_st* stream, const GemmCall& call) {
  if (call.rows == 0 || call.runs.tiles == 0) return;
  const ExpertGemmCall all = as_expert(call);
  with_codes_and_scales(call.tiles, [&]<class Codes, class Scales>(Codes, Scales) {
    if constexpr (kIsTaken<Codes, Scales>) {
      launch_shape<CodedRowsOfWeight<Codes, Scales, RowsShape>, RowsShape>(stream, all);
    }
  });
}

}  // namespace computron::kernels::cuda
