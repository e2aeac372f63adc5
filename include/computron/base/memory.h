// What this machine, or the control group this process lives in, lets it use.
#pragma once

#include <cstddef>
#include <string>

namespace computron {

struct MemoryLimit {
  std::size_t bytes = 0;  // still obtainable
  std::string source;     // "MemAvailable", "cgroup /sys/fs/cgroup/.../memory.max"
};

// The smaller of MemAvailable and what the control groups (v1 and v2, up to the root) leave.
MemoryLimit available_memory();

// Of a page of the system: 4 KiB on x86-64, 4, 16 or 64 on aarch64 (many a Grace has 64).
std::size_t system_page_bytes();

}  // namespace computron
