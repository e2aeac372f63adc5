// What the launchers of MPI tell a process before MPI is up. The one file of the program with names of theirs:
// everything else asks MPI itself.
#pragma once

#include <cstdlib>

namespace computron {

// Where a launcher writes the rank of a process. Of two that speak the first is believed: mpirun within a step of
// Slurm, or Hydra within one of PALS, starts ranks of its own.
struct LauncherVariable {
  const char* launcher;
  const char* rank;
};
inline constexpr LauncherVariable kLauncherVariables[] = {
    {"Open MPI", "OMPI_COMM_WORLD_RANK"},  // mpirun, prterun
    {"PMIx", "PMIX_RANK"},                 // srun --mpi=pmix, prun
    {"PMI", "PMI_RANK"},                   // PMI-1 and PMI-2: Hydra of MPICH and Intel MPI, srun --mpi=pmi2
    {"MVAPICH2", "MV2_COMM_WORLD_RANK"},   // mpirun_rsh
    {"Cray PALS", "PALS_RANKID"},          // mpiexec of PALS, srun --mpi=cray_shasta
};

// The rank, as the environment says it; null without a launcher. A batch script of Slurm has SLURM_PROCID too, and no
// rank: that name counts within a step alone, and only where no launcher of MPI has spoken.
inline const char* launched_rank() {
  for (const LauncherVariable& variable : kLauncherVariables) {
    if (const char* rank = std::getenv(variable.rank)) return rank;
  }
  return std::getenv("SLURM_STEP_ID") != nullptr ? std::getenv("SLURM_PROCID") : nullptr;
}

}  // namespace computron
