// A base's tensors with an adapter (adapter.h) merged into them: each element is base + scale · Σ b a, computed in
// float64, the ranks' products added in order, and rounded once to the type that the base has. So an element's bits
// depend on nothing but these numbers, whatever part of a tensor is asked for.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/checkpoint/reader.h"

namespace computron {

// Borrows the three; one for each thread. Holds A and B of the tensor that was asked for last, as float32.
class AdapterMerge {
 public:
  // check_adapter_fits() has found nothing.
  AdapterMerge(const CheckpointIndex& adapter, const TensorReader& adapter_reader);

  // The adapter adds to the base's tensor of this name.
  static bool changes(const CheckpointIndex& adapter, const std::string& name);
  // The adapter has a tensor of its own instead.
  static bool replaces(const CheckpointIndex& adapter, const std::string& name) {
    return adapter.tensors.contains(name);
  }

  // `values`: elements of the base's `tensor`, from its element `first` on, as stored; becomes the merged ones. The
  // adapter changes the tensor. ConfigError naming the tensor if its scale is not finite; CheckpointError or
  // Error{kIo}.
  void add_to(const TensorEntry& tensor, std::size_t first, std::span<std::byte> values);

 private:
  void prepare(const TensorEntry& tensor);
  std::vector<float> read(const std::string& name) const;
  void add_to_line(DType dtype, std::size_t line, std::size_t column, std::span<std::byte> values);

  const CheckpointIndex& adapter_;
  const TensorReader& reader_;
  std::string prepared_;  // name of the base's tensor
  std::size_t rank_ = 0, columns_ = 0;
  double scale_ = 0;
  // The change of a line is scale · (a line of left) · right: of a weight as it is, B and A; of a transposed one, the
  // transposes of A and of B.
  std::vector<float> left_;   // [lines, rank]
  std::vector<float> right_;  // [rank, columns]
  std::vector<double> sums_;  // of a line
  std::vector<float> line_;
};

}  // namespace computron
