// System calls that go wrong where a test wants it.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "computron/storage/system_calls.h"

namespace computron {

// Does what the system does up to a chosen call. From there on the process counts as ended: no call has an effect (each
// fails with EIO). The chosen call itself, if it is a write, reaches the file in part. Or, instead of the end, that one
// call fails with an error of its own.
class FailingCalls : public SystemCalls {
 public:
  static constexpr int kNever = 1 << 30;

  // The call of number `at`, from 0 on.
  void end_at(int at, double part_of_write = 0) { end_ = at, part_ = part_of_write; }
  void fail_at(int at, int error) { fail_ = at, error_ = error; }
  void fail_while(std::function<int()> error) { error_now_ = std::move(error); }  // 0: no error; of writes
  int calls() const { return count_; }
  bool ended() const { return count_ > end_; }
  const std::vector<std::string>& log() const { return log_; }
  void fail_reads(int error) { read_error_ = error; }  // of OUT.lock; 0: no more
  // Writes of at most so many bytes.
  void write_at_most(std::size_t bytes) { most_ = bytes; }

  int openat(int folder, const char* name, int flags, mode_t mode) override {
    return call("open", [&] { return SystemCalls::openat(folder, name, flags, mode); });
  }
  ssize_t write(int fd, const void* bytes, std::size_t count) override {
    if (const int error = error_now_ ? error_now_() : 0) return errno = error, -1;
    const bool last = count_ == end_;
    if (last) SystemCalls::write(fd, bytes, static_cast<std::size_t>(part_ * static_cast<double>(count)));
    return call("write", [&] { return SystemCalls::write(fd, bytes, std::min(count, most_)); });
  }
  ssize_t pread(int fd, void* bytes, std::size_t count, off_t offset) override {
    if (read_error_ != 0) return errno = read_error_, -1;
    return SystemCalls::pread(fd, bytes, count, offset);
  }
  ssize_t pwrite(int fd, const void* bytes, std::size_t count, off_t offset) override {
    const std::size_t part = static_cast<std::size_t>(part_ * static_cast<double>(count));
    if (count_ == end_) SystemCalls::pwrite(fd, bytes, part, offset);
    return call("write", [&] {
      note_rewrite(fd, offset, static_cast<off_t>(std::min(count, most_)));
      return SystemCalls::pwrite(fd, bytes, std::min(count, most_), offset);
    });
  }
  int ftruncate(int fd, off_t length) override {
    return call("ftruncate", [&] {
      struct stat status {};
      if (fstat(fd, &status) == 0 && synced_.contains(status.st_ino)) {
        synced_[status.st_ino] = std::min<off_t>(synced_[status.st_ino], length);
      }
      return SystemCalls::ftruncate(fd, length);
    });
  }
  int fsync(int fd) override {
    return call(
        "fsync", [&] { return note_sync(fd); }, [&] { note_failed_sync(fd); });
  }
  int fdatasync(int fd) override {
    return call(
        "fdatasync", [&] { return note_sync(fd); }, [&] { note_failed_sync(fd); });
  }
  int renameat(int folder, const char* from, const char* to) override {
    return call("rename", [&] { return SystemCalls::renameat(folder, from, to); });
  }
  int unlinkat(int folder, const char* name) override {
    return call("unlink", [&] { return SystemCalls::unlinkat(folder, name); });
  }

  // As if the machine had lost its power: of the file that is `path` now, what was not made durable is gone, but for
  // the first `luck` of it.
  void lose_power(const std::string& path, double luck) const {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) return;
    const auto synced = synced_.find(status.st_ino);
    const double safe = synced == synced_.end() ? 0 : static_cast<double>(synced->second);
    const double end = static_cast<double>(status.st_size);
    if (end <= safe) return;
    ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(safe + luck * (end - safe))), 0);
  }

 private:
  static void nothing() {}
  template <class Call, class Failed = void (*)()>
  auto call(const char* name, Call&& real, Failed&& failed = nothing) -> decltype(real()) {
    const int number = count_++;
    log_.emplace_back(name);
    if (number >= end_) return errno = EIO, -1;
    if (number == fail_) return failed(), errno = error_, -1;
    return real();
  }
  int note_sync(int fd) {
    struct stat status {};
    if (fstat(fd, &status) != 0) return 0;
    const auto hole = holes_.find(status.st_ino);
    synced_[status.st_ino] = hole == holes_.end() ? status.st_size : hole->second.first;
    return 0;  // the tests' disk need not turn
  }
  // As Linux does it: what could not be written counts as written, and no later sync tries it again.
  void note_failed_sync(int fd) {
    struct stat status {};
    if (fstat(fd, &status) == 0) holes_[status.st_ino] = {synced_[status.st_ino], status.st_size};
  }
  void note_rewrite(int fd, off_t offset, off_t count) {
    struct stat status {};
    const auto hole = fstat(fd, &status) == 0 ? holes_.find(status.st_ino) : holes_.end();
    if (hole == holes_.end() || offset > hole->second.first) return;
    hole->second.first = std::max(hole->second.first, offset + count);
    if (hole->second.first >= hole->second.second) holes_.erase(hole);
  }

  int count_ = 0, end_ = kNever, fail_ = kNever, error_ = 0;
  double part_ = 0;
  std::size_t most_ = SIZE_MAX;
  std::function<int()> error_now_;
  std::vector<std::string> log_;
  std::map<ino_t, off_t> synced_;
  std::map<ino_t, std::pair<off_t, off_t>> holes_;  // that a failed sync has left: from, to
  int read_error_ = 0;
};

}  // namespace computron
