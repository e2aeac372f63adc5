# Debian's cross-compiler, with the libraries of an arm64 root: COMPUTRON_SYSROOT of the environment, which jobs/portable.sh
# makes. What is built runs under qemu, in that root's libraries: no binfmt_misc is needed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(COMPUTRON_SYSROOT "$ENV{COMPUTRON_SYSROOT}" CACHE PATH "An arm64 root with the libraries")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES COMPUTRON_SYSROOT)
set(CMAKE_SYSROOT ${COMPUTRON_SYSROOT})
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${CMAKE_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-L;${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)

# Compiler wrappers of that root do not run here, so its MPI is named: MPICH. Ranks are started by this machine's own
# mpiexec of MPICH, which speaks the same PMI, and a script lets each run under qemu.
set(MPI_CXX_SKIP_MPICXX TRUE)
set(MPI_CXX_COMPILER_INCLUDE_DIRS ${CMAKE_SYSROOT}/usr/include/aarch64-linux-gnu/mpich)
set(MPI_CXX_HEADER_DIR ${MPI_CXX_COMPILER_INCLUDE_DIRS})
set(MPI_CXX_LIB_NAMES mpich)
set(MPI_mpich_LIBRARY ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/libmpich.so)
set(MPIEXEC_EXECUTABLE ${CMAKE_CURRENT_LIST_DIR}/mpiexec-qemu.sh)
set(HDF5_C_COMPILER_EXECUTABLE HDF5_C_COMPILER_EXECUTABLE-NOTFOUND)
set(HDF5_ROOT ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/hdf5/serial)
