// The one exception type of the program, the few children that somebody catches, and the exit codes they carry.
#pragma once

#include <stdexcept>
#include <string>

namespace computron {

// Exit codes of every command; sysexits.h style (jobs/README.md, "Exit codes").
enum class ExitCode : int {
  kOk = 0,
  kUsage = 64,         // command line or configuration file
  kData = 65,          // input unusable as a whole, checkpoint content invalid
  kNoInput = 66,       // input or checkpoint missing or unreadable
  kDevice = 69,        // no usable device
  kInternal = 70,      // invariant broken, or ranks disagree
  kSystem = 71,        // memory or another system resource not obtainable
  kCannotCreate = 73,  // output cannot be created
  kIo = 74,            // reading or writing failed
  kStopped = 75,       // stopped early; run again to resume
  kComm = 76,          // MPI or NCCL error, peer lost
  kPermission = 77,    // permission refused
  kConfig = 78,        // configuration does not fit the checkpoint or the mesh
  kWatchdog = 79,      // a deadline passed
};

// what() is one line that names the thing at fault; code() is what the process exits with if nobody catches it.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

// The device (or the pool cut from it) cannot hold what was asked for.
class OutOfDeviceMemory : public Error {
 public:
  explicit OutOfDeviceMemory(const std::string& what) : Error(ExitCode::kSystem, what) {}
};

// Model, mesh, memory and checkpoint do not fit each other.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& what) : Error(ExitCode::kConfig, what) {}
};

// The content of a checkpoint is damaged or not a checkpoint.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& what) : Error(ExitCode::kData, what) {}
};

// One request cannot be served; costs only itself. `error_code` is the result line's (invalid_json, ...).
class RequestError : public Error {
 public:
  RequestError(int status, std::string error_code, const std::string& message)
      : Error(ExitCode::kOk, message), status_(status), error_code_(std::move(error_code)) {}
  int status() const noexcept { return status_; }  // HTTP-like: 400, 404, ...
  const std::string& error_code() const noexcept { return error_code_; }

 private:
  int status_;
  std::string error_code_;
};

// A device or feature this build was made without.
class NotCompiled : public Error {
 public:
  explicit NotCompiled(const std::string& what) : Error(ExitCode::kDevice, what) {}
};

// Throws Error{kInternal, what} unless `condition`: an invariant of this program, not of its input.
inline void ensure(bool condition, const char* what) {
  if (!condition) throw Error(ExitCode::kInternal, std::string("internal: ") + what);
}

}  // namespace computron
