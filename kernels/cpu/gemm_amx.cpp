// Compiled with AMX; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/gemm_amx.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/pack.h"

namespace computron::kernels {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileDepth = 32;     // k of one tile
constexpr int kTileRowBytes = 64;  // 32 bfloat16 of x, 16 pairs of a weight, 16 float sums
constexpr int kKSlice = 256;
constexpr int kUnitBytes = 4 * kRowBlock;  // a pair of k of all rows of a block

// LDTILECFG's operand: palette 1, and bytes a row and rows of each tile.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfiguration) == 64);

// Sums in tiles 0..3 and x in tile 4 have `rows` rows; weights in tiles 5..7 always 16.
void configure(int rows) {
  TileConfiguration configuration;
  for (int tile = 0; tile < 8; ++tile) {
    configuration.row_bytes[tile] = kTileRowBytes;
    configuration.rows[tile] = static_cast<std::uint8_t>(tile < 5 ? rows : kTileRows);
  }
  _tile_loadconfig(&configuration);
}

// The hardware alone fetches ahead of tile loads at 0.87 of a plain read (one row, Xeon of family 6, model 167).
void ask_ahead(const std::byte* block) {
  constexpr int kLine = 64, kAheadBytes = 1024;
  const char* next = reinterpret_cast<const char*>(block) + kAheadBytes;
  for (int i = 0; i < kTileDepth / 2 * kUnitBytes; i += kLine) _mm_prefetch(next + i, _MM_HINT_T0);
}

// Up to 16 rows (as configured) × a block of 64 go on by `depth` products, from zero when `first`. Partial sums wait in
// the tile as float32, so each stays one chain in the order of k. A block that is read once is asked for ahead.
template <bool kOnce>
void multiply(const std::byte* x, std::size_t x_stride, int depth, const std::byte* block, float* tile, int columns,
              bool first) {
  const std::size_t sum_stride = static_cast<std::size_t>(columns) * 4;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, tile, sum_stride);
    _tile_loadd(1, tile + 16, sum_stride);
    _tile_loadd(2, tile + 32, sum_stride);
    _tile_loadd(3, tile + 48, sum_stride);
  }
  for (int k = 0; k < depth; k += kTileDepth, x += kTileRowBytes, block += kTileDepth / 2 * kUnitBytes) {
    if constexpr (kOnce) ask_ahead(block);
    _tile_loadd(4, x, x_stride);
    _tile_loadd(5, block, kUnitBytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, block + kTileRowBytes, kUnitBytes);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, block + 2 * kTileRowBytes, kUnitBytes);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, block + 3 * kTileRowBytes, kUnitBytes);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, tile, sum_stride);
  _tile_stored(1, tile + 16, sum_stride);
  _tile_stored(2, tile + 32, sum_stride);
  _tile_stored(3, tile + 48, sum_stride);
}

}  // namespace

// Up to 16 rows stream through a block once. More rows take it in pieces of 32 KiB, which stay in the first cache.
void gemm_amx(const std::byte* x, int rows, int depth, const std::byte* weight, int columns, float* tile) {
  const std::size_t x_stride = static_cast<std::size_t>(depth) * 2;
  const int step = rows > kTileRows ? kKSlice : depth;
  int configured = 0;
  for (int n = 0; n < columns; n += kRowBlock, weight += packed_bytes(kRowBlock, depth, DType::kBF16)) {
    for (int k = 0; k < depth; k += step) {
      for (int m = 0; m < rows; m += kTileRows) {
        const int part = std::min(kTileRows, rows - m);
        if (part != configured) configure(configured = part);
        const auto go_on = rows > kTileRows ? multiply<false> : multiply<true>;
        go_on(x + m * x_stride + k * 2, x_stride, std::min(step, depth - k), weight + k / 2 * kUnitBytes,
              tile + static_cast<std::size_t>(m) * columns + n, columns, k == 0);
      }
    }
  }
  _tile_release();  // idle tiles make context switches dearer
}

}  // namespace computron::kernels
