// What must be the same on every rank before anything is loaded: ranks on nodes with another program, other libraries
// or other files would compute something else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "computron/comm/mpi.h"
#include "computron/requests/model_list.h"

namespace computron {

// What a rank must have as rank 0 has it: "the MPI library" and its version.
struct RankProperty {
  std::string name, value;
};

// Build of the program; the MPI library and, in a build for GPUs, their runtime and NCCL, by version;
// the instruction set that kernels use; and variables that change what libraries compute.
std::vector<RankProperty> program_properties();
// One an option of `effective`, lines of KEY=VALUE; without those that nodes may have their own of.
std::vector<RankProperty> configuration_properties(std::string_view effective);
// Collective. Of each model's file as this rank's node sees it, for which one rank of the node reads a little of it
// (checkpoint/fingerprint.h). Every rank throws VoteError{kNoInput} or {kIo} naming the file.
std::vector<RankProperty> checkpoint_properties(const Communicator& world, const std::vector<ModelEntry>& models);

// Collective. Every rank throws VoteError{kConfig} if a property of some rank differs from rank 0's; it names the
// property, the lowest such rank and both values.
void require_same(const Communicator& world, const std::vector<RankProperty>& properties);

}  // namespace computron
