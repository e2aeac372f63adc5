// Puts the results of shards together (`computron merge`): one result a request, in the order of the input.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace computron {

struct MergeOptions {
  std::string output;
  std::vector<std::string> shards;  // result files of `computron serve --shard`, finished
  std::string requests;  // the input they share; empty: only what the shards and their OUT.done say is checked
};

// Returns how many results there are. `output` appears when it is whole, its owner's alone as shards are. Holds 40
// bytes a result in memory, and with `requests` as much again.
//
// Error{kNoInput} naming a shard that is not there, and all those that are unfinished; Error{kData} naming file and
// line for what is no result line, and naming lines and custom_ids of requests with two results, with none, with
// another's, and of results without a request, or without `requests` naming shards that the .done files of the others
// tell to be missing or of another cut; Error{kCannotCreate} if `output` is a shard, the input, or a serving
// job's.
std::uint64_t merge_results(const MergeOptions& options);

}  // namespace computron
