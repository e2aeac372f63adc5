// What several model files have in common, as pages.
#pragma once

#include <string>
#include <vector>

namespace computron {

// Prints, for each of the files, how many pages it has as a CPU lays them out on one rank, and how many of them an
// earlier one has, too; `json`: as one JSON object. `page_bytes` 0: as a job would choose them. CheckpointError,
// ConfigError naming the file.
void show_shared_bytes(const std::vector<std::string>& paths, std::size_t page_bytes, bool json);

}  // namespace computron
