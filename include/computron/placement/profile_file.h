// Profiles as a file that a person may write: a JSON object
//
//   {"machine": {"device_memory": "13GiB", "host_memory": "480GiB", "ranks_per_node": 8, "link_gbps": 12},
//    "models": [{"id": "bert",
//                "shapes": [{"stage_s": [0.2375], "stage_bytes": ["5.66GB"]},
//                           {"pp": 2, "stage_s": [0.12, 0.12], "stage_bytes": ["2.83GB", "2.83GB"], "layers": [17,
//                           15]},
//                           {"tp": 4, "stage_s": [0.0886], "stage_bytes": [1396000000]}]},
//               {"id": "gpt", "by_layer": [{"pp": [1, 2, 4], "embedding": {"s": 0.001, "bytes": "200MB"},
//                                           "blocks": [{"count": 32, "s": 0.007, "bytes": "160MB"}],
//                                           "head": {"s": 0.004, "bytes": "200MB"}}]}]}
//
// src/placement/README.md ("The file of profiles") explains every key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "computron/placement/profile.h"

namespace computron {

// What a file says of the machine; 0 where it says nothing.
struct MachineProfile {
  std::int64_t device_bytes = 0;  // of a rank, for weights
  std::int64_t host_bytes = 0;    // of a node, for weights
  int ranks_per_node = 0;
  double link_bytes_per_s = 0;  // of each rank
  std::int64_t page_bytes = 0;
  double stage_penalty = 0;   // every stage takes 1 + penalty · stages as long as its profile says
  double constant_s = 0;      // and every request so much more
  double absent_share = 0;    // of passes that find their model absent: what cuts into stages are made for
  double step_latency_s = 0;  // from rank 0 to a rank, and back
};

struct ProfileFile {
  MachineProfile machine;
  std::vector<ModelProfile> models;  // at least one, ids differ, each has a shape
};

// Error{kNoInput} or {kUsage} naming file, model, shape and key.
ProfileFile read_profiles(const std::string& file);

// What read_profiles() reads as the same profiles, bit for bit but for the link's rate, which is written in GB/s.
std::string profile_text(const ProfileFile& profiles);

}  // namespace computron
