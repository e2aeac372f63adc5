// The device, its memory, registered host memory and copies.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "computron/base/digest.h"
#include "computron/base/types.h"
#include "tests/emulated_gpu/stream.h"

namespace computron::emulated_gpu {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 256;                      // of what cudaMalloc gives
constexpr std::size_t kPiece = std::size_t{8} << 20;         // in which memory is mapped
constexpr std::uint64_t kMemory = std::uint64_t{4} << 30;    // unless the environment says otherwise
constexpr std::uint64_t kShared = std::uint64_t{227} << 10;  // of a block, likewise
constexpr int kMultiprocessors = 3;                          // few, so that blocks have several tiles

std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

// Ranges of addresses that do not overlap, by where they begin.
class Ranges {
 public:
  void add(const void* p, std::size_t bytes) { bytes_.emplace(address(p), bytes); }
  // How long the range was that begins at `p`; 0: there is none.
  std::size_t remove(const void* p) {
    const auto found = bytes_.find(address(p));
    if (found == bytes_.end()) return 0;
    const std::size_t bytes = found->second;
    bytes_.erase(found);
    return bytes;
  }
  bool touches(std::uintptr_t begin, std::uintptr_t end) const {
    auto next = bytes_.lower_bound(end);
    return next != bytes_.begin() && (--next)->first + next->second > begin;
  }
  bool holds(std::uintptr_t begin, std::uintptr_t end) const {
    auto next = bytes_.upper_bound(begin);
    return next != bytes_.begin() && (--next)->first + next->second >= end;
  }

 private:
  std::map<std::uintptr_t, std::size_t> bytes_;
};

struct Memory {
  std::mutex mutex;
  Ranges device, pinned;
  std::size_t taken = 0, most_taken = 0;
  std::atomic<std::size_t> unregistered = 0;  // slabs, so far
};

// Not destroyed at exit: copies may still be under way.
Memory& memory() {
  static auto& made = *new Memory;
  return made;
}

std::uint64_t total_memory() {
  static const std::uint64_t bytes = setting("COMPUTRON_EMULATED_MEMORY", kMemory);
  return bytes;
}

// ---- what the process did

std::atomic<std::size_t> copies = 0, unregistered_copies = 0;

void report() {
  fmt::print(stderr,
             "emulated GPU: {} copies, {} of them of host memory that is not registered; at most {} bytes held\n",
             copies.load(), unregistered_copies.load(), memory().most_taken);
}

[[maybe_unused]] const bool reports = setting("COMPUTRON_EMULATED_REPORT", 0) == 1 && std::atexit(report) == 0;

// ---- allocations

// Between two pages that nobody may touch; it ends as near to the second as the alignment allows, and does not begin at
// a multiple of the page:
//
//   mapping | no access | 0xFF ... begin ... begin + bytes ... 0xFF | no access |
struct Placement {
  std::size_t used;    // the allocation, rounded up to the alignment, and what is left free behind it
  std::size_t mapped;  // whole pages of it

  explicit Placement(std::size_t bytes) {
    used = round_up(bytes, kAlignment);
    if (used % kPage == 0) used += kAlignment;
    mapped = round_up(used, kPage);
  }
  std::size_t total() const { return mapped + 2 * kPage; }
  std::byte* begin(std::byte* mapping) const { return mapping + kPage + mapped - used; }
  std::byte* mapping(std::byte* begin) const { return begin + used - mapped - kPage; }
};

// A file of 0xFF, a piece long: what is mapped from it costs nothing until it is written.
int undefined_content() {
  static const int file = [] {
    const std::vector<unsigned char> content(kPiece, 0xFF);
    const int made = memfd_create("undefined device memory", MFD_CLOEXEC);
    if (made < 0 || write(made, content.data(), kPiece) != static_cast<ssize_t>(kPiece)) refuse("memfd_create failed");
    return made;
  }();
  return file;
}

std::byte* map(void* at, std::size_t bytes, int protection, int flags, int file) {
  void* mapping = mmap(at, bytes, protection, MAP_PRIVATE | MAP_NORESERVE | flags, file, 0);
  return mapping == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapping);
}

// Null where the system has no room.
std::byte* allocate(const Placement& place) {
  std::byte* const mapping = map(nullptr, place.total(), PROT_NONE, MAP_ANONYMOUS, -1);
  if (mapping == nullptr) return nullptr;
  for (std::size_t at = 0; at < place.mapped; at += kPiece) {
    if (map(mapping + kPage + at, std::min(kPiece, place.mapped - at), PROT_READ | PROT_WRITE, MAP_FIXED,
            undefined_content()) == nullptr) {
      munmap(mapping, place.total());
      return nullptr;
    }
  }
  return place.begin(mapping);
}

bool is_untouched(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte b) { return b == std::byte{0xFF}; });
}

// The addresses are not used again, so that who still does is found.
void release(std::byte* begin, std::size_t bytes) {
  const Placement place(bytes);
  std::byte* const mapping = place.mapping(begin);
  if (!is_untouched(mapping + kPage, begin)) refuse("something wrote in front of an allocation of device memory");
  if (!is_untouched(begin + bytes, mapping + kPage + place.mapped)) {
    refuse(fmt::format("something wrote behind an allocation of {} bytes of device memory", bytes));
  }
  map(mapping, place.total(), PROT_NONE, MAP_FIXED | MAP_ANONYMOUS, -1);
}

// ---- damage

// What COMPUTRON_EMULATED_FLIP says.
class Damage {
 public:
  // The bit of the next copy up, of `bytes` at `from`, that is to be another; none: ~0.
  std::uint64_t bit_of_next(const std::byte* from, std::size_t bytes) {
    const char* text = std::getenv("COMPUTRON_EMULATED_FLIP");
    const std::lock_guard lock(mutex_);
    if (said_ != (text == nullptr ? "" : text)) begin(text == nullptr ? "" : text);
    if (said_.empty() || copies_++ != damaged_) return ~std::uint64_t{0};
    if (times_ > 1) {
      reads_ = times_ - 1;
      // Another bit than in the copy.
      read_at_ = from + computron::hash_tuple(damaged_, 1) % bytes;
    }
    return computron::hash_tuple(damaged_, 0) % (8 * bytes);
  }
  void read(const std::byte* p, std::span<std::byte> value) {
    if (reads_ == 0 || read_at_ < p || read_at_ >= p + value.size()) return;
    --reads_;
    value[static_cast<std::size_t>(read_at_ - p)] ^= std::byte{4};
  }

 private:
  void begin(const char* text) {
    said_ = text;
    copies_ = 0;
    times_ = 1;
    if (!said_.empty() && std::sscanf(text, "%" SCNu64 ":%d", &damaged_, &times_) < 1) {
      refuse("COMPUTRON_EMULATED_FLIP is not COPY[:TIMES]");
    }
  }

  std::mutex mutex_;
  std::string said_;
  std::uint64_t copies_ = 0, damaged_ = 0;
  int times_ = 1;
  std::atomic<int> reads_ = 0;
  std::atomic<const std::byte*> read_at_ = nullptr;
};

Damage& damage() {
  static auto& made = *new Damage;
  return made;
}

// ---- copies

enum class Side { kDevice, kPinned, kPageable, kBroken };  // broken: leaves an allocation or a registered slab

Side side_of(const void* p, std::size_t bytes) {
  const std::uintptr_t begin = address(p), end = begin + bytes;
  const std::lock_guard lock(memory().mutex);
  if (memory().device.holds(begin, end)) return Side::kDevice;
  if (memory().pinned.holds(begin, end)) return Side::kPinned;
  return memory().device.touches(begin, end) || memory().pinned.touches(begin, end) ? Side::kBroken : Side::kPageable;
}

bool is_host(Side side) { return side == Side::kPinned || side == Side::kPageable; }

bool fits(cudaMemcpyKind kind, Side to, Side from) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return is_host(from) && to == Side::kDevice;
    case cudaMemcpyDeviceToHost:
      return from == Side::kDevice && is_host(to);
    case cudaMemcpyDeviceToDevice:
      return from == Side::kDevice && to == Side::kDevice;
    default:
      refuse(fmt::format("copies of kind {} are not emulated", static_cast<int>(kind)));
  }
}

void count_unregistered() {
  ++unregistered_copies;
  if (setting("COMPUTRON_EMULATED_PINNED_ONLY", 0) == 1) refuse("a copy of host memory that is not registered");
}

// `then`: of memory().unregistered, when the copy was given. Streams meet in no lock here, which would order them for a
// thread sanitizer where nothing else does.
void check_still_registered(Side side, const void* p, std::size_t bytes, std::size_t then) {
  if (side != Side::kPinned || memory().unregistered.load(std::memory_order_relaxed) == then) return;
  if (!is_pinned_memory(p, bytes)) refuse("host memory was unregistered while a copy was under way");
}

// The engine takes what goes up in turn, from whatever stream: kernels would stall behind pages.
void check_engine(cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind != cudaMemcpyHostToDevice || setting("COMPUTRON_EMULATED_ENGINE_BUSY", 0) == 0) return;
  if (runs_kernels(stream)) refuse("a copy up to the device, on a stream of kernels, waits for the pages under way");
}

// The source may be used again at once.
void copy_from_pageable(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  count_unregistered();
  if (captures(stream)) refuse("a copy of host memory that is not registered is captured");
  const auto* const begin = static_cast<const std::byte*>(from);
  enqueue(stream, [to, content = std::vector<std::byte>(begin, begin + bytes)] {
    std::memcpy(to, content.data(), content.size());
  });
}

// Over when this returns.
void copy_to_pageable(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  count_unregistered();
  if (captures(stream)) refuse("a copy of host memory that is not registered is captured");
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  wait_for(stream);
}

void copy(void* to, Side to_side, const void* from, Side from_side, std::size_t bytes, cudaStream_t stream) {
  const bool is_page = from_side == Side::kPinned && !runs_kernels(stream);
  const std::uint64_t flip =
      is_page ? damage().bit_of_next(static_cast<const std::byte*>(from), bytes) : ~std::uint64_t{0};
  enqueue(stream, [=, then = memory().unregistered.load(std::memory_order_relaxed)] {
    check_still_registered(from_side, from, bytes, then);
    check_still_registered(to_side, to, bytes, then);
    std::memcpy(to, from, bytes);
    if (flip < 8 * bytes) static_cast<std::byte*>(to)[flip / 8] ^= std::byte{1} << (flip % 8);
  });
}

// ---- errors: name and text as the runtime gives them

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
};

const ErrorText& text_of(cudaError_t error) {
  static constexpr ErrorText kOther{cudaErrorUnknown, "unrecognized error code", "unrecognized error code"};
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors), [=](auto& e) { return e.error == error; });
  return found == std::end(kErrors) ? kOther : *found;
}

}  // namespace

void damage_read(const void* p, std::span<std::byte> value) { damage().read(static_cast<const std::byte*>(p), value); }

std::size_t most_shared() {
  static const std::size_t bytes = setting("COMPUTRON_EMULATED_SHARED_MEMORY", kShared);
  return bytes;
}

bool is_device_memory(const void* p, std::size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  return memory().device.holds(address(p), address(p) + bytes);
}

bool is_pinned_memory(const void* p, std::size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  return memory().pinned.holds(address(p), address(p) + bytes);
}

}  // namespace computron::emulated_gpu

using namespace computron::emulated_gpu;

extern "C" {

const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return told(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return told(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
  std::memcpy(properties->uuid.bytes, "emulated\0\1\2\3\4\5\6\xFF", sizeof properties->uuid.bytes);
  properties->totalGlobalMem = total_memory();
  properties->major = 9;
  properties->multiProcessorCount = kMultiprocessors;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = most_shared();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device == 0 && attribute == cudaDevAttrMultiProcessorCount) {
    *value = kMultiprocessors;
  } else if (device == 0 && attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin) {
    *value = static_cast<int>(most_shared());
  } else {
    return told(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

// Of a domain that no machine has.
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (device != 0) return told(cudaErrorInvalidDevice);
  const std::string id = "FFFF:FF:1F.0";
  if (length <= static_cast<int>(id.size())) return told(cudaErrorInvalidValue);
  std::memcpy(text, id.c_str(), id.size() + 1);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  const std::lock_guard lock(memory().mutex);
  *total_bytes = total_memory();
  *free_bytes = total_memory() - memory().taken;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  *p = nullptr;
  if (bytes == 0) return cudaSuccess;
  const std::lock_guard lock(memory().mutex);
  if (bytes > total_memory()) return told(cudaErrorMemoryAllocation);
  const Placement place(bytes);
  if (place.mapped > total_memory() - memory().taken) return told(cudaErrorMemoryAllocation);
  *p = allocate(place);
  if (*p == nullptr) return told(cudaErrorMemoryAllocation);
  memory().device.add(*p, bytes);
  memory().taken += place.mapped;
  memory().most_taken = std::max(memory().most_taken, memory().taken);
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  wait_for_all_streams();
  if (p == nullptr) return cudaSuccess;
  const std::lock_guard lock(memory().mutex);
  const std::size_t bytes = memory().device.remove(p);
  if (bytes == 0) return told(cudaErrorInvalidValue);
  memory().taken -= Placement(bytes).mapped;
  release(static_cast<std::byte*>(p), bytes);
  return cudaSuccess;
}

// Whole pages are pinned.
cudaError_t cudaHostRegister(void* p, std::size_t bytes, unsigned /*flags*/) {
  if (p == nullptr || bytes == 0) return told(cudaErrorInvalidValue);
  const std::uintptr_t begin = address(p) / kPage * kPage;
  const std::lock_guard lock(memory().mutex);
  if (memory().pinned.touches(begin, computron::round_up(address(p) + bytes, kPage))) {
    return told(cudaErrorHostMemoryAlreadyRegistered);
  }
  memory().pinned.add(p, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* p) {
  const std::lock_guard lock(memory().mutex);
  if (memory().pinned.remove(p) == 0) return told(cudaErrorHostMemoryNotRegistered);
  memory().unregistered.fetch_add(1, std::memory_order_relaxed);
  return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  if (flags != 0 || !is_pinned_memory(host, 1)) return told(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  ++copies;
  const Side to_side = side_of(to, bytes), from_side = side_of(from, bytes);
  if (to_side == Side::kBroken || from_side == Side::kBroken) return told(cudaErrorInvalidValue);
  if (!fits(kind, to_side, from_side)) refuse("a copy between other kinds of memory than it says");
  check_engine(kind, stream);
  if (address(to) < address(from) + bytes && address(from) < address(to) + bytes) refuse("a copy onto its own source");
  if (from_side == Side::kPageable) {
    copy_from_pageable(to, from, bytes, stream);
  } else if (to_side == Side::kPageable) {
    copy_to_pageable(to, from, bytes, stream);
  } else {
    copy(to, to_side, from, from_side, bytes, stream);
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!is_device_memory(to, bytes)) return told(cudaErrorInvalidValue);
  enqueue(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

}  // extern "C"
