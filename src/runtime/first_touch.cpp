#include "src/runtime/first_touch.h"

#include <algorithm>

#include "computron/base/error.h"
#include "computron/base/size.h"
#include "computron/base/types.h"

namespace computron {
namespace {

constexpr std::size_t kTouchBytes = std::size_t{2} << 20;  // a huge page of x86

}  // namespace

FirstTouch::FirstTouch(HostBuffer& buffer) : buffer_(buffer), parts_(ceil_div(buffer.bytes(), kTouchBytes)) {}

void FirstTouch::touch(std::size_t begin, std::size_t end) {
  const std::size_t first = begin / kTouchBytes, last = ceil_div(end, kTouchBytes);
  for (std::size_t part = first; part < last; ++part) {
    int absent = kAbsent;
    if (parts_[part].compare_exchange_strong(absent, kComing)) make(part);
  }
  for (std::size_t part = first; part < last; ++part) parts_[part].wait(kComing);  // for what others make
}

void FirstTouch::make(std::size_t part) {
  const std::size_t begin = part * kTouchBytes, end = std::min(begin + kTouchBytes, buffer_.bytes());
  const bool made = buffer_.populate(begin, end);
  parts_[part] = kThere;  // also where it is not: nobody may wait for ever
  parts_[part].notify_all();
  if (made) return;
  throw Error(ExitCode::kSystem, "out of memory for pages: " + format_size(buffer_.bytes()) + " do not fit any more");
}

}  // namespace computron
