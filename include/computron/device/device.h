// A device: its memory, streams that run work in order, events that order streams against each other, and buffers of
// host memory that its copy engines read.
//
//   host memory --copy stream--> device memory --compute stream--> results
//
// The semantics are CUDA's, so that the CPU device proves the code that drives a GPU: work enqueued on a stream runs in
// the order of the calls, at the moment of the call or later; wait(event) refers to the event's latest record() at the
// time of the call, and an event that was never recorded counts as complete.
//
// A device and everything it made belong to the thread that made it, unless a comment says otherwise. Failures of the
// device are Error{kDevice}; those of enqueued work surface later, at whatever waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "computron/base/file_descriptor.h"
#include "computron/base/memory.h"
#include "computron/device/progress.h"

namespace computron {

class Trace;

// Names a page in errors and traces: number `page` of those that belong to `owner`, whose name is borrowed.
struct PageName {
  std::string_view owner;
  std::uint32_t page = 0;
};

// A page as host memory holds it, borrowed: as it is in its frame, or coded (computron/kernels/coded_layout.h), which
// is what crosses the host link. Behind a coded page kCodedPadding bytes are readable.
struct HostPage {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;       // in the frame
  std::size_t link_bytes = 0;  // in host memory and over the link
  bool coded = false;
};
// One that is not coded.
constexpr HostPage raw_page(const std::byte* data, std::size_t bytes) { return {data, bytes, bytes, /*coded=*/false}; }

// A mark in a stream. It may be recorded again; on another stream only once its records so far have been reached. It
// must outlive all enqueued work that names it.
class Event {
 public:
  virtual ~Event() = default;
  // True when the latest record has been reached, or there was none. Never blocks. Where work before the record has
  // failed, this throws that work's error, as does everything else that waits for the event.
  virtual bool query() const = 0;

  // The page whose fetch the next record ends: traces show it at whoever waits. Set by the thread that records.
  void set_page(const PageName& page) { page_ = page; }
  const PageName& page() const { return page_; }

 private:
  PageName page_;
};

// Whether all ranks that take part say true. Collective over them.
using Agreement = std::function<bool(bool mine)>;

// A queue of work. Work that has not run when a stream is destroyed may be dropped: synchronize first.
class Stream {
 public:
  virtual ~Stream() = default;
  // Enqueues the event's next record: the event is reached when all work enqueued before has run.
  virtual void record(Event& event) = 0;
  // Work enqueued from here on runs after the event's latest record. The caller does not wait.
  virtual void wait(const Event& event) = 0;
  // Copies `bytes` bytes of host memory into device memory. `source` must stay valid and unchanged until the stream is
  // past the copy.
  virtual void copy_to_device(std::byte* destination, const std::byte* source, std::size_t bytes) = 0;
  // Copies `bytes` bytes of device memory into host memory, in order with the copies to the device. `destination` must
  // stay valid, and `source` unchanged, until the stream is past the copy.
  virtual void copy_to_host(std::byte* destination, const std::byte* source, std::size_t bytes) = 0;
  // Copies within device memory; the two ranges do not overlap.
  virtual void copy_on_device(std::byte* destination, const std::byte* source, std::size_t bytes) = 0;
  // Returns when all enqueued work has run. Rethrows an error of that work, unless the call that enqueued it has run it
  // and thrown. A compute stream polls its Progress meanwhile.
  virtual void synchronize() = 0;
  // Runs `work`, which enqueues on this stream alone, waits for nothing and uploads nothing. What it enqueues follows
  // from `key`: everything else that changes from call to call lies in device memory. A stream that captures graphs
  // calls the work the first time it sees the key, captures it the second time, and launches the graph from then on
  // without calling it. Where the work has operations of several ranks, `agree(mine)` says whether all of them say
  // true; they capture, and launch graphs, in the same calls.
  virtual void run_capturable(const std::string& /*key*/, const std::function<void()>& work,
                              const Agreement& /*agree*/) {
    work();
  }
  // Whether run_capturable() is ever more than a call.
  virtual bool captures_graphs() const { return false; }
  // Destroys all graphs. To be called before the communicators go whose operations are in them.
  virtual void drop_graphs() {}
  // Graphs launched so far.
  virtual std::uint64_t graph_launches() const { return 0; }
  // Seconds that this stream's work has stalled on events so far; 0 for streams that do not measure it.
  virtual double exposed_s() const { return 0; }
};

// What a copy stream has done so far. Bytes cross the host link in either direction, those of coded pages coded; copies
// within the device are not counted. Pages are counted once it is known what became of them: of a page whose event has
// been reached, it is.
struct CopyStatistics {
  std::size_t bytes = 0;
  std::size_t frame_bytes = 0;        // of the same copies in device memory, where pages are not coded; each copy once
  double busy_s = 0;                  // union of the times from a copy's start to its end; on the CPU its verification
                                      // is included, which GPUs do beside the next copy
  std::uint64_t pages_verified = 0;   // digested in device memory and found right
  std::uint64_t pages_refetched = 0;  // copied again because the first copy's digest was wrong
};

class CopyStream : public Stream {
 public:
  virtual CopyStatistics statistics() const = 0;
  // copy_to_device() of the page called `name`, decoded where it is coded: then `frame` is aligned to 64. With a
  // `digest` (base/digest.h, page_digest) what is enqueued behind finds bytes in `frame` that have it: a page that
  // differs is copied once more, for which it must lie in memory that this device has allocated or mapped, and if it
  // still differs the stream fails with Error{kDevice}. So it does for a coded page that cannot be decoded, with or
  // without a digest; whatever it holds, nothing but it is read and nothing but the frame written. NotCompiled where
  // Device::verifies_pages(), or decodes_pages(), says no.
  virtual void fetch(std::byte* frame, const HostPage& page, const PageName& name, std::optional<std::uint64_t> digest);
};

// Bytes in its frame that a page of each kind has at most which a copy stream is to fetch; 0: there will be none.
struct LargestPages {
  std::size_t coded = 0;
  std::size_t verified = 0;  // with a digest
};

// Device memory; freed with the object. data() is aligned to 4096.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual std::byte* data() const = 0;
  virtual std::size_t bytes() const = 0;
};

// Host memory that the device copies from, and to, at the host link's rate (pinned where that means something); freed
// with the object. data() is page-aligned.
class HostBuffer {
 public:
  virtual ~HostBuffer() = default;
  virtual std::byte* data() const = 0;
  virtual std::size_t bytes() const = 0;
  // Makes the memory of bytes [begin, end) exist, so that writing them does not fault. Any thread may call it. False
  // where memory runs out. Devices whose memory exists from the start have nothing to do.
  virtual bool populate(std::size_t /*begin*/, std::size_t /*end*/) { return true; }
  // Gives back what lies behind the first `bytes` (not more than bytes()): memory and addresses, where the device can.
  virtual void trim(std::size_t /*bytes*/) {}
  // From here on a write to the buffer kills the process (mprotect). Irrevocable.
  virtual void make_read_only() = 0;
};

// Of a copy stream, in bytes a second.
struct CodingRates {
  double link_bytes_per_s = 0;     // of the host link: pages that are not coded
  double decoded_bytes_per_s = 0;  // into frames: coded pages of the slowest type, if the link were no limit
};

// Outlives everything it made.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;                // "cpu (2 threads)", "cuda 0: NVIDIA H200"
  virtual std::size_t default_page_bytes() const = 0;  // 8 MiB on cpu, 64 MiB on cuda
  // The hardware that a rank should have for itself, by a name that no other has ("GPU-8a6f..."); empty where
  // any number of ranks may share it.
  virtual std::string hardware_id() const { return {}; }
  // The NUMA node it hangs from; -1 where that means nothing or is not known.
  virtual int numa_node() const { return -1; }
  // From the root of the PCI bus down to it, "0000:3a:00.0/0000:3b:00.0/0000:3d:00.0": the first is the port that its
  // copies go through, alone or with other devices below the same switch. Empty where that means nothing or is not
  // known.
  virtual std::string bus_path() const { return {}; }
  // What is free of memory that only the device has; nothing where it computes in host memory.
  virtual std::optional<MemoryLimit> own_memory() const { return std::nullopt; }
  // Whether its copy streams can digest a page in device memory (CopyStream::fetch).
  virtual bool verifies_pages() const { return false; }
  // Whether its copy streams take coded pages (CopyStream::fetch).
  virtual bool decodes_pages() const { return false; }
  // Pages' worth of its memory that a copy stream takes where it takes coded pages.
  virtual int landing_pages() const { return 0; }
  // How fast one copy stream is now, out of caches, in a few milliseconds; only where decodes_pages() says yes. All 0:
  // that is not known of this device.
  virtual CodingRates measure_coding_rates() const { return {}; }
  // `what` names the memory's purpose in the error: OutOfDeviceMemory.
  virtual std::unique_ptr<DeviceBuffer> allocate(std::size_t bytes, std::string_view what) = 0;
  // The same for host memory: Error{kSystem}.
  virtual std::unique_ptr<HostBuffer> allocate_host(std::size_t bytes, std::string_view what) = 0;
  // Host memory of which only the beginning will be used, so that more may be asked for than there is: to be populated
  // from the beginning as it is needed, then trimmed. Error{kSystem}.
  virtual std::unique_ptr<HostBuffer> reserve_host(std::size_t bytes, std::string_view what) {
    return allocate_host(bytes, what);
  }
  // Bytes [offset, offset + bytes) of `memory` (make_shared_memory()) as a host buffer that other processes may have,
  // too: what one of them writes all see, and each makes its own buffer read-only. `offset` is a multiple of 2 MiB;
  // `memory` may be closed afterwards. Error{kSystem}.
  virtual std::unique_ptr<HostBuffer> map_host(int memory, std::size_t offset, std::size_t bytes,
                                               std::string_view what);
  // A stream for one thread, which owns MPI: it polls `progress` (borrowed) while it waits.
  virtual std::unique_ptr<Stream> make_compute_stream(Progress& progress) = 0;
  // OutOfDeviceMemory.
  virtual std::unique_ptr<CopyStream> make_copy_stream(const LargestPages& largest = {}) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
};

// Called by the copy thread with what copy `copy` over the link (of a copy stream, from 0) has written at its `attempt`
// (0, or 1 when it is repeated), before that is verified.
using CopyHook = std::function<void(std::uint64_t copy, int attempt, std::span<std::byte> written)>;

// Returns the compute stream that callers get in place of the device's own, `stream`.
using StreamWrapper = std::function<std::unique_ptr<Stream>(std::unique_ptr<Stream> stream)>;

// How the CPU device behaves.
struct CpuDeviceOptions {
  int threads = 1;           // compute threads of this rank, the calling one included
  double link_gb_per_s = 0;  // 10^9 bytes a second: the host link that copy streams emulate; 0: as fast as it goes
  StreamWrapper wrap_compute_stream = {};  // empty: callers get the device's own
  CopyHook copied = {};                    // follows each copy over the link
  Trace* trace = nullptr;                  // borrowed; null: not traced
  int spin_us = 30;  // an idle compute thread looks for work this long, then sleeps; 0 where ranks outnumber cores
};
// Error{kUsage} for options out of range.
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options);

// The CUDA device of this rank (`local_rank` of its node). NotCompiled in a build without CUDA, Error{kDevice} on a
// machine without a GPU.
std::unique_ptr<Device> make_cuda_device(int local_rank);
// False in a build without CUDA or on a machine without a GPU.
bool cuda_device_present() noexcept;
// `bytes` bytes of zeros that processes of this machine can share by handing on the descriptor. They lie in no file
// system, and are gone with the last of these processes, however it ends. None, with errno set, where the system
// refuses.
FileDescriptor make_shared_memory(std::size_t bytes);

// The CUDA runtime of this build, "CUDA 13.0"; empty without.
std::string accelerator_library();

}  // namespace computron
