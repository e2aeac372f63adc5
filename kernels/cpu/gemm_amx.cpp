// Compiled with AMX; nothing here runs unless usable_isa() says so.
#include "kernels/cpu/gemm_amx.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

namespace computron::kernels {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileDepth = 32;     // k of one tile
constexpr int kTileRowBytes = 64;  // 32 bfloat16 of x, 16 pairs of a weight, 16 float sums
constexpr int kKSlice = 256;
constexpr int kExpandedSlice = 64;         // of few rows
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
  asm volatile("" : : "m"(configuration));  // GCC 12 does not know that all of it is read
  _tile_loadconfig(&configuration);
}

// The hardware alone fetches ahead of tile loads at 0.87 of a plain read (one row, Xeon of family 6, model 167).
void ask_ahead(const std::byte* block) {
  constexpr int kLine = 64, kAheadBytes = 1024;
  const char* next = reinterpret_cast<const char*>(block) + kAheadBytes;
  for (int i = 0; i < kTileDepth / 2 * kUnitBytes; i += kLine) _mm_prefetch(next + i, _MM_HINT_T0);
}

// Sums of up to 16 rows (as configured) × a block of 64, from zero when `first`.
void load_sums(const float* tile, std::size_t stride, bool first) {
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, tile, stride);
    _tile_loadd(1, tile + 16, stride);
    _tile_loadd(2, tile + 32, stride);
    _tile_loadd(3, tile + 48, stride);
  }
}

void store_sums(float* tile, std::size_t stride) {
  _tile_stored(0, tile, stride);
  _tile_stored(1, tile + 16, stride);
  _tile_stored(2, tile + 32, stride);
  _tile_stored(3, tile + 48, stride);
}

// They go on by `depth` products. A block that is read once is asked for ahead.
template <bool kOnce>
void add_products(const std::byte* x, std::size_t x_stride, int depth, const std::byte* block) {
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
}

// One block of 64 columns.
class Block {
 public:
  Block(const PanelCall& call, const std::byte* weight, float* tile)
      : call_(call),
        weight_(weight),
        tile_(tile),
        x_stride_(static_cast<std::size_t>(call.depth) * 2),
        sum_stride_(static_cast<std::size_t>(call.columns) * 4) {}

  void multiply_few() const {
    load_sums(tile_, sum_stride_, /*first=*/true);
    call_.expansion == nullptr ? add_products<true>(call_.x, x_stride_, call_.depth, weight_) : add_expanded();
    store_sums(tile_, sum_stride_);
  }

  // Partial sums wait in the tile as float32, so each stays one chain in the order of k.
  void multiply_many(int& configured) const {
    for (int k = 0; k < call_.depth; k += kKSlice) {
      const int count = std::min(kKSlice, call_.depth - k);
      const std::byte* units =
          call_.expansion == nullptr ? weight_ + k / 2 * kUnitBytes : call_.expanded(weight_, k, count);
      for (int m = 0; m < call_.rows; m += kTileRows) {
        const int part = std::min(kTileRows, call_.rows - m);
        if (part != configured) configure(configured = part);
        float* tile = tile_ + static_cast<std::size_t>(m) * call_.columns;
        load_sums(tile, sum_stride_, k == 0);
        add_products<false>(call_.x + m * x_stride_ + k * 2, x_stride_, count, units);
        store_sums(tile, sum_stride_);
      }
    }
  }

 private:
  // Tiles do not multiply beside vectors that work: expanding a slice before the one before is multiplied gained
  // nothing (Xeon of family 6, model 167).
  void add_expanded() const {
    for (int k = 0; k < call_.depth; k += kExpandedSlice) {
      const int count = std::min(kExpandedSlice, call_.depth - k);
      add_products<false>(call_.x + k * 2, x_stride_, count, call_.expanded(weight_, k, count));
    }
  }

  const PanelCall& call_;
  const std::byte* weight_;
  float* tile_;
  std::size_t x_stride_, sum_stride_;
};

}  // namespace

// Up to 16 rows stream through a block once. More rows take it in pieces of 32 KiB, which stay in the first cache.
void gemm_amx(const PanelCall& call) {
  const bool few = call.rows <= kTileRows;
  const std::byte* weight = call.weight;
  int configured = 0;
  if (few) configure(configured = call.rows);
  for (int n = 0; n < call.columns; n += kRowBlock, weight += call.block_bytes(call.depth / 2 * kUnitBytes)) {
    const Block block(call, weight, call.tile + n);
    few ? block.multiply_few() : block.multiply_many(configured);
  }
  _tile_release();  // idle tiles make context switches dearer
}

void gemm_amx_block(const PanelCall& call, const std::byte* block, float* tile) {
  configure(call.rows);
  Block(call, block, tile).multiply_few();
  _tile_release();
}

}  // namespace computron::kernels
