// Reads lines of the input again that were read, parsed and forgotten: a thread fetches each from its place, sees that
// it is the one that it was, and parses it anew.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "computron/requests/request_reader.h"

namespace computron {

class LineRereader {
 public:
  // At most `count` bytes of the input from `begin` on, fewer only at its end. Called by the thread.
  using ReadAt = std::function<std::string(std::uint64_t begin, std::size_t count)>;

  // `input`: what errors call it.
  LineRereader(std::string input, RequestParser parser, ReadAt read_at);
  ~LineRereader();  // does not wait for lines that were asked for

  // Whoever asks bounds how many lines are on their way. Never blocks.
  void ask(const LinePlace& place);
  // The next of those that were asked for, in that order, if it is there; never blocks. Rethrows what went wrong once
  // what was read before it has been handed out: Error{kIo}, or Error{kData} naming input and line where the line is
  // another one than it was.
  std::optional<IncomingRequest> poll();

 private:
  void run();
  void read_asked();
  IncomingRequest read(const LinePlace& place);

  std::string input_;
  RequestParser parser_;
  ReadAt read_at_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_;
  std::deque<LinePlace> asked_;
  std::deque<IncomingRequest> read_;
  bool stopping_ = false;
  std::exception_ptr failure_;

  std::thread thread_;
};

}  // namespace computron
