// Codes go eight k of a row at a time, which is a piece of a tile; what a source has of a piece in part, one by one.
#include "src/ops/cuda/tile_packer.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace computron {
namespace {

using kernels::cuda::QuantisedTiles;

constexpr int kPieceK = QuantisedTiles::kPieceK;
constexpr int kBlockRows = 64;  // a line of a turned source

std::uint64_t load_codes(const std::byte* from) {
  std::uint64_t codes;
  std::memcpy(&codes, from, sizeof(codes));
  return codes;
}

// Eight rows of eight bytes change places ("Hacker's Delight", 7-3).
void transpose(std::uint64_t (&a)[8]) {
  const auto swap = [&](int distance, std::uint64_t mask) {
    for (int i = 0; i < 8; ++i) {
      if (i & distance) continue;
      const std::uint64_t other = (a[i] >> 8 * distance ^ a[i + distance]) & mask;
      a[i + distance] ^= other;
      a[i] ^= other << 8 * distance;
    }
  };
  swap(4, 0x00000000ffffffff);
  swap(2, 0x0000ffff0000ffff);
  swap(1, 0x00ff00ff00ff00ff);
}

// Every second byte's lower half, side by side.
std::uint32_t every_second(std::uint64_t codes) {
  codes &= 0x000f000f000f000f;
  codes |= codes >> 12;
  return static_cast<std::uint32_t>((codes & 0xff) | (codes >> 24 & 0xff00));
}

void store_piece(std::byte* to, int bits, std::uint64_t codes) {
  if (bits == 8) {
    std::memcpy(to, &codes, sizeof(codes));
    return;
  }
  const std::uint32_t word = every_second(codes) | every_second(codes >> 8) << 16;
  std::memcpy(to, &word, sizeof(word));
}

// Another thread may hold the code that shares the byte.
void store_code(std::byte* piece, int bits, int k, std::byte code) {
  if (bits == 8) {
    piece[k % kPieceK] = code;
    return;
  }
  const int nibble = QuantisedTiles::nibble_at(k);
  const unsigned value = (std::to_integer<unsigned>(code) & 15) << nibble % 8;
  auto& byte = reinterpret_cast<std::uint8_t&>(piece[nibble / 8]);
  std::atomic_ref(byte).fetch_or(static_cast<std::uint8_t>(value), std::memory_order_relaxed);
}

class CodePacker {
 public:
  CodePacker(std::byte* panel, const QuantisedTiles& tiles, int row, int column, const std::byte* source,
             std::size_t row_stride, std::size_t column_stride)
      : panel_(panel),
        tiles_(tiles),
        row_(row),
        column_(column),
        source_(source),
        row_stride_(row_stride),
        column_stride_(column_stride) {}

  // Rows [row, row_end) of k in [k, k_end), which lie in one piece.
  void pack(int row, int row_end, int k, int k_end) const {
    if (k_end - k == kPieceK && column_stride_ == 1) {
      for (; row < row_end; ++row) store_piece(piece(row, k), tiles_.bits(), load_codes(from(row, k)));
    } else if (k_end - k == kPieceK && row_stride_ == 1) {
      for (; row + kPieceK <= row_end; row += kPieceK) pack_turned(row, k);
    }
    for (; row < row_end; ++row) {
      for (int i = k; i < k_end; ++i) store_code(piece(row, i), tiles_.bits(), i, *from(row, i));
    }
  }

 private:
  std::byte* piece(int row, int k) const { return panel_ + tiles_.piece_at(row, k); }
  const std::byte* from(int row, int k) const {
    return source_ + (row - row_) * row_stride_ + (k - column_) * column_stride_;
  }
  // Eight rows.
  void pack_turned(int row, int k) const {
    std::uint64_t codes[kPieceK];
    for (int i = 0; i < kPieceK; ++i) codes[i] = load_codes(from(row, k + i));
    transpose(codes);
    for (int i = 0; i < kPieceK; ++i) store_piece(piece(row + i, k), tiles_.bits(), codes[i]);
  }

  std::byte* panel_;
  const QuantisedTiles& tiles_;
  int row_, column_;  // of the source's first element
  const std::byte* source_;
  std::size_t row_stride_, column_stride_;
};

}  // namespace

void pack_codes(std::byte* panel, const QuantisedTiles& tiles, int row, int rows, int column, int columns,
                const std::byte* source, std::size_t row_stride, std::size_t column_stride) {
  const CodePacker packer(panel, tiles, row, column, source, row_stride, column_stride);
  for (int r = row, row_end; r < row + rows; r = row_end) {
    row_end = std::min(round_up(r + 1, kBlockRows), row + rows);
    for (int k = column, k_end; k < column + columns; k = k_end) {
      k_end = std::min(round_up(k + 1, kPieceK), column + columns);
      packer.pack(r, row_end, k, k_end);
    }
  }
}

void pack_scales(std::byte* panel, const QuantisedTiles& tiles, int row, int rows, int group, int groups,
                 const std::byte* source, std::size_t row_stride, std::size_t group_stride) {
  const std::size_t size = size_of(tiles.scales);
  for (int r = 0; r < rows; ++r) {
    for (int g = 0; g < groups; ++g) {
      std::memcpy(panel + tiles.scale_at(row + r, group + g), source + (r * row_stride + g * group_stride) * size,
                  size);
    }
  }
}

}  // namespace computron
