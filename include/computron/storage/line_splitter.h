// Cuts a stream of bytes into lines, in constant memory whatever the length of a line.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "computron/base/digest.h"
#include "computron/base/types.h"
#include "computron/storage/custom_id_scanner.h"

namespace computron {

// A line that is not blank, without its end.
struct InputLine {
  RequestId number = 0;     // 0-based, blank lines counted
  std::uint64_t begin = 0;  // of its first byte in the stream
  std::string_view text;    // empty if it is too long
  std::size_t bytes = 0;
  bool too_long = false;
  std::optional<std::string> long_id = {};  // of one that is too long: its custom_id, if it was found
  Digest128 key{};  // XXH3-128 of its bytes; of one that is too long, of as many as are kept and of how many there are
};

// A line ends with LF, CRLF or the end of the input. Blank ones are counted but not delivered.
class LineSplitter {
 public:
  // Takes one line; false when no more are wanted.
  using Deliver = std::function<bool(const InputLine&)>;

  LineSplitter(std::size_t max_line_bytes, Deliver deliver);

  // False once `deliver` has said so.
  bool feed(std::string_view bytes);
  // The input is over: what has come since the last newline is a line too.
  bool end();
  // So far; blank ones count.
  RequestId lines() const { return line_number_; }

 private:
  void append(std::string_view part);
  bool finish_line();

  std::size_t max_line_bytes_;
  Deliver deliver_;
  RequestId line_number_ = 0;
  std::uint64_t line_begin_ = 0;
  std::string line_;  // what has come of the line; emptied once it proves too long
  std::size_t line_bytes_ = 0;
  // Of a line that is too long: goes on looking for its custom_id.
  std::optional<CustomIdScanner> scanner_;
  Digest128 start_key_{};  // of the bytes that would have been kept of it
};

}  // namespace computron
