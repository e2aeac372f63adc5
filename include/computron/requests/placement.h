// Which models are served by which ranks: `--placement FILE`, a JSON object
//
//   {"models": [{"id": "a", "path": "a.h5"}, ...],             optional: as in a model list, instead of --model(s)
//    "groups": [{"tp": 2, "pp": 1, "models": ["a", "b"]},      over the ranks 0 and 1
//               {"pp": 2, "models": ["b"],                     over 2 and 3; tp and pp are 1 where they are absent
//                "layers": {"b": [10, 14]}}],                  optional: of each of its stages
//    "predicted": {...}}                                       optional: what `computron plan` expects, for metrics
//
// A group has consecutive ranks, in the order of the list. A model that several groups have is replicated.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "computron/requests/model_list.h"

namespace computron {

// A group of tp · pp ranks with resident models of its own.
struct GroupSpec {
  int tp = 1;
  int pp = 1;
  std::vector<std::string> models;                 // ids
  std::map<std::string, std::vector<int>> layers;  // [id][stage]; models without an entry are cut by their parameters
};

struct Placement {
  std::vector<ModelEntry> models;  // empty: they are named elsewhere
  std::vector<GroupSpec> groups;   // at least one
  std::string predicted;           // JSON, as it stands there; empty: none
};

// Error{kNoInput} or {kUsage} naming file, group and key.
Placement read_placement(const std::string& file);

// "tp 2 x pp 1: a, b; tp 1 x pp 2: b (10 + 14 layers)".
std::string to_string(const std::vector<GroupSpec>& groups);

}  // namespace computron
