#include "src/checkpoint/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace computron {
namespace {

// Linux moves at most 2 GiB - 4 KiB a call.
constexpr std::size_t kLargestCall = std::size_t{1} << 30;

}  // namespace

void fail_errno(ExitCode code, const std::string& path, const std::string& what) {
  throw Error(code, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

FileDescriptor open_input(const std::string& path) {
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO without writer must not block
  if (!fd) fail_errno(ExitCode::kNoInput, path, "cannot be opened");
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) fail_errno(ExitCode::kNoInput, path, "cannot be examined");
  if (!S_ISREG(status.st_mode)) throw Error(ExitCode::kNoInput, path + ": not a regular file");
  return fd;
}

std::size_t file_bytes(int fd, const std::string& path) {
  struct stat status {};
  if (fstat(fd, &status) != 0) fail_errno(ExitCode::kIo, path, "cannot be examined");
  return static_cast<std::size_t>(status.st_size);
}

std::size_t read_at(int fd, std::size_t offset, std::span<std::byte> bytes, const std::string& path) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        pread(fd, bytes.data() + done, std::min(bytes.size() - done, kLargestCall), static_cast<off_t>(offset + done));
    if (n == 0) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(ExitCode::kIo, path, "cannot be read");
    done += static_cast<std::size_t>(n);
  }
  return done;
}

void write_at(int fd, std::size_t offset, std::span<const std::byte> bytes, const std::string& path) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        pwrite(fd, bytes.data() + done, std::min(bytes.size() - done, kLargestCall), static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(ExitCode::kIo, path, "cannot be written");
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace computron
