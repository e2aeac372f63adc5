// Host data on its way to the device and results on their way back: pinned memory, so that no copy waits for the host
// and the host waits for no copy. Lent until the stream has synchronized; nothing is allocated once a pass has been
// seen that needs as much.
//
// What goes up is read by kernels. The copy engine takes all that goes up in turn, from whatever stream: few bytes
// would stand behind the pages that are under way, milliseconds each time (github.com/NVIDIA/cudf/issues/15620,
// github.com/meta-pytorch/torchrec/pull/4339).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "computron/device/device.h"
#include "src/device/cuda/cuda_stream.h"

namespace computron {

// Has a kernel copy `bytes` bytes of pinned memory, at `host` and to kernels at `mapped`, to device memory.
void copy_up(CudaComputeStream& stream, std::byte* to, const std::byte* host, const std::byte* mapped,
             std::size_t bytes);
// Where kernels find the first byte of pinned memory.
std::byte* mapped_address(const HostBuffer& buffer);

// For what operations are given outside of a pass, or what a pass has not named (pass_block.h).
class Staging {
 public:
  explicit Staging(Device& device) : device_(device) {}

  // To be called before an operation takes anything: has the stream synchronize where very much is lent.
  void make_room(CudaComputeStream& stream) const;

  // A copy in device memory, there for whatever the stream is given next. `values` may go at once.
  template <class T>
  const T* upload(CudaComputeStream& stream, std::span<const T> values) {
    return reinterpret_cast<const T*>(upload_bytes(stream, std::as_bytes(values)));
  }
  // The same to a place that the caller names.
  void copy_to_device(CudaComputeStream& stream, std::byte* to, std::span<const std::byte> bytes);

  // Host memory that kernels write to by way of `device`; to be read after the stream has synchronized.
  template <class T>
  struct Result {
    T* host;
    T* device;
  };
  template <class T>
  Result<T> result(CudaComputeStream& stream, std::size_t count) {
    const Place place = result_bytes(stream, count * sizeof(T));
    return {reinterpret_cast<T*>(place.host), reinterpret_cast<T*>(place.mapped)};
  }

  // Grows when the stream synchronizes: what was lent before is gone.
  std::uint64_t generation() const { return generation_; }

 private:
  struct Slab {
    std::unique_ptr<HostBuffer> host;
    std::unique_ptr<DeviceBuffer> copy;  // of the host's bytes; plain slabs have none
    std::byte* mapped = nullptr;         // where kernels find the host's bytes
    std::size_t used = 0;
  };
  struct Place {
    std::byte* host;
    std::byte* mapped;
    std::byte* copy;  // null in plain slabs
  };

  const std::byte* upload_bytes(CudaComputeStream& stream, std::span<const std::byte> bytes);
  Place result_bytes(CudaComputeStream& stream, std::size_t bytes);
  Place take(CudaComputeStream& stream, std::vector<Slab>& slabs, std::size_t bytes, bool with_copy);
  Slab make_slab(std::size_t bytes, bool with_copy);
  void reset();

  Device& device_;
  std::vector<Slab> uploads_, plain_;
  std::size_t lent_bytes_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace computron
