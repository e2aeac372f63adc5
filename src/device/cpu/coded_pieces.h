// A coded page in pieces that cross a link one after another, as they are decoded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/coded_page.h"

namespace computron {

// The pieces cover the page's blocks in order; what they take on the link adds up to the coded page, its directory
// included. Of a damaged page, too: only its directory is read here, and that is not believed.
class CodedPieces {
 public:
  struct Piece {
    std::size_t begin = 0, end = 0;  // blocks
    std::size_t link_bytes = 0;
  };

  // `page_bytes`: decoded. A piece takes about `piece_bytes`, at least a block. `coded` is borrowed, and begins with a
  // whole directory, or is one piece.
  CodedPieces(std::span<const std::byte> coded, std::size_t page_bytes, std::size_t piece_bytes)
      : coded_(coded), blocks_(coded_blocks(page_bytes)), piece_bytes_(piece_bytes) {}

  bool at_end() const { return block_ == blocks_; }

  // Not at the end.
  Piece next() {
    Piece piece{.begin = block_, .end = block_ + 1};
    while (piece.end < blocks_ && begin_of(piece.end) < at_ + piece_bytes_) ++piece.end;
    const std::size_t end = piece.end == blocks_ ? coded_.size() : begin_of(piece.end);
    piece.link_bytes = end - at_;
    block_ = piece.end;
    at_ = end;
    return piece;
  }

 private:
  // Between what has crossed the link and the page's end.
  std::size_t begin_of(std::size_t block) const {
    if (coded_.size() < (blocks_ + 1) * sizeof(std::uint32_t)) return coded_.size();
    return std::clamp(kernels::coded_offset(coded_, block), at_, coded_.size());
  }

  std::span<const std::byte> coded_;
  std::size_t blocks_;
  std::size_t piece_bytes_;
  std::size_t block_ = 0;
  std::size_t at_ = 0;  // coded bytes that have crossed the link
};

}  // namespace computron
