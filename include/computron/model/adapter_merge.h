// A base's tensors with an adapter (adapter.h) merged into them: each element is base + scale · Σ b a, computed in
// float64, the ranks' products added in order, and rounded once to the type that the base has. So an element's bits
// depend on nothing but these numbers, whatever part of a tensor is asked for.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "computron/checkpoint/index.h"
#include "computron/checkpoint/reader.h"

namespace computron {

// A and B of the tensors that are being merged, as float32: they may be large, so all threads have the same ones.
class AdapterMatrices {
 public:
  // Borrows both. check_adapter_fits() has found nothing.
  AdapterMatrices(const CheckpointIndex& adapter, const TensorReader& reader) : adapter_(adapter), reader_(reader) {}

  // The change of a line is scale · (a line of left) · right: of a weight as it is, B and A; of a transposed one, the
  // transposes of A and of B.
  struct OfTensor {
    std::size_t rank = 0, columns = 0;
    double scale = 0;
    std::vector<float> left;   // [lines, rank]
    std::vector<float> right;  // [rank, columns]
  };
  // Of the base's `tensor`, which the adapter changes: read once while anybody holds them. Thread-safe. ConfigError
  // naming the tensor if its scale is not finite; CheckpointError or Error{kIo}.
  std::shared_ptr<const OfTensor> of(const TensorEntry& tensor);

 private:
  OfTensor read(const TensorEntry& tensor) const;
  std::vector<float> read(const std::string& name) const;

  const CheckpointIndex& adapter_;
  const TensorReader& reader_;
  std::mutex mutex_;  // guards:
  std::map<std::string, std::weak_ptr<const OfTensor>> read_;
};

// One for each thread.
class AdapterMerge {
 public:
  // Borrows.
  explicit AdapterMerge(AdapterMatrices& matrices) : matrices_(matrices) {}

  // The adapter adds to the base's tensor of this name.
  static bool changes(const CheckpointIndex& adapter, const std::string& name);
  // The adapter has a tensor of its own instead.
  static bool replaces(const CheckpointIndex& adapter, const std::string& name) {
    return adapter.tensors.contains(name);
  }

  // `values`: elements of the base's `tensor`, from its element `first` on, as stored; becomes the merged ones. The
  // adapter changes the tensor. Errors as AdapterMatrices::of.
  void add_to(const TensorEntry& tensor, std::size_t first, std::span<std::byte> values);

 private:
  void add_to_line(DType dtype, std::size_t line, std::size_t column, std::span<std::byte> values);

  AdapterMatrices& matrices_;
  std::string name_;  // of the base's tensor that was asked for last
  std::shared_ptr<const AdapterMatrices::OfTensor> of_tensor_;
  std::vector<double> sums_;  // of a line
  std::vector<float> line_;
};

}  // namespace computron
