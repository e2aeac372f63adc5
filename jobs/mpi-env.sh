# shellcheck shell=bash
# Source me: lets Open MPI start jobs on a small machine: one host, fewer cores than ranks, perhaps as root. For tests
# and the quickstart; a job script for a cluster needs none of it. Other MPI libraries ignore these variables.
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export OMPI_MCA_rmaps_base_oversubscribe=1      # more ranks than cores are allowed
export OMPI_MCA_hwloc_base_binding_policy=none  # 2 ranks on 2 cores would be bound to one core each, threads and all
# The same two of Open MPI 5, whose launcher is PRRTE.
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1           # a rank that waits inside MPI gives its core away
# No probing of networks: half the start-up time.
export OMPI_MCA_pml="${OMPI_MCA_pml:-ob1}" OMPI_MCA_btl="${OMPI_MCA_btl:-self,vader}"
# Without ssh or rsh mpirun 4.1 gives up, even though one host needs neither.
if ! command -v ssh >/dev/null 2>&1 && ! command -v rsh >/dev/null 2>&1; then
  export OMPI_MCA_plm="${OMPI_MCA_plm:-isolated}"
fi
