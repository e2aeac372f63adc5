#include "computron/device/device.h"

#include "computron/base/error.h"

namespace computron {

void CopyStream::fetch(std::byte* frame, const std::byte* page, std::size_t bytes, const PageName&,
                       std::optional<std::uint64_t> digest) {
  if (digest) throw NotCompiled("this device cannot verify pages in its memory: use --verify-swap off");
  copy_to_device(frame, page, bytes);
}

}  // namespace computron
