// What a checkpoint or folder has otherwise than its model needs it: the first ten are listed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "computron/base/error.h"
#include "computron/base/join.h"

namespace computron {

class Differences {
 public:
  void add(std::string text) {
    if (++count_ <= kListed) listed_.push_back(std::move(text));
  }
  std::size_t count() const { return count_; }

  // ConfigError naming `path`.
  void throw_if_any(const std::string& path, const char* from = "its configuration") const {
    if (count_ == 0) return;
    const std::string more = count_ > kListed ? fmt::format("; and {} more", count_ - kListed) : "";
    throw ConfigError(fmt::format("{}: {} {} from {}: {}{}", path, count_, count_ == 1 ? "difference" : "differences",
                                  from, join(listed_, "; "), more));
  }

 private:
  static constexpr std::size_t kListed = 10;
  std::size_t count_ = 0;
  std::vector<std::string> listed_;
};

}  // namespace computron
