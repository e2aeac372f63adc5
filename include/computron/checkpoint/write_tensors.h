// Fills a checkpoint from several threads, piece by piece, and quantises on the way what is to be quantised. Codes that
// exist already are read as codes, and their scales are a tensor of the list, behind them.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "computron/checkpoint/writer.h"

namespace computron {

// One that is written from values, or from codes as they are. Where it is quantised, its scales are the tensor behind
// it.
struct TensorToWrite {
  TensorDeclaration declaration;
  DType values = DType::kF32;  // in which they are read: its own type unless it is quantised on the way
  bool large_pieces = false;   // the more values are read at once, the faster

  bool has_codes() const { return is_code(declaration.dtype); }
  bool quantised() const { return has_codes() && values != declaration.dtype; }  // on the way
};

// What CheckpointWriter takes: the tensors, and the scales of each that is quantised on the way behind it.
std::vector<TensorDeclaration> declarations_of(const std::vector<TensorToWrite>& tensors);

// Where values come from. Called by several threads at once, numbered from 0.
struct TensorValues {
  // Elements [first, last), as stored, of tensor number `tensor` of the list, dense and of its type `values`; valid
  // until the same thread's next call.
  std::function<std::span<const std::byte>(int thread, std::size_t tensor, std::size_t first, std::size_t last)> read;
  // So many bytes of the checkpoint have been written; may be empty.
  std::function<void(std::size_t bytes)> written;
};

// As many threads as are useful within the memory that writing may take: `threads` or fewer.
int threads_to_write(const std::vector<TensorToWrite>& tensors, int threads);

// Writes all of them. `writer` was made of declarations_of(tensors), `threads` is what threads_to_write() says. Holds
// 256 MiB of values and codes (of codes that are read as such, counted twice: their reader holds as much), and the
// scales of the tensors that are being written. What it writes does not depend on the number of threads. ConfigError
// naming a tensor that is to be quantised and holds NaN or an infinity.
void write_tensors(CheckpointWriter& writer, const std::vector<TensorToWrite>& tensors, int threads,
                   const TensorValues& values);

// As they will lie in the file, the scales counted in.
std::size_t bytes_to_write(const std::vector<TensorToWrite>& tensors);
// Bits that a quantised weight takes, the scales counted in. 0 without one.
double bits_of_quantised(const std::vector<TensorToWrite>& tensors);

}  // namespace computron
