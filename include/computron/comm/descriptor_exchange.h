// Open files that the ranks of a node give each other, such as memory that they share.
//
// They travel as control messages of a Unix socket (SCM_RIGHTS), which works between user and PID namespaces, where
// /proc/PID/fd and pidfd_getfd do not. The sockets have names of the abstract namespace, which is the network
// namespace's, with 128 random bits in them: nothing lies in a file system, and nothing is left of a rank that is
// killed. Whoever connects shows a secret that only the ranks know.
#pragma once

#include <string>
#include <vector>

#include "computron/base/file_descriptor.h"
#include "computron/comm/mpi.h"

namespace computron {

struct ExchangedDescriptors {
  std::vector<FileDescriptor> of;  // [rank of the node]; those not asked for hold none
  std::string refusal;             // why nobody has any: what the system refused to the first rank that it did
};

// Collective over `node`, for the start only: every rank offers `mine` (borrowed; negative: nothing, since the system
// refused it with the error -mine) and gets what the ranks in `wanted` offer. All ranks have what they want, or none
// has anything.
ExchangedDescriptors exchange_descriptors(const Communicator& node, int mine, const std::vector<int>& wanted);

}  // namespace computron
