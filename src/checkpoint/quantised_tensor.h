// A tensor that is quantised while it is written. Private to src/checkpoint.
//
// A group's values follow each other along `in`. Stored as [out][in] they are neighbours in a line; stored as [in][out]
// they are the same column of as many lines. Pieces of codes begin and end where it suits the file, so a piece reads
// all lines that its groups touch, and what lies outside of it is quantised twice.
#pragma once

#include <atomic>
#include <mutex>
#include <span>
#include <vector>

#include "computron/base/quantise.h"
#include "computron/checkpoint/writer.h"

namespace computron {

// Elements [begin, end) of a tensor as stored.
struct ElementRange {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};

class QuantisedTensor {
 public:
  // `values`: a plain type, of what is quantised.
  QuantisedTensor(const TensorDeclaration& codes, DType values);

  // Elements whose codes are bytes [begin, end).
  ElementRange elements_of(std::size_t begin, std::size_t end) const;
  // All elements of the groups of these.
  ElementRange cover(const ElementRange& piece) const;

  // Groups that are whole columns: scales are known only when find_peaks() has seen all of them. Those of int4 are
  // short and are read as a whole.
  bool needs_peaks() const { return transposed_ && group_ == lines_ && codes_ != DType::kInt4; }
  // `values` are those of cover(), as of all functions below. Thread-safe.
  void find_peaks(const ElementRange& covered, std::span<const std::byte> values);

  // The codes of `piece`; `buffer` is room for them. Thread-safe for disjoint pieces.
  std::span<const std::byte> quantise(const ElementRange& piece, std::span<const std::byte> values,
                                      std::vector<std::byte>& buffer);
  // Counts a piece that has been quantised and written; true of the last one.
  bool finish_piece(const ElementRange& piece);
  // Of all groups, as stored; once, after the last piece.
  std::vector<std::uint16_t> take_scales() { return std::move(scales_); }

 private:
  void allocate_scales();
  void quantise_rows(const ElementRange& covered, const ElementRange& piece, std::span<const std::byte> values,
                     std::byte* out);
  void quantise_columns(const ElementRange& covered, const ElementRange& piece, std::span<const std::byte> values,
                        std::byte* out);
  void raise(std::span<const std::byte> lines, std::vector<Peak>& peaks) const;
  // scales[c] is that of column c of a group's lines.
  void find_int4_scales(std::span<const std::byte> lines, std::vector<std::uint16_t>& scales) const;
  void encode_lines(std::span<const std::byte> lines, const std::uint16_t* scales, std::byte* out) const;
  void check_finite(Peak peak, const ElementRange& covered, std::span<const std::byte> values) const;
  [[noreturn]] void refuse(std::size_t element) const;

  std::string name_;
  DType codes_, values_;
  std::size_t lines_, columns_;  // as stored
  bool transposed_;
  std::size_t group_;                    // values along `in`, of whole rows all of them
  std::size_t groups_;                   // along `in`
  std::mutex mutex_;                     // of what follows
  std::vector<Peak> peaks_;              // by column
  std::vector<std::uint16_t> scales_;    // as stored; threads write disjoint parts of it
  std::atomic<std::size_t> unfinished_;  // elements
};

}  // namespace computron
