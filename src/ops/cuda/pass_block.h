// The host memory that a pass works with, at addresses that follow from the sizes of its arrays alone.
//
//   pinned   | inputs | results |    the host writes inputs, kernels write results
//   device   | inputs |              copied by a kernel, the first launch of the pass
//
// So a pass whose arrays have the same sizes finds them at the same places: a graph of it stays right while tokens,
// positions, lengths, blocks and what is sampled change. Inputs are placed in classes of sizes, powers of two, so that
// lists that grow from token to token, as those of blocks do, stay where they are for most of the time.
//
// Belongs to the thread of its stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "computron/device/device.h"
#include "src/device/cuda/cuda_stream.h"

namespace computron {

class PassBlock {
 public:
  explicit PassBlock(Device& device) : device_(device) {}

  // Forgets the arrays of the pass before, which the stream has run.
  void begin();
  // Inputs are known by where they lie in host memory, where they are borrowed until lay_out().
  void add_input(std::span<const std::byte> values);
  // Room for a result; returns its number.
  std::size_t add_result(std::size_t bytes);
  // Places everything and takes the inputs' values. OutOfDeviceMemory, Error{kSystem}.
  void lay_out();
  // What the addresses depend on.
  const std::string& layout() const { return layout_; }
  // Inputs are on the device for whatever `stream` is given next.
  void upload(CudaComputeStream& stream) const;

  // Where the values are on the device; null if they are no part of an input, or there are none.
  template <class T>
  const T* input(std::span<const T> values) const {
    return reinterpret_cast<const T*>(find(std::as_bytes(values)));
  }
  // Where kernels put a result, and where the host finds it when the stream has run.
  template <class T>
  T* result_on_device(std::size_t number) const {
    return reinterpret_cast<T*>(mapped_ + results_[number].place);
  }
  template <class T>
  T* result(std::size_t number) const {
    return reinterpret_cast<T*>(pinned_->data() + results_[number].place);
  }

 private:
  struct Array {
    const std::byte* host;  // null: of a result
    std::size_t bytes;
    std::size_t place = 0;  // in the block
  };
  const std::byte* find(std::span<const std::byte> values) const;
  void make_room(std::size_t inputs, std::size_t all);

  Device& device_;
  std::unique_ptr<HostBuffer> pinned_;
  std::unique_ptr<DeviceBuffer> on_device_;
  std::byte* mapped_ = nullptr;   // where kernels find pinned_
  std::uint64_t generation_ = 0;  // grows with the memory
  std::vector<Array> inputs_, results_;
  std::size_t input_bytes_ = 0;
  std::string layout_;
};

}  // namespace computron
