// A subcommand under mpirun or srun: MPI around it, and the same exit code on every rank.
#pragma once

#include <functional>

#include "computron/comm/mpi.h"

namespace computron {

// Starts MPI and logging, runs `command` and ends MPI. A failure that all ranks agreed on (VoteError) ends them in
// order with CLI::RuntimeError of its code; any other ends the whole job at once and does not return. Either way the
// rank that failed, and no other, says why.
//
// Ranks that agreed on a failure have nothing left to do but to end. Where no heartbeat has set a limit, one that waits
// for another in MPI_Finalize for more than `refusal_limit_s` seconds ends with the failure's code, and the launcher
// ends the other.
void run_under_mpi(bool quiet, const std::function<void(Communicator world)>& command, double refusal_limit_s = 60);

}  // namespace computron
