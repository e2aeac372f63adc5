// What /proc says of the memory that this process has, alone or with others.
#pragma once

#include <cstddef>
#include <cstdint>
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

// What is there of the mapping that begins at `data`.
inline std::size_t resident_bytes_at(const void* data) {
  std::ifstream smaps("/proc/self/smaps");
  bool wanted = false;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream fields(line);
    std::string first;
    std::size_t kib = 0;
    fields >> first >> kib;
    if (!first.ends_with(':')) wanted = std::stoull(first, nullptr, 16) == reinterpret_cast<std::uintptr_t>(data);
    if (wanted && first == "Rss:") return kib * 1024;
  }
  return ~std::size_t{0};
}

// Bytes behind `key` of this process's status; 0: it does not say.
inline std::size_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoul(line.substr(key.size())) * 1024;
  }
  return 0;
}

// From here on peak_bytes() is the most memory that the process has had. What it has now; 0 where the system does not
// count.
inline std::size_t begin_peak() {
  std::ofstream reset("/proc/self/clear_refs");
  reset << 5 << std::flush;
  return reset ? status_bytes("VmRSS:") : 0;
}
inline std::size_t peak_bytes() { return status_bytes("VmHWM:"); }

}  // namespace computron::test
