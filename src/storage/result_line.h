// Result lines as format_result() and format_failure() write them, read again.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "computron/base/types.h"

namespace computron {

// The input line that a result line, without its newline, belongs to; none if it is no result of ours, or a damaged
// one.
std::optional<RequestId> line_of_result(std::string_view line);

// Goes through lines of a file, each with its newline; what follows the last newline is none.
class FileLines {
 public:
  // At most so many bytes from an offset; fewer only at the end.
  using ReadAt = std::function<std::string(std::uint64_t offset, std::size_t count)>;

  FileLines(ReadAt read_at, std::uint64_t begin, std::uint64_t end);

  // Valid until the next call.
  std::optional<std::string_view> next();
  std::uint64_t offset() const { return offset_; }  // behind the last line

 private:
  bool read_more();

  ReadAt read_at_;
  std::uint64_t offset_;
  std::uint64_t end_;
  std::string buffer_;  // from offset_ - used_ on
  std::size_t used_ = 0;
};

}  // namespace computron
