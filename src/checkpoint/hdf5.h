// The one wrapper of HDF5's C interface: an owner for its ids, a check for its calls, and the state of the library.
// Private to src/checkpoint; no other folder includes HDF5's headers.
#pragma once

#define H5_USE_110_API
#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "src/checkpoint/subject.h"

namespace computron::hdf5 {

// Throws `subject` with the call's name and the innermost message of HDF5's error stack.
[[noreturn]] void fail_call(const Subject& subject, const char* call);

template <class Result>
Result check(Result result, const Subject& subject, const char* call) {
  if (result < 0) fail_call(subject, call);
  return result;
}

// H5_CHECK(subject, H5Gopen2, parent, name, H5P_DEFAULT): the call's result, or an Error naming subject and call.
#define H5_CHECK(subject, function, ...) ::computron::hdf5::check(function(__VA_ARGS__), subject, #function)

// Owns an HDF5 id. Closing quietly ignores failures; close() reports them.
class Id {
 public:
  using Close = herr_t (*)(hid_t);
  Id(hid_t id, Close close) : id_(id), close_(close) {}
  Id(Id&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Id& operator=(Id&&) = delete;
  ~Id() {
    if (id_ >= 0) close_(id_);
  }

  operator hid_t() const { return id_; }
  void close(const Subject& subject) { check(close_(std::exchange(id_, H5I_INVALID_HID)), subject, "closing"); }

 private:
  hid_t id_;
  Close close_;
};

// While one lives, this thread alone is in HDF5 (not every build of the library is thread-safe) and HDF5 prints
// nothing. The first one shuts every way in which the environment or a file could make the library load code or open
// other files: plug-ins, drivers, external links.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  std::unique_lock<std::mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* print_data_ = nullptr;
};

// File access properties: plain files only, no locking (flock fails on some parallel file systems), object format of
// HDF5 1.8 or newer (attributes may exceed 64 KiB), data of at least `alignment` bytes aligned to `alignment`.
Id file_access(const Subject& subject, hsize_t alignment);

}  // namespace computron::hdf5
