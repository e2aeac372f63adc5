// Coded pages on a GPU: the copy engine brings them into two landing pages in turn, and kernels decode them into
// frames.
//
//   copy stream     page 0 -> landing 0   page 1 -> landing 1   page 2 -> landing 0, once page 0 is decoded ...
//   decode stream                         landing 0 -> frame    landing 1 -> frame ...          (of highest priority)
//
// What is enqueued on the copy stream runs in the order of the calls all the same: join() has it wait for what is being
// decoded, and records of events that come behind go to the decode stream (CudaCopyStream::record).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "computron/device/device.h"
#include "src/device/cuda/cuda_handles.h"

namespace computron {

inline constexpr int kLandingPages = 2;

// Pages that kernels could not decode, as they note them in host memory. Streams and events share it, and may outlive
// each other.
class RefusedPages {
 public:
  RefusedPages();
  // A number for a page that is decoded next, not 0: what a kernel that refuses it writes to word(). The name is
  // borrowed.
  int number(const PageName& name);
  // For kernels.
  int* word() const { return word_; }
  // Error{kDevice} naming a page that a kernel has refused. Never blocks.
  void check() const;

 private:
  std::unique_ptr<HostBuffer> memory_;
  int* word_ = nullptr;          // where kernels find it
  std::vector<PageName> names_;  // [number % size]: many more than are ever under way
  int numbers_ = 0;
};

// Used by the thread that made the device, as the copy stream `copies` that it belongs to.
class CudaPageDecoder {
 public:
  // On device `device`, for pages that take at most `landing_bytes` coded, what is read behind them included.
  // OutOfDeviceMemory.
  CudaPageDecoder(int device, std::size_t landing_bytes, cudaStream_t copies);

  // Where the next page's coded bytes belong: `copies` waits until what lay there has been decoded.
  std::byte* land(const HostPage& page);
  // Enqueues that page's decoding into `frame`, behind what `copies` has now.
  void decode(std::byte* frame, const HostPage& page, const PageName& name);
  // What `copies` is given from here on runs after all decoding so far.
  void join();
  // The decode stream: what it is given next runs behind all that both streams have now.
  cudaStream_t behind_copies();
  // Whether `copies` may be ahead of decoding.
  bool is_behind() const { return behind_; }
  const std::shared_ptr<RefusedPages>& refused() const { return refused_; }

 private:
  struct Landing {
    std::byte* data = nullptr;
    CudaEventHandle decoded;
  };

  std::shared_ptr<RefusedPages> refused_;  // goes last: kernels may write to it until memory_ has been freed
  cudaStream_t copies_;
  CudaStreamHandle stream_;
  CudaEventHandle copied_;  // recorded on copies_, for stream_ to wait
  std::size_t landing_bytes_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::vector<Landing> landings_;
  std::size_t next_ = 0;  // of landings_
  bool behind_ = false;
};

}  // namespace computron
