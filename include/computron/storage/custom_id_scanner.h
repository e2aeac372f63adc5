// Finds the custom_id of a line that cannot be parsed: malformed, too long to keep, or not UTF-8.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace computron {

// Looks at quotes, brackets, colons and commas only, so damage elsewhere does not matter, and keeps nothing but the
// string at hand: memory is constant whatever the length of the line. Feed a line in pieces, in order.
class CustomIdScanner {
 public:
  void feed(std::string_view bytes);
  // The string value of the outermost object's first key "custom_id", if that has been read whole and is valid.
  const std::optional<std::string>& found() const { return found_; }

 private:
  void feed_in_string(char c);
  void feed_outside(char c);
  void end_string();

  bool in_string_ = false;
  bool escaped_ = false;
  bool value_next_ = false;  // the colon after "custom_id" has been read
  long depth_ = 0;
  std::string string_;  // as it stands between its quotes; of the outermost object only
  std::optional<std::string> found_;
};

}  // namespace computron
