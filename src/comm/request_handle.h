// An MPI_Request (a pointer or an integer, by MPI library) kept in a header without MPI's types.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <cstring>

namespace computron {

static_assert(sizeof(MPI_Request) <= sizeof(std::uintptr_t));

inline std::uintptr_t pack(MPI_Request request) {
  std::uintptr_t handle = 0;
  std::memcpy(&handle, &request, sizeof(MPI_Request));
  return handle;
}
inline MPI_Request unpack(std::uintptr_t handle) {
  MPI_Request request;
  std::memcpy(&request, &handle, sizeof(MPI_Request));
  return request;
}

}  // namespace computron
