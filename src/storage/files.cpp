#include "computron/storage/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "computron/base/log.h"
#include "computron/base/time.h"

namespace computron {
namespace {

[[noreturn]] void refuse(const std::string& path, const char* why) {
  throw Error(ExitCode::kCannotCreate, fmt::format("cannot create '{}': it is {}", path, why));
}

[[noreturn]] void fail_open(const std::string& path, int cause) {
  if (cause == ELOOP) refuse(path, file_kind(S_IFLNK));
  if (cause == ENOSPC || cause == EDQUOT || cause == EIO) fail_io("create", path, cause);
  const bool permission = cause == EACCES || cause == EPERM;
  throw Error(permission ? ExitCode::kPermission : ExitCode::kCannotCreate,
              fmt::format("cannot create '{}': {}", path, std::strerror(cause)));
}

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

bool is_input(const struct stat& file, const std::string& input_path) {
  struct stat input {};
  if (input_path.empty()) return false;
  return (input_path == "-" ? fstat(STDIN_FILENO, &input) : stat(input_path.c_str(), &input)) == 0 &&
         same_file(file, input);
}

std::string folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;

// While it lives, pwrite(2) writes where it is told to: on Linux it appends to a file that is open for that.
class NotAppending {
 public:
  NotAppending(int fd, const std::string& path) : fd_(fd), flags_(fcntl(fd, F_GETFL)) {
    if (flags_ < 0 || fcntl(fd, F_SETFL, flags_ & ~O_APPEND) != 0) fail_io("rewrite", path, errno);
  }
  ~NotAppending() { fcntl(fd_, F_SETFL, flags_); }
  NotAppending(const NotAppending&) = delete;
  NotAppending& operator=(const NotAppending&) = delete;

 private:
  int fd_, flags_;
};

// What an earlier process left may be open to more.
void restrict_to(unsigned mode, const AppendFile& file) {
  constexpr unsigned kOthers = 0066;
  struct stat status {};
  if (fstat(file.fd(), &status) != 0) fail_io("look at", file.path(), errno);
  if ((status.st_mode & kOthers & ~mode) == 0) return;
  if (fchmod(file.fd(), status.st_mode & mode) != 0) fail_io("keep to its owner", file.path(), errno);
}

bool is_full_disk(int cause) { return cause == ENOSPC || cause == EDQUOT; }

}  // namespace

void fail_io(const std::string& verb, const std::string& path, int cause) {
  throw Error(ExitCode::kIo, fmt::format("cannot {} '{}': {}", verb, path, std::strerror(cause)));
}

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

void check_replaceable(const std::string& path, const std::string& input_path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return;
  if (!S_ISREG(status.st_mode)) refuse(path, file_kind(status.st_mode));
  if (is_input(status, input_path)) refuse(path, "the input");
}

// --- OutputFolder -----------------------------------------------------------------------------------------------

OutputFolder::OutputFolder(const std::string& path, SystemCalls& calls)
    : calls_(calls), path_(folder_of(path)), fd_(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (!fd_) fail_open(path, errno);
}

std::string OutputFolder::path_of(const std::string& name) const {
  return (std::filesystem::path(path_) / name).string();
}

void check_creatable(const std::string& path, const std::string& input_path) {
  check_replaceable(path, input_path);
  const OutputFolder folder(path, system_calls());
  if (faccessat(folder.fd(), ".", W_OK | X_OK, AT_EACCESS) != 0) fail_open(path, errno);
}

// O_NONBLOCK: a FIFO that appears meanwhile must not hang us.
FileDescriptor OutputFolder::open(const std::string& name, const std::string& input_path, unsigned mode) const {
  const std::string path = path_of(name);
  constexpr int kFlags = O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  struct stat status {};
  if (fstatat(fd_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(status.st_mode)) {
    refuse(path, file_kind(status.st_mode));
  }
  FileDescriptor fd(calls_.openat(fd_.get(), name.c_str(), kFlags, mode));
  if (!fd || fstat(fd.get(), &status) != 0) fail_open(path, errno);
  if (!S_ISREG(status.st_mode)) refuse(path, file_kind(status.st_mode));
  if (is_input(status, input_path)) refuse(path, "the input");
  return fd;
}

FileDescriptor OutputFolder::open_existing(const std::string& name) const {
  FileDescriptor fd(::openat(fd_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno != ENOENT) fail_open(path_of(name), errno);
  return fd;
}

bool OutputFolder::exists(const std::string& name) const {
  struct stat status {};
  if (fstatat(fd_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno != ENOENT) fail_io("look at", path_of(name), errno);
  return false;
}

void OutputFolder::rename(const std::string& from, const std::string& to) const {
  if (calls_.renameat(fd_.get(), from.c_str(), to.c_str()) == 0) return;
  fail_io(fmt::format("rename '{}' to", path_of(from)), path_of(to), errno);
}

void OutputFolder::remove(const std::string& name) const {
  if (calls_.unlinkat(fd_.get(), name.c_str()) != 0 && errno != ENOENT) fail_io("remove", path_of(name), errno);
}

// Some file systems cannot fsync a folder and say so with EINVAL; their renames are as durable as they get.
void OutputFolder::sync() const {
  if (calls_.fsync(fd_.get()) != 0 && errno != EINVAL) fail_io("make durable the folder", path_, errno);
}

bool OutputFolder::is_gone() const {
  struct stat status {};
  return fstat(fd_.get(), &status) == 0 && status.st_nlink == 0;
}

// --- AppendFile -------------------------------------------------------------------------------------------------

AppendFile::AppendFile(FileDescriptor fd, std::string path, SystemCalls& calls)
    : fd_(std::move(fd)), path_(std::move(path)), calls_(&calls) {
  struct stat status {};
  if (fstat(fd_.get(), &status) != 0) fail_io("look at", path_, errno);
  end_ = static_cast<std::uint64_t>(status.st_size);
}

void AppendFile::check() const {
  if (guard_) guard_();
}

std::size_t AppendFile::append(std::string_view bytes, bool lines) {
  if (broken_) throw Error(ExitCode::kIo, fmt::format("cannot write '{}': an earlier write has failed", path_));
  std::size_t written = 0;
  while (written < bytes.size()) {
    check();
    const ssize_t count = calls_->write(fd_.get(), bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && is_full_disk(errno)) {
      const std::size_t newline = lines ? bytes.substr(0, written).rfind('\n') : std::string_view::npos;
      const std::size_t whole = newline == std::string_view::npos ? 0 : newline + 1;
      cut(end_ + whole);
      return whole;
    }
    if (count < 0) {
      broken_ = true;
      throw Error(ExitCode::kIo,
                  fmt::format("cannot write '{}': {} (after {} bytes)", path_, std::strerror(errno), end_ + written));
    }
    written += static_cast<std::size_t>(count);
  }
  end_ += written;
  return written;
}

void AppendFile::cut(std::uint64_t end) {
  check();
  while (calls_->ftruncate(fd_.get(), static_cast<off_t>(end)) != 0) {
    if (errno != EINTR) fail_io("cut", path_, errno);
  }
  end_ = end;
}

void AppendFile::write_again(std::uint64_t begin, std::uint64_t end) {
  const NotAppending plain(fd_.get(), path_);
  while (begin < end) {
    const std::string bytes = read(begin, std::min<std::uint64_t>(kCopyBytes, end - begin));
    if (bytes.empty()) throw Error(ExitCode::kIo, fmt::format("'{}' changes while it is read", path_));
    begin += put_at(begin, bytes);
  }
}

std::size_t AppendFile::put_at(std::uint64_t offset, std::string_view bytes) const {
  for (;;) {
    check();
    const ssize_t count = calls_->pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EINTR) fail_io("write", path_, errno);
  }
}

void AppendFile::sync_data() {
  if (calls_->fdatasync(fd_.get()) != 0) fail_io("make durable", path_, errno);
}

void AppendFile::sync() {
  if (calls_->fsync(fd_.get()) != 0) fail_io("make durable", path_, errno);
}

std::string AppendFile::read(std::uint64_t offset, std::size_t count) const {
  std::string bytes(count, '\0');
  std::size_t got = 0;
  while (got < count) {
    const ssize_t part = pread(fd_.get(), bytes.data() + got, count - got, static_cast<off_t>(offset + got));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) fail_io("read", path_, errno);
    if (part == 0) break;
    got += static_cast<std::size_t>(part);
  }
  bytes.resize(got);
  return bytes;
}

// --- ReplacementFile --------------------------------------------------------------------------------------------

ReplacementFile::ReplacementFile(const std::string& path, unsigned mode)
    : folder_(path, system_calls()), name_(std::filesystem::path(path).filename().string()) {
  check_replaceable(path, "");
  const std::string partial = name_ + ".partial";
  file_ = AppendFile(folder_.open(partial, "", mode), folder_.path_of(partial), system_calls());
  restrict_to(mode, file_);
  file_.cut(0);
}

void ReplacementFile::put(std::string_view text) { append_all(file_, text, /*lines=*/false, {.limit_s = 0}); }

void ReplacementFile::publish() {
  file_.sync();
  folder_.rename(name_ + ".partial", name_);
  folder_.sync();
}

void append_all(AppendFile& file, std::string_view bytes, bool lines, const DiskWait& wait, std::mutex* mutex) {
  const double start_s = now_s();
  for (bool warned = false;; warned = true) {
    std::unique_lock lock = mutex != nullptr ? std::unique_lock(*mutex) : std::unique_lock<std::mutex>();
    bytes.remove_prefix(file.append(bytes, lines));
    if (lock) lock.unlock();
    if (bytes.empty()) return;
    if (!warned) spdlog::warn("the disk of '{}' is full: waiting for up to {} s", file.path(), wait.limit_s);
    if (now_s() - start_s + wait.retry_s > wait.limit_s || !wait.pause || !wait.pause(wait.retry_s)) break;
  }
  throw Error(ExitCode::kIo,
              fmt::format("cannot write '{}': no space left on the disk (after {} bytes, {:.0f} s waited); what is "
                          "there is kept: make room and run the same command again",
                          file.path(), file.end(), now_s() - start_s));
}

void write_file_atomically(const std::string& path, const std::string& text) {
  ReplacementFile file(path);
  file.put(text);
  file.publish();
}

}  // namespace computron
