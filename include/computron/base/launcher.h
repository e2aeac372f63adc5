// What MPI's launchers tell a process before MPI is up.
#pragma once

#include <cstdlib>
#include <initializer_list>

namespace computron {

// The rank, as the environment says it; null without a launcher.
inline const char* launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(name)) return rank;
  }
  return nullptr;
}

}  // namespace computron
