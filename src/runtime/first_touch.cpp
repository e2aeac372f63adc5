#include "src/runtime/first_touch.h"

#include <algorithm>
#include <cstring>

#include "computron/base/error.h"
#include "computron/base/size.h"
#include "computron/base/types.h"

namespace computron {

FirstTouch::FirstTouch(HostBuffer& buffer, std::size_t part_bytes)
    : buffer_(buffer), part_bytes_(part_bytes), parts_(ceil_div(buffer.bytes(), part_bytes)) {}

void FirstTouch::touch(std::size_t begin, std::size_t end) {
  const std::size_t first = begin / part_bytes_, last = ceil_div(end, part_bytes_);
  ensure(last <= parts_.size(), "what is touched lies beyond the end of its memory");
  for (std::size_t part = first; part < last; ++part) {
    int state = parts_[part];
    if ((state == kAbsent || state == kStale) && parts_[part].compare_exchange_strong(state, kComing)) {
      make(part, state);
    }
  }
  for (std::size_t part = first; part < last; ++part) parts_[part].wait(kComing);  // for what others make
}

void FirstTouch::clear(std::size_t begin, std::size_t end) {
  for (std::size_t part = begin / part_bytes_; part < ceil_div(end, part_bytes_); ++part) {
    int there = kThere;
    parts_[part].compare_exchange_strong(there, kStale);
  }
}

void FirstTouch::make(std::size_t part, int before) {
  const std::size_t begin = part * part_bytes_, end = std::min(begin + part_bytes_, buffer_.bytes());
  bool made = true;
  if (before == kStale) {
    std::memset(buffer_.data() + begin, 0, end - begin);
  } else {
    made = buffer_.populate(begin, end);
  }
  parts_[part] = kThere;  // also where it is not: nobody may wait for ever
  parts_[part].notify_all();
  if (made) return;
  throw Error(ExitCode::kSystem, "out of memory for pages: " + format_size(buffer_.bytes()) + " do not fit any more");
}

}  // namespace computron
