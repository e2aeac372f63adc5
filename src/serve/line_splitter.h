// Cuts a stream of bytes into lines and parses each, in constant memory whatever the length of a line.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "computron/serve/request_reader.h"
#include "custom_id_scanner.h"

namespace computron {

// A line ends with LF, CRLF or the end of the input. Blank ones are counted but not delivered.
class LineSplitter {
 public:
  // Takes one request; false when no more are wanted.
  using Deliver = std::function<bool(IncomingRequest)>;

  // Borrows the parser.
  LineSplitter(RequestParser& parser, std::size_t max_line_bytes, Deliver deliver);

  // False once `deliver` has said so.
  bool feed(std::string_view bytes);
  // The input is over: what has come since the last newline is a line too.
  bool end();

 private:
  void append(std::string_view part);
  bool finish_line();
  IncomingRequest refuse_line();

  RequestParser& parser_;
  std::size_t max_line_bytes_;
  Deliver deliver_;
  RequestId line_number_ = 0;
  std::string line_;  // what has come of the line; emptied once it proves too long
  std::size_t line_bytes_ = 0;
  // Of a line that is too long: goes on looking for its custom_id.
  std::optional<CustomIdScanner> scanner_;
};

}  // namespace computron
