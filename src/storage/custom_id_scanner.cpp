#include "computron/storage/custom_id_scanner.h"

#include "computron/base/json.h"
#include "computron/storage/text_fault.h"

namespace computron {
namespace {

constexpr std::size_t kMaxStringBytes = std::size_t{64} << 10;  // longer ones are taken for damage

struct LastString final : JsonEvents {
  void string(std::string& value) override { text = std::move(value); }
  std::string text;
};

// What a JSON string means that stands as `raw` between its quotes, if it is valid.
std::optional<std::string> decode(const std::string& raw) {
  if (raw.size() > kMaxStringBytes || find_text_fault(raw)) return std::nullopt;
  LastString value;
  if (read_json('"' + raw + '"', value)) return std::nullopt;
  return std::move(value.text);
}

}  // namespace

void CustomIdScanner::feed(std::string_view bytes) {
  for (const char c : bytes) {
    if (found_) return;
    if (in_string_) {
      feed_in_string(c);
    } else {
      feed_outside(c);
    }
  }
}

void CustomIdScanner::feed_in_string(char c) {
  if (c == '"' && !escaped_) return end_string();
  escaped_ = c == '\\' && !escaped_;
  if (depth_ == 1 && string_.size() <= kMaxStringBytes) string_ += c;
}

void CustomIdScanner::end_string() {
  in_string_ = false;
  if (value_next_) found_ = decode(string_);
  value_next_ = false;
}

void CustomIdScanner::feed_outside(char c) {
  switch (c) {
    case '"':
      in_string_ = true;
      if (depth_ == 1) string_.clear();
      break;
    case ':':
      value_next_ = depth_ == 1 && decode(string_) == "custom_id";
      break;
    case ',':
      value_next_ = false;
      break;
    case '{':
    case '[':
      ++depth_;
      value_next_ = false;
      break;
    case '}':
    case ']':
      --depth_;
      value_next_ = false;
      break;
    default:
      break;
  }
}

}  // namespace computron
