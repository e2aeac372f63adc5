// Makes memory of a host buffer exist before it is first written, each part once.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "computron/device/device.h"

namespace computron {

class FirstTouch {
 public:
  explicit FirstTouch(HostBuffer& buffer);
  // Returns when bytes [begin, end) exist. Error{kSystem} where memory runs out.
  void touch(std::size_t begin, std::size_t end);

 private:
  enum State : int { kAbsent, kComing, kThere };
  void make(std::size_t part);

  HostBuffer& buffer_;
  std::vector<std::atomic<int>> parts_;  // State
};

}  // namespace computron
