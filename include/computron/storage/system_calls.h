// The system calls by which results reach the disk, so that a test can put a fault or the end of the process between
// any two of them.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace computron {

// Each as its namesake: negative, with errno, on failure. `folder` is an open one; names are in it.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;
  virtual int openat(int folder, const char* name, int flags, mode_t mode);
  virtual ssize_t write(int fd, const void* bytes, std::size_t count);
  virtual ssize_t pread(int fd, void* bytes, std::size_t count, off_t offset);
  virtual ssize_t pwrite(int fd, const void* bytes, std::size_t count, off_t offset);
  virtual int ftruncate(int fd, off_t length);
  virtual int fsync(int fd);
  virtual int fdatasync(int fd);
  virtual int renameat(int folder, const char* from, const char* to);
  virtual int unlinkat(int folder, const char* name);
  // fcntl(2) with F_OFD_SETLK: a lock of the whole file against all others. Does not wait.
  virtual int lock(int fd);
};

// The system's own.
SystemCalls& system_calls();

}  // namespace computron
