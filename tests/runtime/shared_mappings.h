// What /proc says of the memory that this process shares with others.
#pragma once

#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>

namespace computron::test {

// Of all mappings of shared pages, or of one of them.
struct SharedMappings {
  int count = 0;
  int writable = 0;
  std::size_t bytes = 0;      // mapped
  std::size_t pss_bytes = 0;  // this process's share of what is there: 1/n of what n have
};

inline SharedMappings shared_mappings() {
  SharedMappings found;
  std::ifstream smaps("/proc/self/smaps");
  bool ours = false;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream fields(line);
    std::string first, second;
    fields >> first >> second;
    if (!first.ends_with(':')) {  // "begin-end rw-s offset device inode name"
      ours = line.find("/memfd:computron pages") != std::string::npos;
      found.count += ours;
      found.writable += ours && second[1] == 'w';
      continue;
    }
    if (!ours) continue;
    if (first == "Size:") found.bytes += std::stoul(second) * 1024;
    if (first == "Pss:") found.pss_bytes += std::stoul(second) * 1024;
  }
  return found;
}

}  // namespace computron::test
