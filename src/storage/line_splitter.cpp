#include "computron/storage/line_splitter.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace computron {
namespace {

bool is_blank(std::string_view line, RequestId line_number) {
  if (line_number == 0 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

Digest128 key_of(std::string_view text) { return digest128(std::as_bytes(std::span(text.data(), text.size()))); }

Digest128 key_of(const Digest128& start, std::uint64_t bytes) {
  std::string text(reinterpret_cast<const char*>(start.data()), start.size());
  return key_of(text.append(reinterpret_cast<const char*>(&bytes), sizeof bytes));
}

}  // namespace

LineSplitter::LineSplitter(std::size_t max_line_bytes, Deliver deliver)
    : max_line_bytes_(max_line_bytes), deliver_(std::move(deliver)) {}

bool LineSplitter::feed(std::string_view bytes) {
  for (;;) {
    const std::size_t newline = bytes.find('\n');
    append(bytes.substr(0, newline));
    if (newline == std::string_view::npos) return true;
    if (!finish_line()) return false;
    bytes.remove_prefix(newline + 1);
  }
}

bool LineSplitter::end() { return line_bytes_ == 0 || finish_line(); }

// One byte more than the limit is kept, because it may be the CR of the line's end.
void LineSplitter::append(std::string_view part) {
  line_bytes_ += part.size();
  if (!scanner_) {
    const std::size_t room = max_line_bytes_ + 1 - line_.size();
    line_.append(part.substr(0, room));
    if (line_bytes_ <= max_line_bytes_ + 1) return;
    part.remove_prefix(room);
    start_key_ = key_of(line_);
    scanner_.emplace().feed(line_);
    line_.clear();
  }
  scanner_->feed(part);
}

bool LineSplitter::finish_line() {
  if (line_.ends_with('\r')) line_.pop_back();
  InputLine line{.number = line_number_, .begin = line_begin_, .text = line_, .bytes = line_bytes_};
  line.too_long = scanner_ || line_.size() > max_line_bytes_;
  if (line.too_long) {
    if (!scanner_) {
      start_key_ = key_of(line_);
      scanner_.emplace().feed(line_);
    }
    line.text = {};
    line.long_id = scanner_->found();
    line.key = key_of(start_key_, line.bytes);
  } else {
    line.key = key_of(line_);
  }
  const bool wanted = (!line.too_long && is_blank(line_, line_number_)) || deliver_(line);
  ++line_number_;
  line_.clear();
  line_begin_ += line_bytes_ + 1;
  line_bytes_ = 0;
  scanner_.reset();
  return wanted;
}

}  // namespace computron
