#include "src/requests/image_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "computron/base/error.h"
#include "computron/base/file_descriptor.h"
#include "computron/base/json_text.h"
#include "computron/base/size.h"
#include "computron/storage/files.h"
#include "src/requests/image_decoders.h"

namespace computron {
namespace {

constexpr std::uint8_t kPngMark[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
constexpr std::uint8_t kJpegMark[] = {0xff, 0xd8, 0xff};

bool begins_with(std::span<const std::uint8_t> bytes, std::span<const std::uint8_t> mark) {
  return bytes.size() >= mark.size() && std::equal(mark.begin(), mark.end(), bytes.begin());
}

// O_NONBLOCK, so that a FIFO is refused instead of waited for.
FileDescriptor open_image(const std::string& path, std::size_t& bytes) {
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd || fstat(fd.get(), &status) != 0) refuse_image(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode))
    refuse_image(path, fmt::format("it is {}, not a regular file", file_kind(status.st_mode)));
  bytes = static_cast<std::size_t>(status.st_size);
  return fd;
}

std::vector<std::uint8_t> read_bytes(const std::string& path, std::size_t max_bytes) {
  std::size_t size = 0;
  const FileDescriptor fd = open_image(path, size);
  if (size > max_bytes) {
    refuse_image(path, fmt::format("the file has {}; at most {} are read", format_size(size), format_size(max_bytes)));
  }
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t at = 0; at < size;) {
    const ssize_t count = read(fd.get(), bytes.data() + at, size - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_image(path, std::strerror(errno));
    if (count == 0) refuse_image(path, "it became shorter while it was read");
    at += static_cast<std::size_t>(count);
  }
  return bytes;
}

}  // namespace

void refuse_image(const std::string& path, const std::string& why) {
  throw RequestError(400, "invalid_request", fmt::format("body.image: {}: {}", shown(path), why));
}

void check_image_size(const std::string& path, std::size_t width, std::size_t height, const ImageLimits& limits) {
  const auto side = static_cast<std::size_t>(limits.max_side);
  if (width > 0 && height > 0 && width <= side && height <= side && width * height <= limits.max_pixels) return;
  refuse_image(path, fmt::format("{} x {} pixels; at most {} together and {} a side are read", width, height,
                                 limits.max_pixels, limits.max_side));
}

RgbImage read_image_file(const std::string& path, const ImageLimits& limits) {
  return decode_image(read_bytes(path, limits.max_bytes), path, limits);
}

RgbImage decode_image(std::span<const std::uint8_t> bytes, const std::string& path, const ImageLimits& limits) {
  if (begins_with(bytes, kPngMark)) return decode_png(bytes, path, limits);
  if (begins_with(bytes, kJpegMark)) return decode_jpeg(bytes, path, limits);
  refuse_image(path, "neither a PNG nor a JPEG");
}

}  // namespace computron
