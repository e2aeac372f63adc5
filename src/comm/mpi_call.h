// MPI's own types and error codes, for the sources of this floor only.
#pragma once

#include <mpi.h>

#include <string>

namespace computron {

// Throws Error{kComm, "call: MPI's text"} unless `status` is MPI_SUCCESS.
void check_mpi(int status, const std::string& call);
// MPI_Error_string of `status`.
std::string mpi_text(int status);
// Between MPI_Init and MPI_Finalize.
bool mpi_usable() noexcept;

// Waits for a collective operation of start-up: tests, yields, then sleeps, so that ranks with work keep the cores.
void await(MPI_Request request, const std::string& call);

}  // namespace computron
