// Output files: opened in a folder that stays the same one whatever becomes of its name, appended to, cut, made durable
// and renamed, with errors that name the file and the cause.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "computron/base/error.h"
#include "computron/base/file_descriptor.h"
#include "computron/storage/system_calls.h"

namespace computron {

// "a directory", "a FIFO", ...: what an st_mode is, for messages.
const char* file_kind(unsigned mode);

// Error{kIo}: "cannot <verb> '<path>': <what errno `cause` means>".
[[noreturn]] void fail_io(const std::string& verb, const std::string& path, int cause);

// Throws Error{kCannotCreate} if something other than a regular file stands at `path`, or the input: the file
// `input_path` names ("-": standard input; empty: none).
void check_replaceable(const std::string& path, const std::string& input_path);

// The same; and unless the folder of `path` is there, and files can be made in it: Error{kCannotCreate} or
// {kPermission}. What takes long asks first.
void check_creatable(const std::string& path, const std::string& input_path);

// The folder of an output. Names are relative to it.
class OutputFolder {
 public:
  // Of `path`, which need not exist. Error{kPermission} or {kCannotCreate} naming `path`. Borrows `calls`.
  OutputFolder(const std::string& path, SystemCalls& calls);

  // Opens a file to read and append, made with `mode` & ~umask where there is none: what holds prompts or what was made
  // of them is its owner's alone. What is in it stays. Refuses symlinks, whatever is not a regular file and the file
  // `input_path` names.
  FileDescriptor open(const std::string& name, const std::string& input_path, unsigned mode = 0600) const;
  // The same to read; nothing where there is none.
  FileDescriptor open_existing(const std::string& name) const;
  bool exists(const std::string& name) const;
  void rename(const std::string& from, const std::string& to) const;  // Error{kIo}
  void remove(const std::string& name) const;                         // Error{kIo}; nothing if it is not there
  void sync() const;                                                  // names become durable; Error{kIo}
  bool is_gone() const;                                               // removed by somebody

  int fd() const { return fd_.get(); }
  std::string path_of(const std::string& name) const;
  SystemCalls& calls() const { return calls_; }

 private:
  SystemCalls& calls_;
  std::string path_;
  FileDescriptor fd_;
};

// A file that only grows, but for cuts. Once an append has failed for another reason than a full disk, what lies at its
// end is unknown, and every later one fails too.
class AppendFile {
 public:
  AppendFile() = default;
  // Borrows `calls`. `end`: how long the file is.
  AppendFile(FileDescriptor fd, std::string path, SystemCalls& calls);
  // Called before everything that changes the file; throws if it is not to be touched any more.
  void set_guard(std::function<void()> guard) { guard_ = std::move(guard); }

  // All of it; or, where the disk is full, as much as ends with a whole line (nothing of it unless `lines`), with the
  // file cut back to that. How much. Error{kIo} naming path, cause and the bytes in the file for any other failure.
  std::size_t append(std::string_view bytes, bool lines);
  void cut(std::uint64_t end);
  // Writes the same bytes once more where they are. What an earlier process failed to make durable counts as written
  // with the system, which will not try again: the next sync speaks of these bytes only after this.
  void write_again(std::uint64_t begin, std::uint64_t end);
  void sync_data();
  void sync();

  // At most `count` bytes from `offset` on; fewer only at the end.
  std::string read(std::uint64_t offset, std::size_t count) const;
  std::uint64_t end() const { return end_; }
  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }

 private:
  void check() const;
  std::size_t put_at(std::uint64_t offset, std::string_view bytes) const;

  FileDescriptor fd_;
  std::string path_;
  SystemCalls* calls_ = nullptr;
  std::function<void()> guard_;
  std::uint64_t end_ = 0;
  bool broken_ = false;
};

// A file that takes another's place once it is whole: PATH.partial until then.
class ReplacementFile {
 public:
  // `mode` & ~umask as OutputFolder::open(), and no wider where PATH.partial is there already. Error{kPermission} or
  // {kCannotCreate}.
  explicit ReplacementFile(const std::string& path, unsigned mode = 0666);
  void put(std::string_view text);  // Error{kIo}
  void publish();                   // durable, with its name; Error{kIo}

 private:
  OutputFolder folder_;
  std::string name_;
  AppendFile file_;
};

// How long to wait for a full disk, and how.
struct DiskWait {
  double limit_s = 60;
  double retry_s = 5;
  // Sleeps so many seconds; false when there is no time to wait any more.
  std::function<bool(double seconds)> pause = {};
};

// Appends all of it; a full disk is waited for. Error{kIo} naming path, bytes and the time waited. `mutex`, if any, is
// held while something is appended, not while anything is waited for.
void append_all(AppendFile& file, std::string_view bytes, bool lines, const DiskWait& wait,
                std::mutex* mutex = nullptr);

// Writes `text` to `path` through a temporary file and rename. Error{kCannotCreate}/{kIo}.
void write_file_atomically(const std::string& path, const std::string& text);

}  // namespace computron
