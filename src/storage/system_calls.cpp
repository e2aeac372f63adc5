#include "computron/storage/system_calls.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace computron {

int SystemCalls::openat(int folder, const char* name, int flags, mode_t mode) {
  return ::openat(folder, name, flags, mode);
}

ssize_t SystemCalls::write(int fd, const void* bytes, std::size_t count) { return ::write(fd, bytes, count); }

ssize_t SystemCalls::pread(int fd, void* bytes, std::size_t count, off_t offset) {
  return ::pread(fd, bytes, count, offset);
}

ssize_t SystemCalls::pwrite(int fd, const void* bytes, std::size_t count, off_t offset) {
  return ::pwrite(fd, bytes, count, offset);
}

int SystemCalls::ftruncate(int fd, off_t length) { return ::ftruncate(fd, length); }

int SystemCalls::fsync(int fd) { return ::fsync(fd); }

int SystemCalls::fdatasync(int fd) { return ::fdatasync(fd); }

int SystemCalls::renameat(int folder, const char* from, const char* to) { return ::renameat(folder, from, folder, to); }

int SystemCalls::unlinkat(int folder, const char* name) { return ::unlinkat(folder, name, 0); }

int SystemCalls::lock(int fd) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLK, &whole);
}

SystemCalls& system_calls() {
  static SystemCalls calls;
  return calls;
}

}  // namespace computron
