// Weights as other programs store them, read as this one stores them: cut out of a larger tensor, transposed, and of
// another element type, any part of it at a time.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "computron/base/types.h"
#include "computron/checkpoint/safetensors.h"

namespace computron {

// A matrix [rows, columns] within a tensor of a safetensors file. Borrows both.
struct MatrixSource {
  const SafetensorsFile* file = nullptr;
  const SafetensorsEntry* entry = nullptr;
  DType dtype = DType::kF32;  // of the entry
  std::size_t rows = 0, columns = 0;
  std::size_t first = 0;    // the element of the tensor that is element (0, 0)
  std::size_t stride = 0;   // elements from one line of the tensor to the next
  bool transposed = false;  // lines of the tensor are columns: (r, c) is element first + c * stride + r * step
  std::size_t step = 1;     // of transposed ones

  std::size_t elements() const { return rows * columns; }
};

// Reads pieces of matrices; one for each thread. Holds the largest piece so far (a transposed one by whole rows, so up
// to two rows more) and 1 MiB.
class MatrixReader {
 public:
  // Bytes [begin, end) of the matrix as a dense array of `dtype` (convert_elements()); valid until the next call.
  // `begin` is a multiple of the element's size. CheckpointError or Error{kIo} naming the file.
  std::span<const std::byte> read(const MatrixSource& source, DType dtype, std::size_t begin, std::size_t end);

 private:
  void read_lines(const MatrixSource& source, DType dtype, std::size_t first, std::size_t last);
  void read_with_gaps(const MatrixSource& source, DType dtype, std::size_t first, std::size_t last);
  void read_transposed(const MatrixSource& source, DType dtype, std::size_t first_row, std::size_t last_row);
  void read_apart(const MatrixSource& source, DType dtype, std::size_t first, std::size_t count, std::byte* out);
  void read_elements(const MatrixSource& source, DType dtype, std::size_t first, std::size_t count, std::byte* out);

  std::vector<std::byte> out_;    // what read() returns
  std::vector<std::byte> raw_;    // elements as stored
  std::vector<std::byte> panel_;  // lines that are to be transposed, or with gaps between them
  std::vector<std::byte> apart_;  // elements with others between them
};

}  // namespace computron
