#include "computron/device/device.h"

#include <fmt/format.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "computron/base/error.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // since Linux 6.3
#endif

namespace computron {

void CopyStream::fetch(std::byte* frame, const HostPage& page, const PageName&, std::optional<std::uint64_t> digest) {
  if (digest) throw NotCompiled("this device cannot verify pages in its memory: use --verify-swap off");
  if (page.coded) throw NotCompiled("this device cannot decode pages: use --coded off");
  copy_to_device(frame, page.data, page.bytes);
}

std::unique_ptr<HostBuffer> Device::map_host(int, std::size_t, std::size_t, std::string_view what) {
  throw NotCompiled(fmt::format("this device cannot share host memory for {}", what));
}

// Some systems refuse memory whose descriptor could be executed, older ones do not know the flag.
FileDescriptor make_shared_memory(std::size_t bytes) {
  constexpr const char* kName = "computron pages";
  FileDescriptor memory(memfd_create(kName, MFD_CLOEXEC | MFD_NOEXEC_SEAL));
  if (!memory && errno == EINVAL) memory = FileDescriptor(memfd_create(kName, MFD_CLOEXEC));
  if (memory && ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) return {};
  return memory;
}

}  // namespace computron
