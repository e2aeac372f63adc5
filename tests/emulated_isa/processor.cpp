// Runs on every processor: what the emulated one has, and its tiles.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "tests/emulated_isa/instructions.h"

namespace computron::emulated_isa {
namespace {

[[noreturn]] void stop(const std::string& why) {
  fmt::print(stderr, "emulated instructions: {}\n", why);
  std::abort();
}

constexpr int kTiles = 8, kTileRows = 16;

struct Tile {
  int rows = 0, row_bytes = 0;
  std::array<std::byte, kTileRows * kTileRowBytes> data{};

  std::byte* row(int i) { return data.data() + i * kTileRowBytes; }
};
thread_local std::optional<std::array<Tile, kTiles>> tiles;  // while configured

Tile& tile_at(int tile) {
  if (!tiles) stop("a tile is used while none is configured");
  Tile& found = tiles->at(static_cast<std::size_t>(tile));
  if (found.rows == 0) stop(fmt::format("tile {} is used, which the configuration leaves out", tile));
  return found;
}

}  // namespace

void load_tile_configuration(const void* operand) {
  std::array<std::uint8_t, 64> bytes;
  std::memcpy(bytes.data(), operand, bytes.size());
  if (bytes[0] != 1 || bytes[1] != 0) stop(fmt::format("LDTILECFG of palette {} from row {}", bytes[0], bytes[1]));
  const auto is_zero = [](std::uint8_t byte) { return byte == 0; };
  // Reserved bytes, and those of tiles that there are not.
  if (!std::all_of(&bytes[2], &bytes[16], is_zero) || !std::all_of(&bytes[32], &bytes[48], is_zero) ||
      !std::all_of(&bytes[56], bytes.data() + bytes.size(), is_zero)) {
    stop("LDTILECFG whose reserved bytes are not 0");
  }
  tiles.emplace();
  for (std::size_t i = 0; i < kTiles; ++i) {
    Tile& tile = (*tiles)[i];
    tile.row_bytes = bytes[16 + 2 * i] | bytes[17 + 2 * i] << 8;
    tile.rows = bytes[48 + i];
    if (tile.rows > kTileRows || tile.row_bytes > kTileRowBytes || (tile.rows == 0) != (tile.row_bytes == 0)) {
      stop(fmt::format("LDTILECFG gives tile {} {} rows of {} bytes", i, tile.rows, tile.row_bytes));
    }
  }
}

void release_tiles() { tiles.reset(); }

void zero_tile(int tile) { tile_at(tile).data = {}; }

void load_tile(int tile, const void* from, std::size_t stride) {
  Tile& to = tile_at(tile);
  to.data = {};
  for (int i = 0; i < to.rows; ++i) {
    std::memcpy(to.row(i), static_cast<const std::byte*>(from) + static_cast<std::size_t>(i) * stride,
                static_cast<std::size_t>(to.row_bytes));
  }
}

void store_tile(int tile, void* to, std::size_t stride) {
  Tile& from = tile_at(tile);
  for (int i = 0; i < from.rows; ++i) {
    std::memcpy(static_cast<std::byte*>(to) + static_cast<std::size_t>(i) * stride, from.row(i),
                static_cast<std::size_t>(from.row_bytes));
  }
}

void multiply_tiles(int sums, int a, int b) {
  Tile &to = tile_at(sums), &left = tile_at(a), &right = tile_at(b);
  if (sums == a || sums == b || a == b) stop("TDPBF16PS of the same tile twice");
  if (to.row_bytes % 4 != 0 || left.row_bytes % 4 != 0 || to.rows != left.rows || to.row_bytes != right.row_bytes ||
      left.row_bytes / 4 != right.rows) {
    stop(fmt::format("TDPBF16PS of {} x {} and {} x {} bytes into {} x {}", left.rows, left.row_bytes, right.rows,
                     right.row_bytes, to.rows, to.row_bytes));
  }
  add_tile(to.data.data(), to.rows, to.row_bytes / 4, left.data.data(), right.data.data(), right.rows);
}

bool supports(const char* feature) {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    std::fputs("SKIPPED: a processor without AVX-512 cannot emulate what goes beyond it\n", stdout);
    std::fflush(stdout);
    std::_Exit(77);
  }
  const std::string_view name = feature;
  if (name == "avx512vbmi2") return __builtin_cpu_supports("avx512vbmi2");
  // VNNI may not be there, but what chooses kernels by bfloat16 does not use it.
  constexpr std::string_view kThere[] = {"avx512f",    "avx512bw",   "avx512dq",  "avx512vl",
                                         "avx512vnni", "avx512bf16", "avx512vbmi"};
  if (std::ranges::find(kThere, name) == std::end(kThere)) stop(fmt::format("it is asked for {}", name));
  return true;
}

int cpuid(unsigned leaf, unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  constexpr std::string_view kVendor = "EmulatedTile";
  *a = *b = *c = *d = 0;
  if (leaf == 0) {
    std::memcpy(b, &kVendor[0], 4);
    std::memcpy(d, &kVendor[4], 4);
    std::memcpy(c, &kVendor[8], 4);
  } else if (leaf == 7) {
    *d = kAmxBf16 | kAmxTile;
  }
  return 1;
}

long allow_tiles(long, long, long) { return 0; }

}  // namespace computron::emulated_isa
