#include "computron/base/memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace computron {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// The number in a control file; kUnlimited for "max", an absurdly large value or a missing file.
std::size_t read_number(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::uint64_t value = 0;
  if (!(in >> value) || value >= (std::uint64_t{1} << 60)) return kUnlimited;
  return value;
}

std::size_t mem_available() {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("MemAvailable:")) continue;
    std::istringstream fields(line.substr(13));
    std::size_t kib = 0;
    fields >> kib;
    return kib * 1024;
  }
  return kUnlimited;
}

// Page cache that the group would give back when asked: counted as used, but obtainable.
std::size_t reclaimable(const std::filesystem::path& group, const char* key) {
  std::ifstream in(group / "memory.stat");
  std::string name;
  for (std::size_t value = 0; in >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

// The tightest limit on the way from the process's group to the hierarchy's root.
void tighten(MemoryLimit& limit, const std::filesystem::path& root, std::string group, const char* max_file,
             const char* used_file, const char* cache_key) {
  for (std::filesystem::path path = root / group.erase(0, 1);; path = path.parent_path()) {
    const std::size_t max = read_number(path / max_file), used = read_number(path / used_file);
    if (max != kUnlimited && used != kUnlimited) {
      const std::size_t busy = used - std::min(used, reclaimable(path, cache_key));
      const std::size_t left = max > busy ? max - busy : 0;
      if (left < limit.bytes) limit = {left, "control group limit " + (path / max_file).string()};
    }
    if (path == root || !path.has_relative_path()) return;
  }
}

}  // namespace

MemoryLimit available_memory() {
  MemoryLimit limit{mem_available(), "MemAvailable"};
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "id:controllers:path"
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) tighten(limit, "/sys/fs/cgroup", group, "memory.max", "memory.current", "inactive_file");
    if (controllers.find("memory") != std::string::npos) {
      tighten(limit, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes",
              "total_inactive_file");
    }
  }
  return limit;
}

std::size_t system_page_bytes() { return static_cast<std::size_t>(getpagesize()); }

}  // namespace computron
