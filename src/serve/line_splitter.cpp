#include "line_splitter.h"

#include <utility>

namespace computron {
namespace {

bool is_blank(std::string_view line, RequestId line_number) {
  if (line_number == 0 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

LineSplitter::LineSplitter(RequestParser& parser, std::size_t max_line_bytes, Deliver deliver)
    : parser_(parser), max_line_bytes_(max_line_bytes), deliver_(std::move(deliver)) {}

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
  if (!scanner_ && line_bytes_ > max_line_bytes_ + 1) {
    scanner_.emplace();
    scanner_->feed(line_);
    line_.clear();
  }
  if (scanner_) {
    scanner_->feed(part);
  } else {
    line_.append(part);
  }
}

bool LineSplitter::finish_line() {
  if (line_.ends_with('\r')) line_.pop_back();
  const bool too_long = scanner_ || line_.size() > max_line_bytes_;
  bool wanted = true;
  if (too_long) {
    wanted = deliver_(refuse_line());
  } else if (!is_blank(line_, line_number_)) {
    wanted = deliver_(parser_.parse(line_number_, line_));
  }
  ++line_number_;
  line_.clear();
  line_bytes_ = 0;
  scanner_.reset();
  return wanted;
}

IncomingRequest LineSplitter::refuse_line() {
  if (!scanner_) scanner_.emplace().feed(line_);
  return parser_.refuse_long(line_number_, line_bytes_, scanner_->found());
}

}  // namespace computron
