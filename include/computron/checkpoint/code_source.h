// Weights that other programs have quantised, as codes and scales of this program's checkpoints: no value changes, only
// where it lies. Codes come in elements of a byte or of 4 bytes, one or several: the first in the lowest bits, the next
// ones behind it along `in`.
#pragma once

#include <string>
#include <vector>

#include "computron/checkpoint/matrix_source.h"

namespace computron {

// The scales of a weight, [out, groups], or [groups, out] if `transposed`.
struct ScaleSource {
  std::string name;  // in its file
  // As they are to be stored; where rows share scales, [ceil(out / rows_per_scale), groups].
  MatrixSource matrix;
  std::size_t rows_per_scale = 1;
  std::size_t out = 0, groups = 0;
  bool transposed = false;
  bool may_be_negative = false;
  double factor = 1;  // of e4m3 (weight_type.h)

  std::size_t elements() const { return out * groups; }
};

struct CodeSource {
  std::string name;  // in its file
  DType codes = DType::kInt8;
  int group = 0;  // values along `in` that share a scale, or WeightType::kWholeRow
  // Elements of `codes_per_element` codes, as the codes are to be stored: codes of one element follow each other in a
  // line or, if `spread`, in a column. Its dtype says how many bytes an element has.
  MatrixSource matrix;
  std::size_t codes_per_element = 1;
  bool spread = false;
  std::byte flipped{};  // bits of a byte that are inverted: a code that is stored as code + 8 has one other bit
  ScaleSource scales;

  std::size_t elements() const { return matrix.elements() * codes_per_element; }
};

// Reads pieces of codes and scales; one for each thread. Holds twice the largest piece so far, by whole rows, and
// 1 MiB.
class CodeReader {
 public:
  // Codes [first, last) as a checkpoint holds them; of four bits: even ones, and where `spread` is false no part of an
  // element. Valid until the next call. ConfigError naming the tensor if there is NaN among them; CheckpointError or
  // Error{kIo} naming the file.
  std::span<const std::byte> read(const CodeSource& source, std::size_t first, std::size_t last);
  // Scales [first, last). ConfigError naming the tensor if one is not finite, or negative and may not be.
  std::span<const std::byte> read(const ScaleSource& source, std::size_t first, std::size_t last);

 private:
  std::span<std::byte> read_along(const CodeSource& source, std::size_t first, std::size_t last);
  std::span<std::byte> read_spread(const CodeSource& source, std::size_t first, std::size_t last);

  MatrixReader matrix_;
  std::vector<std::byte> out_;  // what read() returns
};

}  // namespace computron
