#include "files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "computron/base/error.h"

namespace computron {
namespace {

[[noreturn]] void refuse(const std::string& path, const char* why) {
  throw Error(ExitCode::kCannotCreate, fmt::format("cannot create '{}': it is {}", path, why));
}

[[noreturn]] void fail_open(const std::string& path, int cause) {
  if (cause == ELOOP) refuse(path, file_kind(S_IFLNK));
  const bool permission = cause == EACCES || cause == EPERM;
  throw Error(permission ? ExitCode::kPermission : ExitCode::kCannotCreate,
              fmt::format("cannot create '{}': {}", path, std::strerror(cause)));
}

[[noreturn]] void fail_io(const char* verb, const std::string& path, int cause) {
  throw Error(ExitCode::kIo, fmt::format("cannot {} '{}': {}", verb, path, std::strerror(cause)));
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

bool stat_input(const std::string& input_path, struct stat& status) {
  if (input_path.empty()) return false;
  return (input_path == "-" ? fstat(STDIN_FILENO, &status) : stat(input_path.c_str(), &status)) == 0;
}

std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Some file systems cannot fsync a folder and say so with EINVAL; their renames are as durable as they get.
void sync_folder(const std::string& folder) {
  const FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || (fsync(fd.get()) != 0 && errno != EINVAL)) fail_io("make durable the folder", folder, errno);
}

}  // namespace

const char* file_kind(unsigned mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return "a regular file";
    case S_IFDIR:
      return "a directory";
    case S_IFLNK:
      return "a symbolic link";
    case S_IFIFO:
      return "a FIFO";
    case S_IFSOCK:
      return "a socket";
    default:
      return "a device";
  }
}

void check_replaceable(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) refuse(path, file_kind(status.st_mode));
}

FileDescriptor open_output(const std::string& path, const std::string& input_path) {
  check_replaceable(path);
  // Not O_TRUNC: the file may turn out to be the input. O_NONBLOCK: a FIFO that appears meanwhile must not hang us.
  FileDescriptor fd(open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!fd) fail_open(path, errno);
  struct stat status {
  }, input{};
  if (fstat(fd.get(), &status) != 0) fail_open(path, errno);
  if (!S_ISREG(status.st_mode)) refuse(path, file_kind(status.st_mode));
  if (stat_input(input_path, input) && same_file(status, input)) refuse(path, "the input");
  if (ftruncate(fd.get(), 0) != 0) fail_open(path, errno);
  return fd;
}

void write_all(int fd, const std::string& path, std::string_view bytes, std::uint64_t& written) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw Error(ExitCode::kIo,
                  fmt::format("cannot write '{}': {} (after {} bytes)", path, std::strerror(errno), written));
    }
    written += static_cast<std::uint64_t>(count);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void publish(int fd, const std::string& partial_path, const std::string& path) {
  if (fsync(fd) != 0) fail_io("make durable", partial_path, errno);
  if (std::rename(partial_path.c_str(), path.c_str()) != 0) fail_io("rename the finished output to", path, errno);
  sync_folder(folder_of(path));
}

}  // namespace computron
