// A file that a thread of its own appends to, so that no slow disk holds up whoever has something to write. For what no
// result depends on: a disk that fails or does not keep up ends the file and nothing else.
//
//   put() ──> bytes that wait ──> the thread, every tenth of a second or 64 KiB ──> file
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "computron/storage/files.h"

namespace computron {

class BackgroundFile {
 public:
  // Replaces what is there, at once. At most `most_waiting_bytes` wait for the disk. Error{kPermission} or
  // {kCannotCreate}, naming `path`. Borrows `calls`.
  explicit BackgroundFile(const std::string& path, std::size_t most_waiting_bytes = std::size_t{64} << 20,
                          SystemCalls& calls = system_calls());
  ~BackgroundFile();  // what has been put is written first
  BackgroundFile(const BackgroundFile&) = delete;
  BackgroundFile& operator=(const BackgroundFile&) = delete;

  // Two pieces, both or none: false where too much waits. Bytes behind a fault are lost, which fault() tells.
  bool put(std::span<const std::byte> first, std::span<const std::byte> second);
  // Why the file ends before what was put; empty if it does not, as far as is known.
  std::string fault() const;
  // Waits until all that was put has been written, or has failed to be. Nothing may be put any more.
  void close();

 private:
  void run(const std::stop_token& stop);
  std::string write(const std::vector<std::byte>& bytes);

  const std::size_t most_waiting_bytes_;
  AppendFile file_;  // of the thread
  mutable std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<std::byte> waiting_;
  std::string fault_;
  std::jthread thread_;
};

}  // namespace computron
