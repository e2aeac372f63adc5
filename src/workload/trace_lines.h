// Lines of a trace, with errors that name file and line.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace computron {

constexpr std::int32_t kMostTokens = 1 << 30;  // that a trace may say of a prompt or an answer

class TraceLines {
 public:
  // Error{kNoInput} where the file cannot be read.
  explicit TraceLines(std::string file);

  // The next line that is not empty, without its line break; false behind the last one.
  bool next();
  const std::string& line() const { return line_; }

  // The line cut at commas; Error{kData} unless there are at least `fewest` fields. Valid until the next line.
  const std::vector<std::string_view>& fields(std::size_t fewest);

  // Error{kData} unless `text` is a finite number, or a whole one that is not negative.
  double number(std::string_view text) const;
  std::uint32_t count(std::string_view text) const;

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  std::string file_;
  std::ifstream stream_;
  std::string line_;
  std::size_t number_ = 0;
  std::vector<std::string_view> fields_;
};

}  // namespace computron
