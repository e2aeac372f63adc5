// Makes memory of a host buffer exist, as zeros, before it is first written, each part once.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "computron/device/device.h"

namespace computron {

class FirstTouch {
 public:
  static constexpr std::size_t kPartBytes = std::size_t{2} << 20;  // a huge page of x86

  // Borrows `buffer`, whose parts have `part_bytes` each.
  explicit FirstTouch(HostBuffer& buffer, std::size_t part_bytes = kPartBytes);
  // Returns when bytes [begin, end) exist. Error{kSystem} where memory runs out.
  void touch(std::size_t begin, std::size_t end);
  // The parts of bytes [begin, end), which nobody uses now, are to be zeros again when they are next touched.
  void clear(std::size_t begin, std::size_t end);

 private:
  enum State : int { kAbsent, kStale, kComing, kThere };
  void make(std::size_t part, int before);

  HostBuffer& buffer_;
  const std::size_t part_bytes_;
  std::vector<std::atomic<int>> parts_;  // State
};

}  // namespace computron
