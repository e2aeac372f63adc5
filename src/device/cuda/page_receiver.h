// What becomes of pages behind their copies, by kernels of a stream of highest priority, while the copy engine goes on:
// coded ones are decoded from landing pages into their frames, and pages with a digest are verified there.
//
//   copy stream     page 0 -> landing 0   page 1 -> landing 1   page 2 -> landing 0, once page 0 is received ...
//   page stream                           landing 0 -> frame    landing 1 -> frame ...
//                                         digest; if it is wrong: once more from host memory, digest
//
// A page without a landing page goes to its frame at once, and two pages at most are under way behind their copies, as
// there are two landing pages. What is enqueued on the copy stream runs in the order of the calls all the same: join()
// has it wait for what is being received, copies of pages wait where an earlier one for the same frame is, and records
// of events that come behind go to the page stream (CudaCopyStream::record).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "computron/device/device.h"
#include "src/device/cuda/cuda_handles.h"
#include "src/device/cuda/refused_pages.h"

namespace computron {

inline constexpr int kLandingPages = 2;

// Used by the thread that made the device, as the copy stream `copies` that it belongs to.
class CudaPageReceiver {
 public:
  // On device `device`. OutOfDeviceMemory.
  CudaPageReceiver(int device, const LargestPages& largest, cudaStream_t copies);

  // Where the copy engine is to bring the page: `frame`, or a landing page. `copies` waits until that may be written.
  std::byte* land(std::byte* frame, const HostPage& page, bool verified);
  // Enqueues what the page that has just landed needs before `frame` holds it, behind what `copies` has now; nothing
  // for one that is neither coded nor has a digest.
  void receive(std::byte* frame, const HostPage& page, const PageName& name, std::optional<std::uint64_t> digest);
  // What `copies` is given from here on runs after all that is received so far.
  void join();
  // The page stream: what it is given next runs behind all that both streams have now.
  cudaStream_t behind_copies();
  // Whether `copies` may be ahead of the page stream.
  bool is_behind() const { return behind_; }
  const std::shared_ptr<RefusedPages>& refused() const { return refused_; }

 private:
  // Of a page that is being received, or has been.
  struct Landing {
    std::byte* data = nullptr;  // null: no page is coded
    CudaEventHandle received;
    const std::byte* frame = nullptr;
    std::size_t bytes = 0;  // in the frame
  };
  struct Arrived {
    std::byte* frame;
    const HostPage& page;
    int number;  // RefusedPages::number()
  };

  void decode(const Arrived& arrived, int* refused, int number, const int* only_if);
  void verify(const Arrived& arrived, std::uint64_t digest);
  void digest_and_judge(const Arrived& arrived, std::uint64_t digest, bool again);
  void copy_again(const Arrived& arrived);

  std::shared_ptr<RefusedPages> refused_;  // goes last: kernels may write to it until memory has been freed
  cudaStream_t copies_;
  CudaStreamHandle stream_;
  CudaEventHandle copied_;  // recorded on copies_, for stream_ to wait
  std::size_t landing_bytes_ = 0, piece_room_ = 0;
  std::unique_ptr<DeviceBuffer> landing_memory_;
  std::vector<Landing> landings_;
  std::size_t next_ = 0;  // of landings_
  // A PageVerdict, and behind it the digests of the pieces of the page that is verified: 1/512 of a page. Null: no page
  // is.
  std::unique_ptr<DeviceBuffer> verdict_;
  bool behind_ = false;
};

}  // namespace computron
