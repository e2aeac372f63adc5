// What must be the same on every rank before anything is loaded: ranks on nodes with another program, other libraries
// or other files would compute something else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "computron/comm/mpi.h"
#include "computron/requests/roster.h"

namespace computron {

struct Fact {
  std::string name, value;
};

// Build of the program; the MPI library, oneDNN and, in a build for GPUs, their runtime and NCCL, by version;
// the widest vectors that kernels use; and variables that change what libraries compute.
std::vector<Fact> facts_of_program();
// One an option of `effective`, lines of KEY=VALUE; without those that nodes may have their own of.
std::vector<Fact> facts_of_configuration(std::string_view effective);
// Collective. Of each model's file as this rank's node sees it, for which one rank of the node reads a little of it
// (checkpoint/fingerprint.h). Every rank throws VoteError{kNoInput} or {kIo} naming the file.
std::vector<Fact> facts_of_checkpoints(const Communicator& world, const std::vector<RosterEntry>& models);

// Collective. Every rank throws VoteError{kConfig} if a fact of some rank differs from rank 0's; it names the fact,
// the lowest such rank and both values.
void require_same(const Communicator& world, const std::vector<Fact>& facts);

}  // namespace computron
